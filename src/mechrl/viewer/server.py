"""A server for one page that is held in memory. It listens on loopback only, reads no file, and answers no other address."""

from __future__ import annotations

import html
import re
import socket
import sys
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_LIMIT = 30.0  # seconds for a request and its answer together


class PageServer(ThreadingHTTPServer):
    """Serves `document` at / on a free port of 127.0.0.1."""

    daemon_threads = True  # a browser that keeps its connection open must not keep us alive

    def __init__(self, document: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = document.encode()
        # the page's own, and what only a header can say: that no other page may frame it
        own = _POLICY.search(document)
        self.policy = (html.unescape(own[1]) if own else "default-src 'none'") + "; frame-ancestors 'none'"
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    def handle_error(self, request: object, client_address: object) -> None:
        """A tab that is closed, or a connection that lasts too long, is no news. Anything else is one line."""
        if not isinstance(exc := sys.exc_info()[1], OSError):
            print(f"the viewer: {type(exc).__name__}: {exc}".splitlines()[0], file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "MechRL", ""
    timeout = _LIMIT  # of every wait; a client that sends a byte now and then never waits so long, so there is one for all of it too

    def setup(self) -> None:
        super().setup()
        self._end = threading.Timer(_LIMIT, self._hang_up)
        self._end.daemon = True
        self._end.start()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):  # it has ended just now
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        # a page elsewhere may point a name of its own at 127.0.0.1; its requests then carry that name
        if self.headers.get("Host") not in self.server.hosts:
            return self._answer(HTTPStatus.FORBIDDEN, b"This server answers 127.0.0.1 only.\n")
        if self.path != "/":
            return self._answer(HTTPStatus.NOT_FOUND, b"There is one page here, at /.\n")
        self._answer(HTTPStatus.OK, self.server.body, "text/html; charset=utf-8")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody asked."""
