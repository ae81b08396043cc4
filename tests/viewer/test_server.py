"""The server serves one page to this machine, and nothing else."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from mechrl.viewer import server as serving
from mechrl.viewer.page import page
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
    """Status and body of a request sent byte for byte: a client library would normalise the path."""
    port = server.server_address[1]
    lines = [
        request + " HTTP/1.0",
        *([] if host is None else [f"Host: {host or f'127.0.0.1:{port}'}"]),
        "",
        "",
    ]
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
    "path",
    [
        "/../",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.js",
        "/?x",
        "..",
        "/./",
    ],
)
def test_nothing_else_is(server: PageServer, path: str) -> None:
    status, body = ask(server, f"GET {path}")
    assert status == 404 and "root:" not in body


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:80", "127.0.0.1", "127.0.0.1.example.org", None]
)
def test_another_name_for_this_machine_is_refused(server: PageServer, host: str | None) -> None:
    assert ask(server, "GET /", host)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_shows(server: PageServer, method: str) -> None:
    assert ask(server, f"{method} /")[0] == 501


def test_it_listens_on_loopback(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")


# ---- clients that misbehave -----------------------------------------------------------------------------------------


def head(server: PageServer, path: str = "/") -> dict[str, str]:
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    lines = answer.partition("\r\n\r\n")[0].split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("path", ["/", "/nothing"])
def test_the_policy_is_in_the_header_too(path: str) -> None:
    """The page's own policy, verbatim, plus frame-ancestors, which only a header can set."""
    document = page([{"name": "a circuit"}])
    own = document.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    with PageServer(document) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        said = head(server, path)["Content-Security-Policy"]
        server.shutdown()
    assert "script-src 'sha256-" in own and said == f"{own}; frame-ancestors 'none'"


def test_a_page_without_a_policy_may_do_nothing(server: PageServer) -> None:
    assert head(server)["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_a_tab_that_is_closed_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """While the page is being sent, with and without a connection reset."""
    with PageServer("x" * 50_000_000) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        port = server.server_address[1]
        for reset in (False, True):
            for request in (f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n", "GET / HT"):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                    connection.sendall(request.encode())
                    time.sleep(0.1)
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.5)
        server.shutdown()
    said = capfd.readouterr()
    assert said.err == said.out == ""


def test_a_mistake_of_ours_is_one_line(
    server: PageServer, capfd: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setattr(server, "body", None)
    with pytest.raises(IndexError):  # no response
        ask(server, "GET /")
    time.sleep(0.2)
    said = capfd.readouterr().err
    assert said.startswith("the viewer: TypeError") and said.count("\n") == 1


@pytest.mark.parametrize("sends", [b"", b"G", b"GET / HTTP/1.0\r\nX: "])
def test_a_request_that_goes_on_and_on_is_ended(sends: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte from time to time keeps each single wait short."""
    monkeypatch.setattr(serving, "_LIMIT", 1.0, raising=False)
    with PageServer("page") as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=10) as connection:
            connection.sendall(sends)
            began = time.monotonic()
            with pytest.raises(OSError):
                while time.monotonic() - began < 8:
                    connection.sendall(b"x")
                    time.sleep(0.05)
        assert time.monotonic() - began < 5
        server.shutdown()


def test_nor_can_one_that_does_not_take_its_page_hold_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_LIMIT", 1.0, raising=False)
    with PageServer("x" * 50_000_000) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        port, before = server.server_address[1], threading.active_count()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            time.sleep(0.3)
            assert threading.active_count() > before
            until = time.monotonic() + 5
            while threading.active_count() > before and time.monotonic() < until:
                connection.recv(10)
                time.sleep(0.05)
            assert threading.active_count() == before
        server.shutdown()
