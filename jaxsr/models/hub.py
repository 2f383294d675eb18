"""Models by their names on the Hugging Face hub: `org/name`, `org/name@revision`, `hf:org/name:F`.

`huggingface_hub` fetches and keeps them, under its own settings: HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE. Only files that are data are fetched, and each is compared with its digest before it
is used for the first time.
"""

import contextlib
import functools
import hashlib
import importlib.util
import re
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, MissingFileError, first_of, one_line, printable
from jaxsr.folders import cache_folder
from jaxsr.models.gguf_names import first_files, part_names

_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_REVISION = r"(?P<revision>(?![^:]*\.\.)[\w./-]+)"  # the cache has a file of that name
_PLAIN = re.compile(rf"(?P<repo>{_NAME})(?:@{_REVISION})?")
_FULL = re.compile(rf"hf:(?P<repo>{_NAME})(?:@{_REVISION})?(?::(?P<file>[^:]+))?")
_DATA = (
    *("*.safetensors", "*.json", "*.jinja", "*.txt"),
    *("tokenizer.model", "spiece.model", "LICENSE*"),
)
"""Files that are fetched of a repository; of several formats of weights safetensors alone."""
_FOLDERS = "*/*"
"""Files in folders, which are other forms of the model: `original/`, `onnx/`."""
_RULES = {
    "RepositoryNotFoundError": "there is no such repository, or it is private; check the name, or "
    "give a token that may read it: hf auth login, or HF_TOKEN",
    "GatedRepoError": "its owner admits people one by one; ask on its page, and give a token: hf "
    "auth login, or HF_TOKEN",
    "RevisionNotFoundError": "there is no such branch, tag or commit; check the part after @",
    "RemoteEntryNotFoundError": "there is no such file; check the part after the second colon",
}
"""Advice for errors of huggingface_hub that its command also has."""
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def is_hub_name(model: str | Path) -> bool:
    """Whether a model is named by its repository, and no file or folder here has that name.

    `runs/mine` is not a name where there is a folder `runs`: it is a mistyped path.
    """
    text = str(model)
    if text.startswith("hf:"):
        return True
    here = Path(text)
    return bool(_PLAIN.fullmatch(text)) and not here.exists() and not here.parent.exists()


def hub_hint(path: str | Path) -> str:
    """The end of an error about a path that is not there, and may be meant as a repository."""
    text = str(path)
    return f"; hf:{text} is that of the hub" if _PLAIN.fullmatch(text) else ""


@functools.cache
def fetched(model: str | Path) -> Path:
    """The folder or file of a model; one of the hub is fetched, or found in the hub's cache.

    Args:
      model: `org/name`, `org/name@revision`, `hf:org/name:file.gguf`; anything else is returned.

    Raises:
      InputError: the name has another form, or a file does not match its digest.
      FileNotFoundError: there is no such repository, revision or file, or the hub is not reached.
    """
    if not is_hub_name(model):
        return Path(model)
    text = str(model)
    match = _FULL.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is None:
        raise InputError(
            f"{printable(text, 120)} is not hf:ORG/NAME, hf:ORG/NAME@REVISION or "
            "hf:ORG/NAME:FILE; write it so"
        )
    parts = match.groupdict()
    repo, revision, file = parts["repo"], parts["revision"], parts.get("file")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f"{text} is fetched by huggingface_hub, which is not installed; pip install "
            f"huggingface_hub, or fetch it elsewhere: {_command(repo, revision, file)}"
        )
    try:
        path = _interruptible(lambda: _download(repo, revision, file))
    except (InputError, MissingFileError):
        raise
    except Exception as error:  # of huggingface_hub, its transport, and its many kinds
        kind = type(error).__name__
        if kind in _RULES:
            reason = f"({kind}): {_RULES[kind]}"
        else:
            # Where nothing is in the cache the library explains that at length; the cause is why.
            cause = error.__cause__ if kind == "LocalEntryNotFoundError" else None
            cause_text = f"{type(cause or error).__name__}: {one_line(cause or error):.300}"
            reason = f"({cause_text}); where the hub is reached: {_command(repo, revision, file)}"
        here = "" if text.startswith("hf:") else "is not a folder here, and "
        raise MissingFileError(f"{printable(text)} {here}cannot be fetched {reason}") from error
    _check_digests(path)
    return path


def _command(repo: str, revision: str | None, file: str | None) -> str:
    """The command that fetches it elsewhere."""
    options = ["--revision", revision] if revision else []
    return printable(shlex.join(["hf", "download", repo, *([file] if file else []), *options]))


def _interruptible(work: Callable[[], Path]) -> Path:
    """The result of `work`, done in a thread: Ctrl-C does not wait for files on their way."""
    result: Future[Path] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # raised again below
            result.set_exception(error)

    threading.Thread(target=run, name="hub", daemon=True).start()
    return result.result()


def _check_digests(path: Path) -> None:
    """Compares the files of a snapshot with their digests, once for each.

    Raises:
      InputError: some differ; they are removed.
    """
    altered: list[str] = []
    checked = cache_folder() / "hub"
    if path.is_dir():
        files = sorted(path.iterdir())
    else:
        files = [path.with_name(name) for name in part_names(path.name)]
    for file in files:
        blob = file.resolve()  # the cache names a file's content by its digest
        if not _DIGEST.fullmatch(blob.name):
            continue
        mark = checked / blob.name
        if mark.exists() and mark.stat().st_mtime >= blob.stat().st_mtime:
            continue
        if _digest(blob) != blob.name:
            blob.unlink()
            altered.append(file.name)
            continue
        with contextlib.suppress(OSError):  # then it is compared again the next time
            checked.mkdir(parents=True, exist_ok=True)
            mark.touch()
    if altered:
        raise InputError(
            f"{printable(first_of(altered), 120)} of the hub: not what the digest says, and "
            "removed; run the command again"
        )


def _digest(blob: Path) -> str:
    """A file's digest of the kind that its name is: SHA-256 of large ones, git's of others."""
    with blob.open("rb") as stream:
        if len(blob.name) == hashlib.sha256().digest_size * 2:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


def _download(repo: str, revision: str | None, file: str | None) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    options: dict[str, Any] = {"revision": revision}
    if file is not None:
        paths = [hf_hub_download(repo, name, **options) for name in part_names(file)]
        return Path(paths[part_names(file).index(file)])
    folder = Path(
        snapshot_download(repo, allow_patterns=list(_DATA), ignore_patterns=_FOLDERS, **options)
    )
    if any(folder.glob("*.safetensors")):
        return folder
    here = [path.name for path in folder.iterdir()]
    names = here if constants.HF_HUB_OFFLINE else HfApi().list_repo_files(repo, **options)
    firsts = first_files(names)
    if len(firsts) > 1:
        raise InputError(
            f"{repo} has {len(firsts)} GGUF files ({', '.join(firsts[:4])}); give one as "
            f"hf:{repo}:FILE"
        )
    if not firsts:
        raise MissingFileError(
            f"{repo} has neither safetensors, outside of folders, nor a GGUF file, which alone are "
            "fetched; give another repository"
        )
    return _download(repo, revision, firsts[0])
