"""A torch module as a function of its parameters and buffers: a copy of it, which `apply` traces.

Parameters and buffers of the copy are on the meta device, without values. A run swaps them for
traced tensors. All other attributes are copied, so that the user's module is never changed.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike
from torch import nn

from jaxsr.interop._core import module_checks
from jaxsr.interop._core.activation_sharding import stating_results
from jaxsr.interop._core.arguments import to_arrays, to_tensor
from jaxsr.interop._core.attributes import TABLES, Attributes, holds_inputs
from jaxsr.interop._core.autograd_function import checkpointed
from jaxsr.interop._core.containers import map_leaves
from jaxsr.interop._core.deferred import Rewriter
from jaxsr.interop._core.dispatch import Dispatcher
from jaxsr.interop._core.dtypes import cast, to_jax_dtype, to_torch_dtype
from jaxsr.interop._core.forward_gradients import (
    GradientRequested,
    Gradients,
    Sketched,
    Unrecorded,
    recorded,
)
from jaxsr.interop._core.host_draws import DRAWN, calls_by_draws, refusing_host_draws
from jaxsr.interop._core.index_bounds import collecting_indices
from jaxsr.interop._core.located_errors import located
from jaxsr.interop._core.recipes import Recipe
from jaxsr.interop._core.repeated_calls import (
    Calls,
    OtherCall,
    as_inputs,
    equal_calls,
    of_call,
)
from jaxsr.interop._core.shared_memory import OfThisProcess, Originals, Window
from jaxsr.interop._core.slots import Slot, matching, mentions, replaced_mentions
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop._core.tensor_types import Globals
from jaxsr.interop._core.trace import Trace
from jaxsr.interop._core.trace_context import session
from jaxsr.interop._core.trace_scope import is_watched, watched, watching
from jaxsr.interop._core.wide_integers import carried_by_buffer
from jaxsr.interop.annotations import PyTree
from jaxsr.interop.errors import (
    StateOfCallError,
    UnsupportedTorchError,
    first_line,
    remembering_refusals,
)
from jaxsr.interop.python_state import Change, Snapshot, lengthen
from jaxsr.interop.python_values import attributes_of
from jaxsr.interop.torch_evaluation import in_mode

_ERRORS_OF_CODE = (AttributeError, LookupError, TypeError, UnboundLocalError)
"""Errors of code that took a branch for which it was not written."""


class FunctionalModule(OfThisProcess):
    """The copy of a module, and how it is run on arrays."""

    def __init__(
        self,
        module: nn.Module,
        slots: dict[str, Slot],
        aliases: dict[str, str],
        non_persistent: frozenset[str],
        numbers: Mapping[str, torch.Tensor],
    ) -> None:
        self.module = module
        self.numbers = {name: tensor.detach().cpu().clone() for name, tensor in numbers.items()}
        """Buffers that describe the configuration, for code that needs their values in Python."""
        self.numbers_read: set[str] = set()
        self.buffers_written: set[str] = set()
        self.input_written: str | None = None
        """The name of an argument that the last call traced wrote into."""
        self._calls = Calls()
        """Those that were compared with others, because Python state changes."""
        self._traced: dict[tuple[str, bool | None], bool] = {}
        """By method and mode, of those traced so far: whether their code takes gradients."""
        self.originals = Originals({})
        """The trained parameters of the module that was copied."""
        self.windows: dict[int, Window] = {}
        """Tensors in the memory of parameters, by id of the tensors that replace them."""
        self.code_globals: list[Globals] = []
        """The globals of the code that forward may run."""
        self.constants: list[tuple[str, object]] = []
        """Names of buffers, and tensors over the same memory that keep their first values."""
        self.slots = slots
        self.set_on = {n: attributes_of(slot.source(module)) for n, slot in slots.items()}
        """Attributes that code has set on parameters and buffers."""
        self.aliases = aliases
        self.non_persistent = non_persistent
        self.attributes = Attributes(module)
        self.names = {id(sub): name for name, sub in module.named_modules()}
        self.meta_names = {id(slot.source(module)): name for name, slot in slots.items()}
        # Lists and attributes that mention registered tensors a second time (nn.LSTM keeps one).
        self.mentions = [
            (sub, key, value)
            for sub in module.modules()
            for key, value in vars(sub).items()
            if key not in TABLES and mentions(value, self.meta_names)
        ]

    @property
    def keeps_state(self) -> bool:
        """Whether a call that was traced left Python state."""
        return self._calls.leave_state()

    def wrap_remat(self, patterns: tuple[str, ...]) -> None:
        """Recomputes activations of the submodules whose names match, in the backward pass."""
        for name in matching([n for n in self.names.values() if n], patterns, "submodule"):
            sub = self.module.get_submodule(name)
            sub.forward = checkpointed(sub.forward)

    def run(
        self,
        params: Mapping[str, ArrayLike],
        buffers: Mapping[str, ArrayLike],
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        rng: jax.Array | None,
        train: bool | None,
        method: str,
        compute_dtype: np.dtype | None,
        rewriter: Rewriter | None = None,
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Runs `JaxModule.apply`: the method's result, and the buffers after it."""
        module_checks.check_names(self.slots, params, buffers)
        if is_watched() and (method, train) not in self._traced:
            # The first trace may be repeated, and a watcher is to see one.
            with watched(None):
                jax.eval_shape(
                    lambda: self.run(
                        params, buffers, inputs, kwargs, rng, train, method, compute_dtype, rewriter
                    )[1]
                )

        states_before = list[Snapshot]()  # of each trace: one that is repeated changes shared state

        def called(
            trace: Trace, arguments: PyTree = (inputs, kwargs), method: str = method
        ) -> PyTree:
            """The method's result in a trace, whose tensors are in their places."""
            args, kw = map_leaves(lambda x: to_tensor(trace, x, compute_dtype), arguments)
            versions = module_checks.input_versions((*args, kw))
            with (
                remembering_refusals() as trace.refusals,
                refusing_host_draws(self.module) as drawn,
                watching(self.module, args, kw),
            ):
                # Calling the module, not its method, runs its own hooks.
                result = getattr(self.module, method if method != "forward" else "__call__")(
                    *args, **kw
                )
            if trace.refusals:  # which the module's code has caught
                raise trace.refusals[0]
            trace.host_draws = drawn
            self.input_written = module_checks.written_input(versions, (*args, kw))
            return to_arrays(trace, result)

        def wrapped(trace: Trace, number: int | None = None) -> dict[str, JaxTensor]:
            """The registered tensors; for a trial, of the call of that number."""
            arrays = {**params, **buffers}
            if number is not None:
                moving = {n for n, s in self.slots.items() if s.trainable} | self.buffers_written
                arrays |= {n: of_call(arrays[n], number) for n in moving}
            trace.registered = tensors = {
                name: self._wrap(trace, name, slot, arrays, compute_dtype)
                for name, slot in self.slots.items()
            }
            return tensors

        def traced(
            gradients: Gradients | None = None, *, compiling: bool
        ) -> tuple[PyTree, dict[str, jax.Array]]:
            if gradients is None and self._traced.get((method, train)):
                gradients = recorded(partial(traced, compiling=compiling))
            gradients = gradients or Unrecorded()
            outputs, after, settled = None, dict[str, jax.Array](), False
            changes, carried, moves = list[Change](), "", True
            trace = self._new_trace(rng, rewriter, gradients)
            with session(trace, compiling=compiling), suppress(GradientRequested):
                tensors = wrapped(trace)
                with (
                    self._swapped(tensors, train) as state,
                    stating_results(self.module),
                    self.attributes.guarded(),
                ):
                    before = self.attributes.snapshot()
                    states_before.append(state)
                    try:
                        outputs = called(trace)
                        settled = self.attributes.check(before, trace, tensors, outputs)
                        after = self._buffers_after(trace, tensors, buffers)
                        changes = state.changes()
                        if trace.has_functions:
                            trace.left = self.attributes.plain()
                        carried = self.attributes.carried(changes)
                        changes = self.attributes.unjudged(changes)
                        moves = self.attributes.may_move(changes, trace, self.buffers_written)
                    except Exception as e:  # perhaps because of a refused operation whose error was
                        # caught
                        error = trace.refusals[0] if trace.refusals else e
                        raise located(error, self.module, self.names) from None
            if isinstance(gradients, Unrecorded) and gradients.requested:
                self._traced[method, train] = True
                return traced(compiling=compiling)
            if not settled:
                return traced(gradients, compiling=compiling)
            key = method, train, compiling
            others = self._calls.others(key, (inputs, kwargs), carried)
            if others is not None:
                with states_before[0].as_it_was() if carried else nullcontext():
                    if changes or trace.host_draws:
                        check_second_call(changes, moves, trace.host_draws, compiling=compiling)
                    for other in others:
                        check_other_call(other, compiling=compiling)
                self._calls.add(key, (inputs, kwargs), carried)
            self._traced.setdefault((method, train), False)
            trace.repeated_code.warn()
            self.attributes.warn()
            return outputs, after

        def check_second_call(
            changes: list[Change], moves: bool, drawn: list[str], *, compiling: bool
        ) -> None:
            """Refuses Python state and draws that another call changes again, or shows."""
            moves |= bool(drawn)  # otherwise both calls have the same parameters and buffers
            changed_again = list[Change]()
            reason = self.attributes.describe(changes[0]) if changes else DRAWN.format(drawn[0])

            def program() -> list[PyTree]:
                trace = self._new_trace(rng, rewriter, Sketched())
                results = list[PyTree]()
                with session(trace, compiling=compiling):
                    tensors = wrapped(trace, 0 if moves else None)
                    with self._swapped(tensors, train, repeated=True):
                        for number in calls_by_draws():
                            state, trace.draws = Snapshot(self.module), 0
                            trace.rng = rng if rng is None else of_call(rng, number)
                            with stating_results(self.module), self.attributes.guarded():
                                result = called(trace, as_inputs((inputs, kwargs), number))
                                results.append(
                                    (result, self._buffers_after(trace, tensors, buffers))
                                )
                            if number == 1:
                                changed_again[:] = self.attributes.unjudged(state.changes())
                                # Lists that grow in every call must not be read.
                                lengthen(changed_again)
                            after = wrapped(trace, number + 1 if moves else None)
                            tensors = self._place(after, tensors)
                return results

            try:
                with watched(None), collecting_indices():
                    equal = equal_calls(program)
            except UnsupportedTorchError:
                raise
            except Exception as error:
                what = f"{reason} (a second call fails: {first_line(error)})"
                raise UnsupportedTorchError(what) from error
            for change in changed_again:
                if not (change.is_growth or (change.holds_tensors and not change.is_new)):
                    first = next((one for one in changes if one.path == change.path), change)
                    raise UnsupportedTorchError(self.attributes.describe(first))
            if not equal:
                raise UnsupportedTorchError(f"{reason} (a second call computes something else)")

        def check_other_call(other: OtherCall, *, compiling: bool) -> None:
            """Refuses Python state with which a call computes something else after another one."""
            modes = train, other.train
            methods = method, other.method

            def program() -> list[PyTree]:
                trace = self._new_trace(rng, rewriter, Sketched())
                results: list[PyTree] = [[None, None], [None, None]]
                calls = [as_inputs(each) for each in ((inputs, kwargs), other.zeros())]
                with session(trace, compiling=compiling):
                    for first in (0, 1):
                        tensors = wrapped(trace)  # the same in both calls
                        with self._swapped(tensors, modes[first], repeated=True):
                            for number, which in enumerate((first, 1 - first)):
                                if number:
                                    tensors = self._place(wrapped(trace), tensors)
                                    if modes[which] is not modes[first]:
                                        in_mode(self.module, bool(modes[which]))
                                trace.draws = 0
                                with stating_results(self.module), self.attributes.guarded():
                                    result = called(trace, calls[which], methods[which])
                                    after = self._buffers_after(trace, tensors, buffers)
                                    results[number][which] = (result, after)
                return results

            written, equal = self.input_written, True
            with watched(None), collecting_indices(), suppress(Exception):
                equal = equal_calls(program)  # an order of calls that fails says so in torch too
            self.input_written = written
            if not equal:
                raise StateOfCallError(f"{other.reason} ({other.difference(method, train)})")

        try:
            return traced(compiling=True)
        except _ERRORS_OF_CODE as error:
            # Some code fails only while torch compiles: T5's kin expect a mask then.
            try:
                return traced(compiling=False)
            except Exception:
                raise error from None

    def _new_trace(
        self, rng: jax.Array | None, rewriter: Rewriter | None, gradients: Gradients
    ) -> Trace:
        """A trace that knows the module's tensors and code."""
        trace = Dispatcher(rng, rewriter, gradients)
        trace.originals, trace.windows = self.originals, self.windows
        trace.placeholders, trace.code_globals = self.meta_names, self.code_globals
        return trace

    def _wrap(
        self,
        trace: Trace,
        name: str,
        slot: Slot,
        arrays: Mapping[str, ArrayLike],
        compute: np.dtype | None,
    ) -> JaxTensor:
        array = jnp.asarray(arrays[name])
        dtype = slot.dtype
        if compute is not None and slot.dtype.is_floating_point and not slot.statistics:
            array, dtype = cast(array, compute), to_torch_dtype(compute)
        elif array.dtype != to_jax_dtype(dtype):
            # Parameters may be handed over in another precision than the module was built with.
            dtype = to_torch_dtype(array.dtype)
        owner = f"the parameter {name}" if slot.is_parameter and slot.trainable else ""
        tensor = trace.wrap(array, dtype, owner)
        tensor.needs_grad = slot.trainable
        tensor.cell.input_free, tensor.cell.is_learned = True, slot.trainable
        trace.state.add(tensor.cell)
        if name in self.numbers:
            Recipe(partial(self._number, name, array)).describe(tensor)
        if slot.is_parameter:
            tensor._is_param = tensor.is_marked_leaf = True
        vars(tensor).update(self.set_on[name])
        return tensor

    def _number(self, name: str, array: jax.Array) -> torch.Tensor:
        """The value of a buffer that describes the configuration."""
        if not isinstance(array, jax.core.Tracer):
            return torch.from_numpy(np.array(array)).to(self.numbers[name].dtype)
        self.numbers_read.add(name)
        return self.numbers[name]

    def _place(
        self, tensors: dict[str, JaxTensor], before: dict[str, JaxTensor] | None = None
    ) -> dict[str, JaxTensor]:
        """Puts tensors where the module has its own, or those of a call before."""
        for name, slot in self.slots.items():
            for path, kind, key in slot.places:
                getattr(self.module.get_submodule(path), kind)[key] = tensors[name]
        new = {t: tensors[n] for t, n in self.meta_names.items()}
        if before is not None:
            new = {id(tensor): tensors[n] for n, tensor in before.items()}
        for m, key, value in self.mentions:
            vars(m)[key] = replaced_mentions(value if before is None else vars(m)[key], new)
        return tensors

    @contextmanager
    def _swapped(
        self, tensors: dict[str, JaxTensor], train: bool | None, *, repeated: bool = False
    ) -> Generator[Snapshot]:
        """Runs the block with these tensors, in this mode; the module is then as it was.

        Args:
          tensors: by name.
          train: the mode.
          repeated: whether the block is a trial, whose effects must not be visible outside.

        Yields:
          The Python state at its beginning.
        """
        modules = list(self.module.modules())
        saved = [(m, dict(vars(m)), {k: dict(vars(m)[k]) for k in TABLES}) for m in modules]
        state = None
        try:
            self._place(tensors)
            state = Snapshot(self.module)
            if train is not None:
                in_mode(self.module, train)
                module_checks.check_mode(self.module, self.slots, tensors, train)
            # The changes train() itself makes are made in each call, from the same state.
            has_own = any(type(m).train is not nn.Module.train for m in modules)
            yield Snapshot(self.module) if has_own else state
        finally:
            if state is not None:
                state.restore(shared=repeated)
            for m, attributes, tables in saved:
                for kind, table in tables.items():
                    attributes[kind].clear()
                    attributes[kind].update(table)
                vars(m).clear()
                vars(m).update(attributes)

    def _buffers_after(
        self, trace: Trace, tensors: Mapping[str, JaxTensor], buffers: Mapping[str, ArrayLike]
    ) -> dict[str, jax.Array]:
        """The buffers by name, as a call has left them.

        Raises:
          UnsupportedTorchError: the call replaced a parameter, or a buffer under one of its names,
            or changed their attributes, or wrote a value that Python code needs.
        """
        after: dict[str, jax.Array] = {}
        if made := module_checks.tensors_made(self.module, {*self.slots, *self.aliases}):
            raise UnsupportedTorchError(made)
        module_checks.refuse_backward_hooks(self.module)
        is_mixed = any(tensors[n].dtype != slot.dtype for n, slot in self.slots.items())
        for name, slot in self.slots.items():
            everywhere = [
                getattr(self.module.get_submodule(path), kind).get(key)
                for path, kind, key in slot.places
            ]
            current = everywhere[0]
            if any(other is not current for other in everywhere):
                raise UnsupportedTorchError(
                    f"forward replaces {name} under one of its names alone; write into it"
                )
            if isinstance(current, JaxTensor) and not current.has_set(self.set_on[name]):
                raise UnsupportedTorchError(
                    f"forward changes attributes of the tensor {name}, which the next call would "
                    "not see; keep them in a buffer"
                )
            if slot.trainable:
                if current is not tensors[name] or current.is_moved:
                    raise UnsupportedTorchError(
                        f"forward replaces the parameter {name}, which would keep the value in "
                        "torch and lose it here; register a buffer, or requires_grad_(False)"
                    )
                if not current.needs_grad:
                    raise UnsupportedTorchError(
                        f"forward leaves requires_grad of {name} False, which the next call would "
                        "not see; set it before to_jax, or back to True"
                    )
                continue
            original = jnp.asarray(buffers[name])
            if current is tensors[name] and current.cell.version == 0 and not current.is_moved:
                after[name] = original
                continue
            has_shape = isinstance(current, torch.Tensor) and current.shape == original.shape
            if not has_shape and name in self.non_persistent and not holds_inputs(current):
                after[name] = original  # a cache of constants, which every trace makes anew
                continue
            self.buffers_written.add(name)
            module_checks.refuse_old_mentions(self.mentions, name, current, tensors[name])
            module_checks.refuse_other_form(name, current, tensors[name], is_mixed=is_mixed)
            if current is not tensors[name]:
                module_checks.refuse_memory_of_another(self.module, self.slots, name, current)
            after[name] = cast(
                carried_by_buffer(trace.as_jax_tensor(current), name), original.dtype
            )
        for name, constant in self.constants:
            is_read = isinstance(constant, np.ndarray) or id(constant) in trace.adopted
            if name in self.buffers_written and is_read:
                raise UnsupportedTorchError(
                    f"forward writes the buffer {name}, and reads another tensor over the same "
                    "memory, which would keep its first values; read the buffer itself"
                )
        for name in self.numbers_read & self.buffers_written:
            raise UnsupportedTorchError(
                f"forward writes the buffer {name}, and needs its value in Python (.item(), a "
                "branch or size); a compiled function would see one value for ever: make it an "
                "argument, or use torch.where"
            )
        return after
