"""Puts the values of a checkpoint into a network without values."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, first_of
from jaxsr.models.llama.block_formats import Blocks
from jaxsr.models.llama.network import Embedding
from jaxsr.models.llama.packed import BlockEmbedding, BlockLinear, MappedFile, TiedHead

_ONE_SOURCE = "get the configuration and the weights again, from one source"
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def packable(network: nn.Module) -> set[str]:
    """Names of the weights that can stay blocks: of linear layers and of embeddings."""
    return {
        f"{name}.weight"
        for name, module in network.named_modules()
        if type(module) is nn.Linear or isinstance(module, nn.Embedding)
    }


def is_tied(tensors: dict[str, Tensor], head: str, embedding: str) -> bool:
    """Whether a head that the configuration ties to the embedding is also tied by the checkpoint.

    As in transformers, two weights with different values are two, and a lone one is both's. A
    weight that is stored twice is removed from the table once.
    """
    weight = tensors.get(f"{head}.weight")
    if weight is None:
        return not any(name.startswith(f"{head}.") for name in tensors)  # a quantised head
    other = tensors.get(f"{embedding}.weight")
    if other is not None and not torch.equal(weight, other):
        return False
    tensors[f"{embedding}.weight"] = tensors.pop(f"{head}.weight")
    return True


def fill(
    network: nn.Module,
    tensors: Iterable[tuple[str, Tensor | Blocks]],
    *,
    tied: tuple[str, str] | None = None,
) -> None:
    """Puts values into the parameters that lie on the meta device.

    Args:
      network: changed in place. Each value gets the dtype of its parameter.
      tensors: by name of the parameter; blocks become layers that hold them.
      tied: names of the head and of the embedding whose weight it shares, if it does.

    Raises:
      InputError: tensors are missing, surplus, or of another shape or kind.
    """
    state = network.state_dict()
    expected = {name: tensor for name, tensor in state.items() if tensor.is_meta}
    missing = dict.fromkeys(n for n in expected if not tied or n != f"{tied[0]}.weight")
    surplus = []
    for name, value in tensors:
        if name not in state:
            surplus.append(name)
            continue
        missing.pop(name, None)
        if tuple(value.shape) != tuple(state[name].shape):
            raise InputError(
                f"{name} has shape {tuple(value.shape)}, but the configuration makes it "
                f"{tuple(state[name].shape)}; {_ONE_SOURCE}"
            )
        if isinstance(value, Blocks):
            _hold(network, name.removesuffix(".weight"), value)
        else:
            _assign(network, name, value)
    if missing:
        raise InputError(f"the checkpoint lacks {first_of([*missing])}; {_ONE_SOURCE}")
    if surplus:
        names = first_of(surplus)
        raise InputError(
            f"the checkpoint has tensors that this network lacks: {names}; {_ONE_SOURCE}"
        )
    if tied:
        _tie(network, *tied)


def _assign(network: nn.Module, name: str, value: Tensor) -> None:
    if not value.is_floating_point() or value.dtype in _FP8:
        raise InputError(f"{name} is {value.dtype}, but config.json states no quantisation for it")
    parent, _, leaf = name.rpartition(".")
    module = network.get_submodule(parent)
    value = value.to(getattr(module, leaf).dtype)
    if leaf in module._parameters:
        value = nn.Parameter(value, requires_grad=False)
    setattr(module, leaf, value)


def _hold(network: nn.Module, name: str, value: Blocks) -> None:
    with warnings.catch_warnings():  # of tensors over memory that is only read, as these are
        warnings.filterwarnings("ignore", message=".*not writable.*")
        blocks = torch.from_numpy(value.rows)
    module, file = network.get_submodule(name), MappedFile(value.rows)
    if isinstance(module, nn.Embedding):
        scale = getattr(module, "embed_scale", None)
        if isinstance(scale, int | float):
            scale = torch.tensor(float(scale))
        layer = BlockEmbedding(
            value.kind,
            blocks,
            dtype=module.weight.dtype,
            scale=scale,
            is_head=isinstance(module, Embedding) and network.lm_head is None,
            file=file,
        )
    else:
        assert isinstance(module, nn.Linear)
        layer = BlockLinear(
            value.kind, blocks, bias=None if module.bias is None else module.bias.data, file=file
        )
    network.set_submodule(name, layer)


def _tie(network: nn.Module, head: str, embedding: str) -> None:
    module = network.get_submodule(embedding)
    if isinstance(module, BlockEmbedding):
        network.set_submodule(head, TiedHead(module))
    else:
        assert isinstance(module, nn.Embedding)
        network.get_submodule(head).weight = module.weight
