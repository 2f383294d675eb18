"""Reads weights from files that others wrote, without running anything in them.

`.safetensors` files, and files of `torch.save` through `weights_only=True`, under the suffixes that
scripts and libraries give them. Wrappers that training scripts add to a state dict (`state_dict`,
`params_ema`, `module.`, `_orig_mod.`, …) are removed.
"""

import mmap
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from jaxsr.errors import InputError, MissingFileError, first_line, first_of, printable
from jaxsr.interop.weights import open_safetensors, what_it_is
from jaxsr.models.hub import hub_hint

# Averaged weights first: they are the ones that a file holding both is meant to be used with.
WRAPPERS = (
    *("params_ema", "state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "ema"),
    *("params", "state_dict", "net", "model"),
)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, on the CPU, in the file's dtypes.

    A dictionary of dictionaries is followed through the names of `WRAPPERS`, in that order, or
    through the only one of tensors; a leading `module.` that all names share and any `_orig_mod.`
    go.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: another kind of file, a damaged one, one that holds Python objects (they are never
        built), or one that holds no tensors.
    """
    if not path.is_file():
        raise MissingFileError(f"no weights file at {path}; check the path{hub_hint(path)}")
    if path.suffix not in READERS:
        raise InputError(
            f"{path} ends in {path.suffix or 'nothing'!r}; weights are read from "
            f"{', '.join(READERS)} files, and jaxsr/models/weight_files.py says how to add one"
        )
    loaded = READERS[path.suffix](path)
    weights = strip_prefixes(unwrap(loaded, source=str(path)), source=str(path))
    for name, value in weights.items():
        _check_kind(path, name, value)
        if value.nbytes > path.stat().st_size:
            raise InputError(
                f"{path} claims {value.nbytes:,} bytes for {name}, more than the file has; get it "
                "again"
            )
    return weights


def _check_kind(path: Path, name: str, value: Tensor) -> None:
    """Refuses tensors without plain values."""
    of_8_bits = value.dtype.itemsize == 1 and value.is_floating_point()
    kinds = {
        "sparse": value.layout != torch.strided,
        "nested": value.is_nested,
        "without values (of the meta device)": value.device.type == "meta",
        "quantised by torch": value.is_quantized,
        f"{value.dtype}, which needs scales": of_8_bits,
    }
    for kind, is_so in kinds.items():
        if is_so:
            raise InputError(
                f"{path} holds {printable(name, 100)}, which is {kind}; save a plain tensor of "
                "float32"
            )


def _read_safetensors(path: Path) -> object:
    with open_safetensors(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _read_torch(path: Path) -> object:
    if tarfile.is_tarfile(path):
        raise InputError(
            f"{path} is an archive of tar, and not what torch.save writes; unpack it and give the "
            "weights in it"
        )
    if (instead := what_it_is(path)) is not None:
        raise InputError(f"{path} is not a weights file: {instead}")
    try:
        _check_archive(path)
        stand_ins: Any = [(_Ignored, name) for name in _BESIDE_WEIGHTS]
        with warnings.catch_warnings(), torch.serialization.safe_globals(stand_ins):
            # It is loaded all the same, or the error says why not.
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise InputError(
                f"{path} is refused: it holds Python objects, which loading would run; save the "
                "state dict alone, or convert it to safetensors where you trust it"
            ) from error
        raise _damaged(path, error) from error
    except Exception as error:  # a cut-off file raises RuntimeError, EOFError, KeyError, …
        raise _damaged(path, error) from error


class _Ignored:
    """Stands for an object beside the weights, such as a figure of NumPy's; runs nothing of it."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


_BESIDE_WEIGHTS = (
    *("numpy.dtype", "numpy.ndarray", "argparse.Namespace", "pathlib.PosixPath"),
    *(
        f"numpy.{core}.multiarray.{name}"
        for core in ("core", "_core")
        for name in ("scalar", "_reconstruct")
    ),
)
"""Names in the pickles of many training scripts: their best figure, arguments and paths."""


def _check_archive(path: Path) -> None:
    """Rejects a file that asks for more memory than it has bytes, or whose bytes have changed.

    torch's reader of weights calls `bytearray`, whose argument is any number, and unpacks entries
    of an archive, which torch itself stores as they are. A name is not seen in packed ones.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"\nbytearray\n") >= 0:  # how a pickle names it, in protocol 2
            raise pickle.UnpicklingError("a bytearray, which no state dict has")
        is_archive = content[:4] == b"PK\x03\x04"  # as torch decides
        table = _table_of_entries(content) if is_archive else None
    if is_archive:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if archive.start_dir != table:
            raise pickle.UnpicklingError("it does not end as torch.save ends a file")
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > path.stat().st_size:
            raise pickle.UnpicklingError(f"an archive of {unpacked:,} bytes when unpacked")
        packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise pickle.UnpicklingError(
                f"its entry {printable(packed[0], 100)} is compressed, as torch.save writes none"
            )
        with zipfile.ZipFile(path) as archive:
            changed = [entry.filename for entry in entries if not _matches_checksum(archive, entry)]
        if 0 < len(changed) < len(entries):  # all differ where torch.save left checksums out
            raise pickle.UnpicklingError(
                f"its entry {printable(changed[0], 100)} does not match its checksum"
            )


def _matches_checksum(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    """Whether an entry's bytes match their checksum, which torch.load does not ask."""
    try:
        with archive.open(entry) as content:
            while content.read(2**20):
                pass
    except zipfile.BadZipFile:
        return False
    return True


def _table_of_entries(content: mmap.mmap) -> int | None:
    """Where torch finds an archive's table; readers differ in archives that end in another way."""
    end = len(content) - 22
    if end < 0 or content[end : end + 4] != b"PK\x05\x06":
        return None
    if end < 76 or content[end - 20 : end - 16] != b"PK\x06\x07":
        return struct.unpack_from("<I", content, end + 16)[0]
    (record,) = struct.unpack_from("<Q", content, end - 12)  # of archives beyond 4 GiB
    return struct.unpack_from("<Q", content, record + 48)[0] if record == end - 76 else None


TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")  # model.pth.tar
READERS: Mapping[str, Callable[[Path], object]] = {
    ".safetensors": _read_safetensors,
    **dict.fromkeys(TORCH_SUFFIXES, _read_torch),
}
"""Who reads a file of each suffix. To add a format, write a function and give it a line here."""


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as a torch file ({first_line(error)}); it is damaged or cut "
        "short, get it again"
    )


