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
import sys
from pathlib import Path
from typing import Any

from jaxsr.errors import InputError, MissingFileError, one_line, printable

_NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_PLAIN = re.compile(rf"(?P<repo>{_NAME})(?:@(?P<revision>[\w./-]+))?")
_FULL = re.compile(rf"hf:(?P<repo>{_NAME})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[^:]+))?")
_DATA = (
    *("*.safetensors", "*.json", "*.jinja", "*.txt"),
    *("tokenizer.model", "spiece.model", "LICENSE*"),
)
"""Files that are fetched of a repository; of several formats of weights safetensors alone."""
_PART = re.compile(r"(.+-)\d{5}(-of-(\d{5})\.gguf)")


def is_hub_name(model: str | Path) -> bool:
    """Whether a model is named by its repository, and no file or folder here has that name.

    `runs/mine` is none where there is a folder `runs`: it is a path with a mistake.
    """
    text = str(model)
    if text.startswith("hf:"):
        return True
    here = Path(text)
    return bool(_PLAIN.fullmatch(text)) and not here.exists() and not here.parent.exists()


@functools.cache
def fetched(model: str | Path) -> Path:
    """The folder or file of a model; one of the hub is fetched, or found in the hub's cache.

    Args:
      model: `org/name`, `org/name@revision`, `hf:org/name:file.gguf`; anything else is returned.

    Raises:
      InputError: the name has another form, or a file is not what its digest says.
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
            f"huggingface_hub, or fetch it elsewhere: hf download {repo}"
        )
    print(f"{repo}: from {_endpoint()}, or its cache", file=sys.stderr, flush=True)
    try:
        return _verified(repo, revision, file)
    except (InputError, MissingFileError):
        raise
    except Exception as error:  # of huggingface_hub, its transport, and its many kinds
        named = " ".join([repo, *([file] if file else [])])
        raise MissingFileError(
            f"{text} cannot be fetched ({type(error).__name__}: {one_line(error):.200}); where the "
            f"hub is reached: hf download {named}"
        ) from error


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _verified(repo: str, revision: str | None, file: str | None) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    before = _blobs(folder)
    try:
        return _download(repo, revision, file)
    finally:  # what came before an interruption would be taken as whole by the next call
        for blob in sorted(_blobs(folder) - before):
            if not _is_whole(blob):
                with contextlib.suppress(FileNotFoundError):
                    blob.unlink()
                raise InputError(
                    f"{repo}: a file of {folder.name} is not what its digest says, and was "
                    "removed; run the command again"
                )


def _blobs(folder: Path) -> set[Path]:
    return {blob for blob in (folder / "blobs").glob("*") if re.fullmatch("[0-9a-f]+", blob.name)}


def _is_whole(blob: Path) -> bool:
    """Whether a file of the cache is what its name says: large ones have SHA-256, others git's."""
    content = blob.read_bytes()
    if len(blob.name) == hashlib.sha256().digest_size * 2:
        return hashlib.sha256(content).hexdigest() == blob.name
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).hexdigest() == blob.name


def _download(repo: str, revision: str | None, file: str | None) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    options: dict[str, Any] = {"revision": revision}
    if file is not None:
        part = _PART.fullmatch(file)
        count = int(part[3]) if part else 0
        names = [f"{part[1]}{i:05}{part[2]}" for i in range(1, count + 1)] if part else [file]
        paths = {name: Path(hf_hub_download(repo, name, **options)) for name in names}
        return paths[file]
    folder = Path(snapshot_download(repo, allow_patterns=list(_DATA), **options))
    if any(folder.glob("*.safetensors")):
        return folder
    here = [path.name for path in folder.iterdir()]
    names = here if constants.HF_HUB_OFFLINE else HfApi().list_repo_files(repo, **options)
    found = sorted(n for n in names if n.endswith(".gguf") and not n.startswith("mmproj"))
    firsts = [n for n in found if not (m := _PART.fullmatch(n)) or "-00001-of-" in m[0]]
    if len(firsts) > 1:
        raise InputError(
            f"{repo} has {len(firsts)} GGUF files ({', '.join(firsts[:4])}); give one as "
            f"hf:{repo}:FILE"
        )
    if not firsts:
        raise MissingFileError(
            f"{repo} has neither safetensors nor a GGUF file, which alone are fetched; give "
            "another repository"
        )
    return _download(repo, revision, firsts[0])
