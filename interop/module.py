"""A torch module as a pure JAX function.

`to_jax(module)` gives its parameters and buffers as JAX arrays under torch's names, and `apply`, a
pure function of them. Layouts, names and semantics stay torch's (NCHW images, eager in-place
writes, `no_grad`); an operation that cannot match torch raises `UnsupportedTorchError`.

    jm = to_jax(module)
    outputs, buffers = jm.apply(jm.params, jm.buffers, images, rng=key, train=True)
"""

import dataclasses
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from torch import nn

from jaxsr.interop._core.functional_module import FunctionalModule
from jaxsr.interop._core.functionalize import functionalize
from jaxsr.interop._core.registry import Operator, register_user_lowering
from jaxsr.interop._core.slots import array_of
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import InputError, InputTypeError, printable
from jaxsr.interop.folding.policy import LaneFolding
from jaxsr.interop.folding.rules import FoldingRewriter
from jaxsr.interop.fork_guard import check_not_forked, guard_forks
from jaxsr.ops._explicit_axes import explicit_mesh, with_automatic_axes

Arrays = dict[str, jax.Array]
Lowering = TypeVar("Lowering", bound=Callable[..., Any])


class Unset(enum.Enum):
    """The value of an argument that was not given, where None means something."""

    UNSET = "False"