def unwrap(loaded: object, *, source: str) -> dict[str, Tensor]:
    """Finds the state dict inside the dictionary that a training script saved.

    Raises:
      ValueError: there is no dictionary of tensors where state dicts are usually kept.
    """
    if (state := _state_dict_in(loaded, _DEEPEST)) is not None:
        return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    keys = first_of(map(str, loaded)) if isinstance(loaded, Mapping) else type(loaded).__name__
    raise InputError(
        f"{source} holds no state dict: found {keys or 'nothing'}, looked for tensors or one of "
        f"{', '.join(WRAPPERS)}; save the state dict alone"
    )


def _state_dict_in(loaded: object, deepest: int) -> Mapping[object, Tensor] | None:
    """The first state dict by the order of `WRAPPERS`, else the only one below another name."""
    if _is_state_dict(loaded):
        return loaded
    if not isinstance(loaded, Mapping) or deepest == 0:  # one may hold itself
        return None
    named = [_state_dict_in(loaded.get(key), deepest - 1) for key in WRAPPERS]
    states = [state for state in named if state is not None]
    # The counters of an average, which is kept as `ema`, are not weights.
    states.sort(key=lambda state: not any(value.ndim for value in state.values()))
    if states:
        return states[0]
    holding = [value for value in loaded.values() if _is_state_dict(value)]
    return holding[0] if len(holding) == 1 else None


_DEEPEST = 4
"""Dictionaries around a state dict."""


def _is_state_dict(value: object) -> TypeGuard[Mapping[object, Tensor]]:
    if not isinstance(value, Mapping):
        return False
    # `get_extra_state` may return anything.
    parts = [v for n, v in value.items() if not str(n).endswith("_extra_state")]
    return len(parts) > 0 and all(isinstance(part, Tensor) for part in parts)


_PARALLEL = "module."
_AVERAGED = "n_averaged"
"""The counter beside the weights of torch's `AveragedModel`."""


def strip_prefixes(weights: Mapping[str, Tensor], *, source: str) -> dict[str, Tensor]:
    """The same tensors without the prefixes that DataParallel and `torch.compile` add.

    Raises:
      ValueError: two names become one.
    """
    names = list(weights)
    others = [name for name in names if name != _AVERAGED]
    if names != others and others and all(name.startswith(_PARALLEL) for name in others):
        weights, names = {name: weights[name] for name in others}, others
    while True:
        # A compiled submodule also has the prefix inside the name.
        bare = [".".join(p for p in name.split(".") if p != "_orig_mod") for name in names]
        if bare and all(name.startswith(_PARALLEL) for name in bare):
            bare = [name.removeprefix(_PARALLEL) for name in bare]
        if bare == names:
            break
        names = bare
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{source} holds {double!r} both with and without a prefix; save one of the two alone"
        )
    return dict(zip(names, weights.values(), strict=True))


