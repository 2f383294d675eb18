"""Models of the hub, from a server on this machine that speaks its routes, and with its faults."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("huggingface_hub")

from jaxsr.models.hub import _digest, is_hub_name

COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """`files` of every repository but `org/private`; `fault` is what goes wrong with weights."""

    files: dict[str, bytes]
    fault: str
    asked: list[str]

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.split("?")[0]
        self.asked.append(path)
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
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if is_weights and Hub.fault == "altered":
            content = content[:-1] + b"?"
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


@pytest.fixture
def hub(tmp_path):
    """`hub(command…)`: a process that knows this server, and its output."""
    Hub.fault, Hub.asked = "", []
    Hub.files = {
        "config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights",
        "tokenizer.json": b"{}", "pytorch_model.bin": b"a pickle", "modeling_own.py": b"code",
        "model-q4.gguf": b"GGUF",
    }  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def run(*names, **environment):
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_ETAG_TIMEOUT": "3", "HF_HUB_DOWNLOAD_TIMEOUT": "3",
        }  # fmt: skip
        code = (
            "import sys; from jaxsr.errors import UserError; from jaxsr.models.hub import fetched\n"
            "for name in sys.argv[1:]:\n"
            "  try: path = fetched(name); print(path, *sorted(p.name for p in path.glob('*')))\n"
            "  except UserError as error: print(type(error).__name__, error)"
        )
        process = subprocess.run(
            [sys.executable, "-c", code, *names], env=os.environ | settings | environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        lines = process.stdout.splitlines()
        assert len(lines) == len(names), lines  # of one line each
        return lines

    yield run
    server.shutdown()


def test_names_and_paths_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_name("org/name") and is_hub_name("org/name@v1") and is_hub_name("hf:org/n:a.gguf")
    for path in ("runs/mine", "./org/name", "org/name/x", "model.gguf", "/org/name", "my:Net"):
        assert not is_hub_name(path)


def test_data_alone_are_fetched_and_kept(hub):
    (line,) = hub("org/name")
    assert f"snapshots/{COMMIT} config.json model.safetensors tokenizer.json" in line
    assert not any(".bin" in path or ".py" in path or ".gguf" in path for path in Hub.asked)
    assert hub("org/name", HF_HUB_OFFLINE="1") == [line]
    assert hub("org/name@v1")[0].endswith("config.json model.safetensors tokenizer.json")
    (file,) = hub("hf:org/name:model-q4.gguf")
    assert file.endswith("model-q4.gguf")


def test_a_repository_of_one_gguf_file(hub):
    del Hub.files["model.safetensors"]
    assert hub("org/name")[0].endswith("model-q4.gguf")
    Hub.files["other.gguf"] = b"GGUF"
    (line,) = hub("org/name")
    assert "InputError org/name has 2 GGUF files" in line and "hf:org/name:FILE" in line
    Hub.files = {"config.json": b"{}", "pytorch_model.bin": b"a pickle"}
    assert "neither safetensors nor a GGUF file" in hub("org/other")[0]


def test_parts_of_a_gguf_file_come_together(hub):
    for part in range(1, 4):
        Hub.files[f"big-{part:05}-of-00003.gguf"] = f"part {part}".encode()
    (line,) = hub("hf:org/name:big-00001-of-00003.gguf")
    assert "big-00001-of-00003.gguf" in line
    assert {path for path in Hub.asked if "big-" in path} == {
        f"/org/name/resolve/main/big-{part:05}-of-00003.gguf" for part in range(1, 4)
    }


def test_files_are_compared_again_when_they_change(hub, tmp_path):
    (line,) = hub("org/name")
    assert len(list((tmp_path / "cache" / "jaxsr" / "hub").iterdir())) == 3
    weights = next(path for path in (tmp_path / "hf").rglob("model.safetensors")).resolve()
    weights.write_bytes(b"changed")
    (offline,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert "InputError model.safetensors of the hub is not what its digest says" in offline
    assert hub("org/name") == [line]
    assert weights.read_bytes() == b"weights"


def test_small_files_have_gits_digest(tmp_path):
    content = b"{}\n"
    name = subprocess.run(
        ["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True
    ).stdout.decode().strip()  # fmt: skip
    (tmp_path / name).write_bytes(content)
    assert _digest(tmp_path / name) == name


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["altered", "cut"])
def test_what_does_not_arrive_whole_is_not_used(hub, fault):
    Hub.fault = fault
    (line,) = hub("org/name")
    assert "Error" in line and ("digest" in line or fault == "cut")
    (offline,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert "model.safetensors" not in offline.split("; ")[0] or "Error" in offline
    Hub.fault = ""
    (line,) = hub("org/name")
    assert line.endswith("config.json model.safetensors tokenizer.json")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/private", "RepositoryNotFoundError"),
        ("org/name@none", "RevisionNotFoundError"),
        ("hf:org/name:none.gguf", "EntryNotFoundError"),
        ("hf:org", "is not hf:ORG/NAME"),
    ],
)
def test_what_is_not_there_is_one_line(hub, name, reason):
    (line,) = hub(name)
    assert reason in line


def test_offline_and_not_kept_names_the_command(hub):
    (line,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert "MissingFileError" in line and line.endswith("hf download org/name")
    assert not Hub.asked
