"""The part of the Hugging Face hub that the hub library needs to create, fill, list and fetch a repository. In memory."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_" + "x" * 34


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.commits: dict[str, list[dict[str, bytes]]] = {}  # repository -> its files at every commit
        self.private: set[str] = set()

    def oid(self, repo: str, i: int) -> str:
        return hashlib.sha1(f"{repo} {i}".encode()).hexdigest()

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(repo, [])
        names = [self.oid(repo, i) for i in range(len(commits))]
        if revision == "main" and names:
            return names[-1], commits[-1]
        return (revision, commits[names.index(revision)]) if revision in names else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json(401, {"error": "Invalid credentials"})
        hub = self.server
        if self.path == "/api/validate-yaml":
            return self._json(200, {"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            hub.commits.setdefault(repo, [])
            hub.private |= {repo} if asked.get("private") else set()
            return self._json(200, {"url": f"{hub.url}/{repo}", "name": repo})
        if found := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            files = json.loads(body)["files"]
            return self._json(
                200, {"files": [{**f, "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            )
        found = re.fullmatch(r"/api/models/(.+)/commit/main", self.path)
        assert found, self.path
        repo, commits = found[1], hub.commits[found[1]]
        now = dict(commits[-1]) if commits else {}
        for line in map(json.loads, body.decode().splitlines()):
            if line["key"] == "file":
                now[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        commits.append(now)
        oid = hub.oid(repo, len(commits) - 1)
        self._json(200, {"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{repo}/commit/{oid}"})

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            if (there := self.server.at(found[1], found[3])) is None:
                known = found[1] in self.server.commits
                return self._json(
                    404, {"error": "?"}, {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"}
                )
            oid, files = there
            if found[2] == "tree":
                sizes = {name: {"size": len(data), "oid": _etag(data)} for name, data in files.items()}
                return self._json(
                    200, [{"type": "file", "path": name, **about} for name, about in sizes.items()]
                )
            siblings = [{"rfilename": name} for name in files]
            return self._json(
                200, {"id": found[1], "sha": oid, "siblings": siblings, "private": False, "tags": []}
            )
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        there = found and self.server.at(found[1], found[2])
        if not found or not there or found[3] not in there[1]:
            return self._json(404, {"error": "?"}, {"X-Error-Code": "EntryNotFound"})
        content = there[1][found[3]]
        self._send(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": there[0]})

    do_HEAD = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        whole = b""
        while size := int(self.rfile.readline(), 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def _json(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        self._send(
            status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
