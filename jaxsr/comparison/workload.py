"""The work of both sides: a network, its inputs, and how one step follows another.

A network that takes an image runs once. A language model runs once on its prompt and once for each
further token, with its key-value cache on the host between steps. The next token is the greedy one,
or the one that another run took, so that two runs can be compared.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from jaxsr.comparison.arguments import named_leaves
from jaxsr.errors import InputError
from jaxsr.interop.annotations import JsonObject, PyTree
from jaxsr.models.cache_entries import has_slots

Inputs = tuple[tuple, dict[str, PyTree]]


def run_key() -> Any:
    """The random key of every run."""
    import jax

    return jax.random.key(0)


class Rollout:
    """One run in progress: the inputs of the next step, which depend on the last outputs.

    Args:
      inputs: of the first step; a network that chooses no tokens runs once.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._next: Inputs | None = inputs
        self.tokens: list[int] = []
        """Tokens chosen so far; empty for networks that choose no tokens."""
        self.further: dict[str, np.ndarray] = {}
        """The arrays after the first of a network that runs once, by their place."""

    def inputs(self) -> Inputs | None:
        """Arguments of the next step, host arrays; None when the run is over."""
        return self._next

    def take(self, outputs: PyTree, token: int | None = None) -> np.ndarray:
        """Goes on with a step's outputs; returns the first array (image, logits).

        Args:
          outputs: host arrays as the network nests them.
          token: goes in next instead of the greedy one.
        """
        self._next = None
        (_, first), *further = _arrays(outputs).items()
        self.further = {name: np.asarray(array) for name, array in further}
        return np.asarray(first)


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """A network with inputs."""

    family: str
    """Name of the family, or the class of another network."""
    model: str
    """Where the weights are from."""
    network: nn.Module = field(repr=False)
    """In evaluation mode, on the CPU, in float32."""
    inputs_text: str
    """The inputs in words."""
    casts_buffers: bool = True
    """Whether a narrower dtype is the buffers' as well, as `nn.Module.to` would have it."""
    train: bool = False
    """In training mode; both engines draw the numbers of one key."""

    def begin(self) -> Rollout:
        """A new run."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Runs of the network."""
        raise NotImplementedError

    def identity(self) -> dict[str, str]:
        """The values that comparable traces share; weights are compared one by one."""
        state = self.network.state_dict()
        return {
            "family": self.family,
            "parameters": _digest(f"{name} {tuple(t.shape)}" for name, t in sorted(state.items())),
            "inputs": self.inputs_digest(),
        }

    def header(self) -> JsonObject:
        """The workload's part of a trace's header."""
        subject = {"family": self.family, "model": self.model, "inputs": self.inputs_text}
        return {"subject": {**subject, "steps": self.steps}, "identity": self.identity()}

    def inputs_digest(self) -> str:
        """Tells inputs apart."""
        raise NotImplementedError

    def check_tokens(self, forced: Sequence[int]) -> None:
        """Refuses tokens to feed that the network does not know; by default it takes none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SingleWorkload(Workload):
    """A network that runs once."""

    inputs: Inputs = field(repr=False)
    """Positional and keyword arguments, host arrays: images (batch, channels, height, width)."""

    def begin(self) -> Rollout:
        return Rollout(self.inputs)

    @property
    def steps(self) -> int:
        return 1

    def inputs_digest(self) -> str:
        args, kwargs = self.inputs
        leaves = tree_leaves([*enumerate(args), *sorted(kwargs.items())])
        return _digest(
            part
            for value in leaves
            for part in (
                (f"{value.shape}", value.tobytes()) if hasattr(value, "tobytes") else (repr(value),)
            )
        )


def first_array(outputs: PyTree) -> Any:
    """The first array of a network's output, a list, dictionary or dataclass among others.

    Raises:
      InputError: there is none.
    """
    return next(iter(_arrays(outputs).values()))


def _arrays(outputs: PyTree) -> dict[str, Any]:
    arrays = named_leaves(outputs, (np.ndarray, torch.Tensor))
    if arrays:
        return arrays
    raise InputError(
        f"the network returned a {type(outputs).__name__}, not a tensor; wrap it in a module that "
        "returns tensors"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageWorkload(Workload):
    """A language model on one prompt."""

    prompt: tuple[int, ...]
    """Token ids."""
    new_tokens: int
    """Steps: the prompt's, and one for each further token."""
    rows: int = 1
    """Rows of the batch, each with the prompt."""
    decode: Callable[[list[int]], str] | None = None
    """Token ids → text, or None."""

    def begin(self) -> Rollout:
        from jaxsr.models.llama.network import CausalLM

        network: Any = self.network
        rollout = _OwnRollout if isinstance(network, CausalLM) else _LibraryRollout
        context = network.config.max_position_embeddings
        return rollout(self.prompt, self.new_tokens, context, rows=self.rows)

    @property
    def steps(self) -> int:
        return self.new_tokens

    def header(self) -> JsonObject:
        header = super().header()
        header["subject"]["prompt"] = list(self.prompt)
        return header

    def inputs_digest(self) -> str:
        rows = [str(self.rows)] if self.rows > 1 else []
        return _digest([repr(self.prompt), str(self.new_tokens), *rows])

    def check_tokens(self, forced: Sequence[int]) -> None:
        network: Any = self.network
        known = network.config.vocab_size
        for token in (*self.prompt, *forced):
            if not 0 <= token < known:
                raise InputError(
                    f"the token {token} is none of the {known} that {self.model} knows; give the "
                    "tokenizer, or the trace, of this model"
                )

    def word(self, token: int) -> str:
        """A token as text, where there is a tokenizer."""
        return repr(self.decode([token])) if self.decode is not None else str(token)


