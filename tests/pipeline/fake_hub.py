# SPDX-License-Identifier: Apache-2.0
"""A model hub on 127.0.0.1: as much of the Hub's protocol as huggingface_hub needs to look a model up and fetch it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
LARGE = 10_000  # files from this size on are kept under LFS, with their SHA-256


@dataclass
class FakeHub:
    """One repository. state: "open", "gated" or "private". corrupt: files that are served with other bytes."""

    id: str
    folder: Path
    state: str = "open"
    corrupt: set[str] = field(default_factory=set)
    stop_after: int | None = None  # bytes of a file after which the connection breaks, once
    served: list[tuple[str, int]] = field(default_factory=list)  # (file, first byte)
    endpoint: str = ""

    def listing(self) -> dict:
        """The answer to /api/models/<id>/revision/<revision>?blobs=true."""
        siblings = []
        for path in sorted(self.folder.iterdir()):
            data = path.read_bytes()
            entry: dict = {"rfilename": path.name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            if len(data) >= LARGE:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.id, "modelId": self.id, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a repository on a free port of 127.0.0.1."""

    class Handler(_Handler):
        repository = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    repository: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.repository, self.path.split("?")[0]
        if hub.id not in path or hub.state == "private":
            return self._say(401, {"X-Error-Code": "RepoNotFound"}, b"{}", body)
        if path.startswith("/api/models/"):
            revision = path.rsplit("/revision/", 1)[-1] if "/revision/" in path else "main"
            if revision not in ("main", COMMIT):
                return self._say(404, {"X-Error-Code": "RevisionNotFound"}, b"{}", body)
            return self._say(200, {"Content-Type": "application/json"}, json.dumps(hub.listing()).encode(), body)
        if hub.state == "gated":
            return self._say(403, {"X-Error-Code": "GatedRepo"}, b"{}", body)
        return self._file(path.rsplit("/", 1)[-1], body)

    def _file(self, name: str, body: bool) -> None:
        hub = self.repository
        path = hub.folder / name
        if not path.is_file():
            return self._say(404, {"X-Error-Code": "EntryNotFound"}, b"{}", body)
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if name in hub.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        asked = self.headers.get("Range")
        first = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if body:
            hub.served.append((name, first))
        if body and hub.stop_after is not None and len(data) > hub.stop_after:
            cut, hub.stop_after = hub.stop_after, None
            self._say(206 if asked else 200, headers, data[first:], True, sent=cut)
            return self.connection.close()
        return self._say(206 if asked else 200, headers, data[first:], body)

    def _say(self, code: int, headers: dict[str, str], data: bytes, body: bool, sent: int | None = None) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data[:sent])
            self.wfile.flush()
        if sent is not None:
            self.close_connection = True
