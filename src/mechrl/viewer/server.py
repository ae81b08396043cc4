"""A server for one page that is held in memory. It listens on loopback only, reads no file, and answers no other address."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class PageServer(ThreadingHTTPServer):
    """Serves `document` at / on a free port of 127.0.0.1."""

    daemon_threads = True  # a browser that keeps its connection open must not keep us alive

    def __init__(self, document: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = document.encode()
        port = self.server_address[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "MechRL", ""
    timeout = 30

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
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody asked."""
