"""Chooses who computes a language model: jaxsr's own network, or transformers' code of its family.

jaxsr's own is faster, and takes Llama and Qwen3; everything else is transformers'.
"""

from pathlib import Path
from typing import Literal

import torch

from jaxsr.errors import InputError
from jaxsr.models.llama import loading
from jaxsr.models.llama.config import ARCHITECTURES, LlamaConfig
from jaxsr.models.llama.hf_folder import read_json, weight_files
from jaxsr.models.llama.loading import LanguageModel
from jaxsr.models.llama.quantized import Scheme

Implementation = Literal["auto", "own", "transformers"]

_OWN_ROPE = (None, "default", "llama3")


def load_language_model(
    path: Path,
    *,
    dtype: torch.dtype = torch.float32,
    scheme: Scheme | None = None,
    implementation: Implementation = "auto",
) -> LanguageModel:
    """Loads a model from a Hugging Face folder or a GGUF file that exists.

    Args:
      path: the folder, or the file.
      dtype: of the weights that are not quantised, and so of the computation.
      scheme: quantise the blocks' projections on loading; for jaxsr's own networks.
      implementation: who computes. `auto`: see `choose`.

    Raises:
      FileNotFoundError: a file in the folder is missing.
      InputError: the files are broken, or hold a model that is not computed here.
    """
    if choose(path, implementation) == "own":
        return loading.load_checkpoint(path, dtype=dtype, scheme=scheme)
    if scheme is not None:
        raise InputError(
            f"quantize={scheme} is for Llama and Qwen3 (implementation own); leave it out"
        )
    from jaxsr.models.hugging_face.loading import load_folder

    return load_folder(path, dtype=dtype)


def check_folder(path: Path, implementation: Implementation = "auto") -> None:
    """Refuses a folder that cannot be loaded, before anything large is read.

    Raises:
      FileNotFoundError: config.json, the weights or some of their shards are missing.
      InputError: config.json is broken, or describes a model that is not computed here.
    """
    if choose(path, implementation) == "own":
        LlamaConfig.from_hf(read_json(path / "config.json"))
    weight_files(path)


def choose(path: Path, implementation: Implementation = "auto") -> Literal["own", "transformers"]:
    """Who computes the model.

    Raises:
      InputError: transformers is asked for a GGUF file, or jaxsr for a family it lacks.
    """
    if not path.is_dir():
        if implementation == "transformers":
            raise InputError(
                f"{path} is a file; implementation transformers reads folders: leave it out"
            )
        return "own"
    fields = read_json(path / "config.json")
    kind = fields.get("model_type")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
    known = kind in ARCHITECTURES and rope_type in _OWN_ROPE
    if implementation == "own" and not known:
        raise InputError(
            f"jaxsr's own networks are {', '.join(ARCHITECTURES)} with plain or llama3 rotary "
            f"positions, not {kind!r}; use implementation transformers"
        )
    if implementation == "auto":
        return "own" if known else "transformers"
    return implementation
