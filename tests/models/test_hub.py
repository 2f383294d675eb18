"""Models of the hub, from a server on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from jaxsr.errors import MissingFileError
from jaxsr.models.hub import _digest, is_hub_name
from jaxsr.models.language_models import check_model
from tests.models.hub_server import COMMIT, Hub, serving


@pytest.fixture
def hub(tmp_path):
    """`hub(command…)`: a process that knows this server, and its output."""
    files = {
        "config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights",
        "tokenizer.json": b"{}", "pytorch_model.bin": b"a pickle", "modeling_own.py": b"code",
        "model-q4.gguf": b"GGUF",
    }  # fmt: skip

    def run(*names, **environment):
        code = (
            "import sys; from jaxsr.errors import UserError; from jaxsr.models.hub import fetched\n"
            "for name in sys.argv[1:]:\n"
            "  try: path = fetched(name); print(path, *sorted(p.name for p in path.glob('*')))\n"
            "  except UserError as error: print(type(error).__name__, error)"
        )
        process = subprocess.run(
            [sys.executable, "-c", code, *names], env=os.environ | run.settings | environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        lines = process.stdout.splitlines()
        assert len(lines) == len(names), lines  # of one line each
        return lines

    with serving(tmp_path, files) as run.settings:
        yield run


def test_names_and_paths_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_name("org/name") and is_hub_name("org/name@v1") and is_hub_name("hf:org/n:a.gguf")
    out_of_the_cache = ("org/name@../../x", "org/name@a/../../x")
    paths = ("runs/mine", "./org/name", "org/name/x", "model.gguf", "/org/name", "my:Net")
    for path in (*paths, *out_of_the_cache):
        assert not is_hub_name(path)


def test_data_alone_are_fetched_and_kept(hub):
    (line,) = hub("org/name")
    assert f"snapshots/{COMMIT} config.json model.safetensors tokenizer.json" in line
    assert not any(".bin" in path or ".py" in path or ".gguf" in path for path in Hub.requested)
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
    assert "neither safetensors, outside of folders, nor a GGUF" in hub("org/other")[0]


def test_parts_of_a_gguf_file_come_together(hub):
    for part in range(1, 4):
        Hub.files[f"big-{part:05}-of-00003.gguf"] = f"part {part}".encode()
    (line,) = hub("hf:org/name:big-00001-of-00003.gguf")
    assert "big-00001-of-00003.gguf" in line
    assert {path for path in Hub.requested if "big-" in path} == {
        f"/org/name/resolve/main/big-{part:05}-of-00003.gguf" for part in range(1, 4)
    }


def test_files_are_compared_again_when_they_change(hub, tmp_path):
    (line,) = hub("org/name")
    assert len(list((tmp_path / "cache" / "jaxsr" / "hub").iterdir())) == 3
    weights = next(path for path in (tmp_path / "hf").rglob("model.safetensors")).resolve()
    weights.write_bytes(b"changed")
    (offline,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert "InputError model.safetensors of the hub: not what the digest says" in offline
    assert hub("org/name") == [line]
    assert weights.read_bytes() == b"weights"


def test_all_altered_files_are_named_and_fetched_again(hub, tmp_path):
    Hub.files["two.safetensors"] = b"more weights"
    Hub.fault = "altered"
    (line,) = hub("org/name")
    assert "InputError model.safetensors, two.safetensors of the hub: not what the digest" in line
    Hub.fault = ""
    assert hub("org/name")[0].endswith("model.safetensors tokenizer.json two.safetensors")


@pytest.mark.parametrize("name", ["org/name", "hf:org/name:a.gguf"])
def test_what_is_not_fetched_is_named(hub, name):
    (line,) = hub(name, HF_ENDPOINT="http://127.0.0.1:1")
    assert line.startswith(f"MissingFileError {name} ") and "where the hub is reached: hf" in line


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


def test_a_dropped_connection_goes_on_where_it_was(hub, tmp_path):
    piece = 10 << 20  # of which huggingface_hub writes whole ones
    Hub.files["model.safetensors"] = content = bytes(range(256)) * (piece // 256 * 2 + 1)
    Hub.fault = "dropped once"
    (line,) = hub("org/name")
    assert line.endswith("config.json model.safetensors tokenizer.json")
    assert Hub.ranges == [f"bytes={piece}-"]
    assert next((tmp_path / "hf").rglob("model.safetensors")).read_bytes() == content


def test_a_killed_download_is_not_used_and_made_up_for(hub, tmp_path):
    Hub.files["model.safetensors"] = content = bytes(range(256)) * 100
    Hub.fault = "slow"
    code = "from jaxsr.models.hub import fetched; fetched('org/name')"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | hub.settings)
    while not any((tmp_path / "hf").rglob("*.incomplete")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    Hub.fault = ""
    (offline,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert offline.startswith("MissingFileError") and offline.endswith("hf download org/name")
    (line,) = hub("org/name")
    assert line.endswith("config.json model.safetensors tokenizer.json")
    assert next((tmp_path / "hf").rglob("model.safetensors")).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/private", "(RepositoryNotFoundError): there is no such repository, or it is private"),
        ("org/name@none", "(RevisionNotFoundError): there is no such branch, tag or commit"),
        ("hf:org/name:none.gguf", "(RemoteEntryNotFoundError): there is no such file"),
        ("hf:org/name:a\x1b.gguf", "hf:org/name:a\\x1b.gguf cannot be fetched"),
        ("hf:org", "is not hf:ORG/NAME"),
        ("hf:org/name@../x:a.gguf", "is not hf:ORG/NAME"),
    ],
)
def test_what_is_not_there_is_one_line(hub, name, reason):
    (line,) = hub(name)
    assert reason in line


def test_offline_and_not_kept_names_the_command(hub):
    (line,) = hub("org/name", HF_HUB_OFFLINE="1")
    assert "MissingFileError" in line and line.endswith("hf download org/name")
    assert "unset the `HF_HUB_OFFLINE` environment variable" in line
    (line,) = hub("hf:org/name@v1:a b.gguf", HF_HUB_OFFLINE="1")
    assert line.endswith("hf download org/name 'a b.gguf' --revision v1")
    assert not Hub.requested


def test_a_hub_that_is_not_reached_says_why(hub):
    (line,) = hub("org/name", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_DISABLE_TELEMETRY="1")
    assert "Connection refused); where the hub is reached: hf download org/name" in line


def test_files_in_folders_stay_there(hub):
    Hub.files["original/model.safetensors"] = b"the same weights again"
    hub("org/name")
    assert not any("original" in path for path in Hub.requested if "resolve" in path)


def test_a_mistyped_path_is_told_that_it_may_be_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    with pytest.raises(MissingFileError, match=r"hf:org/name is that of the hub"):
        check_model(Path("org/name"))


def test_an_interrupt_does_not_wait_for_files(hub):
    Hub.fault = "slow"
    code = (
        "from jaxsr.models.hub import fetched; from jaxsr.runtime.cli import run_program\n"
        "run_program(lambda: fetched('org/name'), command='generate')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | hub.settings, stderr=subprocess.PIPE
    )
    while not any("resolve" in path and "safetensors" in path for path in tuple(Hub.requested)):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=Hub.slowness_s / 2)
    assert text.decode().splitlines()[-1] == "jaxsr: interrupted" and process.returncode == 130