UNSET = Unset.UNSET


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class JaxModule:
    """A torch module converted by `to_jax`: its state as arrays, its code as a pure function."""

    params: Arrays
    """Parameters with `requires_grad`, by torch name; tied ones once, under their first name."""
    buffers: Arrays
    """Buffers, persistent or not, and frozen parameters, by torch name."""
    aliases: Mapping[str, str]
    """Further names of tied tensors → the name that holds them, for state dictionaries."""
    non_persistent: frozenset[str]
    """Names in `buffers` that torch leaves out of its state dictionary."""
    frozen: frozenset[str]
    """Names in `buffers` that are parameters without `requires_grad`."""
    compute_dtype: np.dtype[Any] | None = None
    """Floating dtype of the computation; None keeps each tensor's own."""
    lane_folding: LaneFolding | None = None
    """How narrow convolutions are folded into a TPU's lanes; None computes them as they are."""
    functional: FunctionalModule = dataclasses.field(repr=False)
    """The private copy of the module, without values, that is traced."""

    @property
    def written(self) -> frozenset[str]:
        """Names in `buffers` that a call of `apply` so far has written."""
        return frozenset(self.functional.buffers_written)

    def apply(
        self,
        params: Mapping[str, ArrayLike],
        buffers: Mapping[str, ArrayLike],
        /,
        *inputs: PyTree,
        rng: jax.Array | None = None,
        train: bool | Unset | None = UNSET,
        method: str = "forward",
        **kwargs: PyTree,
    ) -> tuple[PyTree, Arrays]:
        """Runs a method of the module; pure, so usable under any JAX transformation.

        Args:
          params: as `self.params`, possibly updated.
          buffers: as `self.buffers`, possibly updated.
          *inputs: arguments of the method: pytrees of arrays; anything else passes through.
          rng: key for whatever the method draws. The same key gives the same numbers.
          train: True or False as in `module.train(...)`; None leaves every submodule as it was
            when converted. Default: False.
          method: name of the module's method to run.
          **kwargs: keyword arguments of the method.

        Returns:
          The method's result with arrays for tensors, and the buffers after the call.

        Raises:
          UnsupportedTorchError: the module does something that JAX would compute differently.
          ValueError: `params` or `buffers` lack a name, or have one that the module does not.
          InputError: the method has an argument named as one of these; `call` takes both.
        """
        is_set = {
            "rng": rng is not None,
            "train": train is not UNSET,
            "method": method != "forward",
        }
        if clash := self._argument_named([n for n, s in is_set.items() if s], method, len(inputs)):
            raise InputError(
                f"{clash}= may be an argument of {method} or of apply; use "
                f"call(params, buffers, args, {{{clash!r}: …}}, {clash}=…), each in its place"
            )
        mode = False if isinstance(train, Unset) else train
        return self.call(params, buffers, inputs, kwargs, rng=rng, train=mode, method=method)

    def call(
        self,
        params: Mapping[str, ArrayLike],
        buffers: Mapping[str, ArrayLike],
        args: tuple[PyTree, ...] = (),
        kwargs: Mapping[str, PyTree] | None = None,
        *,
        rng: jax.Array | None = None,
        train: bool | None = False,
        method: str = "forward",
    ) -> tuple[PyTree, Arrays]:
        """Like `apply`, with the method's arguments apart, whatever their names are::

            # of a `forward(self, x, train)`
            outputs, buffers = jm.call(jm.params, jm.buffers, (x,), {"train": True}, train=False)

        Args:
          params, buffers: as those of `apply`.
          args: positional arguments of the method: pytrees of arrays; anything else passes through.
          kwargs: its keyword arguments, likewise.
          rng, train, method: as those of `apply`.

        Returns:
          The outputs, and all buffers after the run, as `apply` does.

        Raises:
          InputTypeError: `params` or `buffers` is not a dictionary, or `train` is not a mode.
          UnsupportedTorchError, ValueError: as from `apply`.
        """
        check_not_forked()
        for name, table in (("params", params), ("buffers", buffers)):
            if not isinstance(table, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputTypeError(
                    f"{name} must be a dictionary of arrays, got {type(table).__name__}; apply "
                    "takes params, buffers, then the method's inputs"
                )
        if train not in (True, False, None):
            raise InputTypeError(f"train must be True, False or None, got {train!r}")

        def run(state: Any, arguments: Any) -> Any:
            return self.functional.run(
                state[0],
                state[1],
                arguments[0],
                arguments[1],
                rng,
                train,
                method,
                self.compute_dtype,
                None if self.lane_folding is None else FoldingRewriter(self.lane_folding),
            )

        state, arguments = (params, buffers), (tuple(args), dict(kwargs or {}))
        if (mesh := explicit_mesh((arguments, state))) is None:
            return run(state, arguments)
        return with_automatic_axes(run, mesh, state, arguments)

    def _argument_named(self, names: Sequence[str], method: str, given: int) -> str | None:
        """The first of these names that is an argument of the method, after `given` others."""
        function = getattr(self.functional.module, method, None)
        if not names or function is None:
            return None
        try:
            taken = [*inspect.signature(function).parameters][given:]
        except (TypeError, ValueError):  # of a function without a signature
            return None
        return next((name for name in names if name in taken), None)


def check_is_module(module: object, function: str) -> None:
    """Refuses anything but a module, in the name of the function that takes it.

    Raises:
      InputError: this process was forked from one that had started JAX.
      InputTypeError: it is a class of modules or something else.
    """
    check_not_forked()  # before torch runs it: OpenMP's threads are not in the child either
    if isinstance(module, nn.Module):
        return
    got = printable(repr(module), 80)
    if inspect.isclass(module) and issubclass(module, nn.Module):
        got = f"the class {module.__name__}; make a module of it"
    raise InputTypeError(f"{function} takes a torch.nn.Module, got {got}")


def to_jax(
    module: nn.Module,
    *,
    compute_dtype: DTypeLike | None = None,
    remat: str | Sequence[str] = (),
    static_buffers: str | Sequence[str] = (),
    sync_axis: str | tuple[str, ...] | None = None,
    lane_folding: LaneFolding | None = None,
) -> JaxModule:
    """Converts a torch module; the module itself is neither changed nor kept.

    Args:
      module: on any device, in either mode. On the meta device its tensors become
        `jax.ShapeDtypeStruct`, for compiling ahead of time without weights.
      compute_dtype: `jnp.bfloat16` or another float dtype for the computation. Floating parameters,
        buffers and inputs are cast to it inside `apply`, normalisation statistics stay float32,
        and gradients come back in the parameters' own dtype.
      remat: names of submodules, `fnmatch` patterns allowed (`"body.*"`), whose activations are
        recomputed in the backward pass instead of kept (`jax.checkpoint`).
      static_buffers: names of buffers, `fnmatch` patterns allowed, whose values Python code needs
        (`if self.initted:`). Under `jit` code sees the values that they have now; a forward that
        also writes them is refused. Whole numbers with `persistent=False` are such by themselves.
      sync_axis: mesh axes over which `nn.SyncBatchNorm` takes its statistics inside `shard_map`.
        Not needed under `jit` on a sharded batch, where every normalisation sees the whole batch.
      lane_folding: how to fold narrow convolutions into a TPU's lanes: `choose_folding("auto",
        device)` of `jaxsr.interop`. Default: not at all.

    Raises:
      UnsupportedTorchError: the module holds something without a faithful JAX counterpart; the
        message names the submodule and a workaround.
      InputError: a pattern of `remat` or `static_buffers` matches nothing, or `compute_dtype` is
        not floating.
    """
    guard_forks()
    check_is_module(module, "to_jax")
    try:
        dtype = None if compute_dtype is None else jnp.dtype(compute_dtype)
    except TypeError:
        raise InputTypeError(f"compute_dtype must be a dtype, got {compute_dtype!r}") from None
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(f"compute_dtype must be a floating dtype, got {dtype}")
    patterns = (remat,) if isinstance(remat, str) else tuple(remat)
    static = (static_buffers,) if isinstance(static_buffers, str) else tuple(static_buffers)
    functional = functionalize(module, patterns, sync_axis, static)
    params: Arrays = {}
    buffers: Arrays = {}
    for name, slot in functional.slots.items():
        array = array_of(slot.source(module), name)
        (params if slot.trainable else buffers)[name] = array
    return JaxModule(
        params=params,
        buffers=buffers,
        aliases=functional.aliases,
        non_persistent=functional.non_persistent,
        frozen=frozenset(n for n in buffers if functional.slots[n].is_parameter),
        compute_dtype=dtype,
        lane_folding=lane_folding,
        functional=functional,
    )


def lowering(*operators: Operator) -> Callable[[Lowering], Lowering]:
    """Decorates a JAX function that computes an operator, in front of all others::

        @lowering("my_library::double")
        def double(x):
            return 2 * x

    An operator of another library needs one only where its code cannot be traced: a decomposition
    and the Python function of a `torch.library.custom_op` are used by themselves, with its
    registered backward. A second lowering of an operator replaces the first. Operators that jaxsr
    itself lacks belong in a file of `interop/lowerings`.

    Args:
      *operators: "namespace::op" or "namespace::op.overload", whether or not the library is
        imported yet; an overload, for instance `torch.ops.aten.sinc.default`; or an operator, for
        all its overloads. The function takes JAX arrays where the operator takes tensors and
        returns arrays, differentiable by JAX. Shape and dtype are compared with those of torch's
        meta device (`torch.library.register_fake`).

    Raises:
      InputError: an operator writes into its argument, or returns a view of it; a name is not of
        the form "namespace::op".
    """

    def register(function: Lowering) -> Lowering:
        for operator in operators:
            register_user_lowering(operator, function)
        return function

    return register
