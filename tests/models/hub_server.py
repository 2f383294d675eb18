"""A server on this machine with the routes that `huggingface_hub` asks for, and with faults."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """`files` of every repository but `org/private`; `fault` is what goes wrong with weights."""

    files: dict[str, bytes]
    fault: str
    requested: list[str]
    ranges: list[str]
    slowness_s = 20.0

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.split("?")[0]
        self.requested.append(path)
        parts = path.strip("/").split("/")
        if "private" in path:
            return self.failed(401, "RepoNotFound")
        if "revision" in parts and parts[-1] not in ("main", COMMIT, "v1"):
            return self.failed(404, "RevisionNotFound")
        if path.startswith("/api/models/") and "tree" in parts:
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.files.items()
            ]
            return self.sent(json.dumps(tree).encode(), body=body)
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": siblings}
            return self.sent(json.dumps(info).encode(), body=body)
        name = path.split("/resolve/")[1].split("/", 1)[1] if "/resolve/" in path else ""
        if name not in self.files:
            return self.failed(404, "EntryNotFound")
        return self.sent(self.files[name], body=body, is_weights=name.endswith(".safetensors"))

    def sent(self, content, *, body, is_weights=False):
        digest, size = hashlib.sha256(content).hexdigest(), len(content)
        part = self.headers.get("Range") if body else None
        if part:
            Hub.ranges.append(part)
            content = content[int(part.removeprefix("bytes=").removesuffix("-")) :]
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {size - len(content)}-{size - 1}/{size}")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{digest}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if is_weights and Hub.fault == "altered":
            content = content[:-1] + b"?"
        if is_weights and body and Hub.fault == "slow":
            self.wfile.write(content[:1])
            time.sleep(self.slowness_s)
            content = content[1:]
        if is_weights and body and Hub.fault == "dropped once":
            content, Hub.fault = content[: len(content) // 2], ""
            self.close_connection = True
        if is_weights and Hub.fault == "cut":
            content = content[: len(content) // 2]
        if body:
            self.wfile.write(content)

    def failed(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def serving(folder: Path, files: dict[str, bytes]) -> Iterator[dict[str, str]]:
    """The environment of a process that knows the server, whose caches lie in `folder`."""
    Hub.fault, Hub.requested, Hub.ranges, Hub.files = "", [], [], files
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_ETAG_TIMEOUT": "3", "HF_HUB_DOWNLOAD_TIMEOUT": "3",
    }  # fmt: skip
    server.shutdown()