def names_of_tensors(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each name in a state dict, every name of the same tensor: shared weights have several."""
    tensors = module.state_dict(keep_vars=True)
    names: dict[int, tuple[str, ...]] = {}
    for name, tensor in tensors.items():
        names[id(tensor)] = (*names.get(id(tensor), ()), name)
    return {name: names[id(tensor)] for name, tensor in tensors.items()}


def under_names_of(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, without a first component that all names share where only that fits.

    `module`, which is stripped as DataParallel's, comes back where the network's own child has that
    name.
    """
    state = network.state_dict()
    if weights and all(f"{_PARALLEL}{name}" in state for name in weights):
        return {f"{_PARALLEL}{name}": value for name, value in weights.items()}
    bare = {name.partition(".")[2]: value for name, value in weights.items()}
    shared = len({name.partition(".")[0] for name in weights}) == 1
    if shared and not any(map(state.__contains__, weights)) and any(map(state.__contains__, bare)):
        return bare
    return dict(weights)


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], *, source: str) -> None:
    """Copies `weights` into `module`; on an error, leaves it unchanged.

    Args:
      module: takes the values in its dtype and on its device.
      weights: tensors by the module's names; only `num_batches_tracked` may be absent, and all but
        one of the names that share a tensor. Buffers outside the state dictionary are left out.
      source: where the weights are from, for errors.

    Raises:
      ValueError: a name missing or left over, another shape, or what `copy_sound` refuses.
    """
    expected = module.state_dict()
    left_out = {name for name, _ in module.named_buffers()} - expected.keys()
    weights = under_names_of(module, {n: v for n, v in weights.items() if n not in left_out})
    missing = [
        name
        for name, names in names_of_tensors(module).items()
        if not (any(n in weights for n in names) or name.endswith("num_batches_tracked"))
    ]
    unexpected = [name for name in weights if name not in expected]
    shapes = [
        f"{name} is {tuple(weights[name].shape)}, not {tuple(expected[name].shape)}"
        for name in expected
        if name in weights and weights[name].shape != expected[name].shape
    ]
    problems = (("missing", missing), ("unexpected", unexpected), ("misshapen", shapes))
    mismatches = [
        f"{len(names)} {problem}: {first_of(names)}" for problem, names in problems if names
    ]
    if mismatches:
        raise InputError(
            f"{source} does not fit {type(module).__name__}: {'; '.join(mismatches)}; use the "
            "configuration that the weights were trained with"
        )
    copy_sound(module, weights, source=source)


def copy_sound(module: nn.Module, weights: Mapping[str, Tensor], *, source: str) -> None:
    """Copies weights that have names and shapes of the module's; see `load_weights`.

    Raises:
      InputError: a parameter of whole numbers, complex numbers for real ones, or a value that
        `refuse_broken` refuses.
    """
    expected = module.state_dict()
    integral = [
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if name in weights and _is_whole(weights[name]) and not _is_whole(parameter)
    ]
    if integral:
        raise InputError(
            f"{source} holds {weights[integral[0]].dtype} for the parameter {integral[0]}, which "
            "are quantised or not its weights; use a checkpoint of floats"
        )
    imaginary = [
        name for name, value in weights.items()
        if value.is_complex() and not expected[name].is_complex()
    ]  # fmt: skip
    if imaginary:
        raise InputError(
            f"{source} holds complex numbers in {first_of(imaginary)}, where "
            f"{type(module).__name__} has real ones; use another checkpoint"
        )
    refuse_broken(weights, expected, source=source)
    # Absent weights are the module's own memory: copied onto itself, or onto memory it shares.
    module.load_state_dict({**expected, **weights})


def refuse_broken(
    weights: Mapping[str, Tensor], state: Mapping[str, Tensor], *, source: str
) -> None:
    """Refuses weights with NaN, and with infinity where the network's own value is finite.

    A causal mask, which is -inf by its constructor, is sound.

    Args:
      weights: by name.
      state: the network's tensors before the weights are copied into them, in whose dtypes the
        weights count: the largest numbers of float64 are infinite in float32.
      source: where the weights are from, for errors.

    Raises:
      InputError: a weight is refused.
    """

    def dtype(name: str) -> torch.dtype:
        return state.get(name, weights[name]).dtype

    broken = [n for n, value in weights.items() if not _is_sound(value.to(dtype(n)), state.get(n))]
    if broken:
        raise InputError(
            f"{source} holds NaN or infinity in {first_of(broken)}, as {dtype(broken[0])}; use "
            "another checkpoint"
        )


def _is_sound(value: Tensor, present: Tensor | None) -> bool:
    finite = torch.isfinite(value)
    if finite.all() or present is None or value.isnan().any():
        return bool(finite.all())
    return not torch.isfinite(present.to(value.device))[~finite].any()


def _is_whole(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex())


def check_finite(network: nn.Module) -> None:
    """Refuses weights of which every result would be NaN.

    Raises:
      InputError: a parameter has NaN or infinity; blocks of GGUF are not looked into.
    """
    for name, value in network.named_parameters():
        if value.dtype in _COMPARABLE and value.numel() and value.device.type != "meta":
            # The least and largest value of a tensor with a NaN are NaN.
            low, high = torch.aminmax(value.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise InputError(f"{name} has NaN or infinity; get the weights again")


_COMPARABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def exported_weights(folder: Path) -> Path:
    """The network that a run exported last; its best by validation can be named by file.

    Raises:
      FileNotFoundError: the run has not exported weights yet.
      ValueError: the folder holds several weights files.
    """
    files = sorted(p for p in folder.glob("*.safetensors") if not p.stem.endswith(".best"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise MissingFileError(
            f"{folder} holds no exported network (*.safetensors): let the run reach its first "
            "export, or give the weights file itself"
        )
    names = ", ".join(path.name for path in files[:4])
    raise InputError(f"{folder} holds several weights files ({names}); give one of them to --model")
