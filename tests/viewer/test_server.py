"""The server answers this machine, with one page, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from mechrl.viewer.server import PageServer


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with PageServer("<p>page</p>") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, request: str, host: str | None = "") -> tuple[int, str]:
    """Status and body, byte for byte as asked: a client library would tidy the path up first."""
    port = server.server_address[1]
    lines = [request + " HTTP/1.0", *([] if host is None else [f"Host: {host or f'127.0.0.1:{port}'}"]), "", ""]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall("\r\n".join(lines).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_the_page_is_there(server: PageServer) -> None:
    assert ask(server, "GET /") == (200, "<p>page</p>")
    assert ask(server, "HEAD /") == (200, "")
    assert ask(server, "GET /", f"localhost:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/../", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page.js", "/?x", "..", "/./"]
)
def test_nothing_else_is(server: PageServer, path: str) -> None:
    status, body = ask(server, f"GET {path}")
    assert status == 404 and "root:" not in body


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1.example.org", None])
def test_another_name_for_this_machine_is_refused(server: PageServer, host: str | None) -> None:
    assert ask(server, "GET /", host)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_shows(server: PageServer, method: str) -> None:
    assert ask(server, f"{method} /")[0] == 501


def test_it_listens_on_loopback(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")