class _LanguageRollout(Rollout):
    """Prompt and cache in the shapes that `jaxsr.generate` uses, so that it computes the same."""

    padding: Literal["left", "right"]

    def __init__(self, prompt: Sequence[int], count: int, context: int, *, rows: int) -> None:
        from jaxsr.generation.padding import cache_slots, padded

        tokens, self._length = padded([prompt] * rows, padding=self.padding)
        self._width = tokens.shape[1]
        self._count = count
        self._slots = cache_slots(len(prompt), count, context=context)
        self._cache: PyTree = None
        super().__init__(((tokens,), self._prompt_options()))

    def take(self, outputs: PyTree, token: int | None = None) -> np.ndarray:
        logits, new = outputs
        self._store(new)
        self.tokens.append(int(np.argmax(logits[0])) if token is None else token)
        fed = np.full((len(logits), 1), self.tokens[-1], np.int32)
        # A copy: the runs of one step may still look at it when the next one writes.
        inputs = ((fed, copy.deepcopy(self._cache)), self._token_options())
        self._next = inputs if len(self.tokens) < self._count else None
        return np.asarray(logits)

    def _prompt_options(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _token_options(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _store(self, new: PyTree) -> None:
        raise NotImplementedError


class _OwnRollout(_LanguageRollout):
    """Rollout of a network of `jaxsr.models.llama`."""

    padding = "right"

    def _prompt_options(self) -> dict[str, np.ndarray]:
        self._filled = int(self._length[0])
        return {"read_B": self._length - 1}

    def _token_options(self) -> dict[str, np.ndarray]:
        return {
            "filled_B": np.full_like(self._length, self._filled),
            "read_B": np.zeros_like(self._length),
        }

    def _store(self, new: PyTree) -> None:
        if self._cache is None:
            self._cache = [(_grown(k, self._slots), _grown(v, self._slots)) for k, v in new]
            return
        for filled, added in zip(self._cache, new, strict=True):
            for array, column in zip(filled, added, strict=True):
                array[:, :, self._filled] = column[:, :, 0]
        self._filled += 1


class _LibraryRollout(_LanguageRollout):
    """Rollout of a network of `jaxsr.models.hugging_face`."""

    padding = "left"

    def _prompt_options(self) -> dict[str, np.ndarray]:
        self._filled = self._width
        return {"first_B": self._width - self._length}

    def _token_options(self) -> dict[str, np.ndarray]:
        filled = np.array(self._filled, np.int32)
        return {"filled": filled, "first_B": self._width - self._length}

    def _store(self, new: PyTree) -> None:
        if self._cache is None:
            self._cache = {
                n: _grown(t, self._slots) if has_slots(n) else np.array(t) for n, t in new.items()
            }
            return
        self._cache = {name: np.array(array) for name, array in new.items()}
        self._filled += 1


def _grown(cache: np.ndarray, slots: int) -> np.ndarray:
    return np.pad(cache, ((0, 0), (0, 0), (0, slots - cache.shape[2]), (0, 0)))


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]
