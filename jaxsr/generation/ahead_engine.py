"""The JAX engine with shapes in the place of arrays: it compiles programs, and runs none.

Every method is `JaxDecoder`'s own up to where numbers are needed: weights and inputs are shapes on
the devices of a topology, a program is compiled for these, and "runs" by giving the shapes of its
results. So whoever drives it as a run would has the programs of that run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsr.generation import sharding
from jaxsr.generation.decoder import BatchSnapshot
from jaxsr.generation.jax_decoder import Batch, JaxDecoder
from jaxsr.generation.jax_network import JaxNetwork
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.packed_layers import Packed
from jaxsr.generation.stored_programs import exported_program
from jaxsr.interop.aot.compile import Ahead, abstract, compile_lowered
from jaxsr.interop.aot.topology import Topology
from jaxsr.models.cache_entries import has_slots


@dataclass(kw_only=True)
class _PlannedRows:
    """A batch's numbers that decide how it goes on, as the programs would count them."""

    left: np.ndarray
    """Tokens that each row has yet to make; 0 for one that has ended."""
    length: np.ndarray
    """Tokens of each row."""
    reach: int
    """Slots that are filled, where rows share them."""

    def select(self, rows: Sequence[int]) -> "_PlannedRows":
        return _PlannedRows(left=self.left[rows], length=self.length[rows], reach=self.reach)

    def admit(self, row: int, length: int, new_tokens: int) -> None:
        self.left[row], self.length[row] = 0, length
        self.realign()
        self.reach, self.left[row] = max(self.reach, length), new_tokens - 1

    def realign(self) -> None:
        self.reach = int(self.length[self.left > 0].max(initial=0))

    def advance(self, steps: int, least_running: int) -> None:
        lefts = np.sort(self.left)[::-1]
        steps = min(steps, int(lefts[least_running - 1]) if least_running <= len(lefts) else 0)
        made = np.minimum(self.left, steps)
        self.left, self.length, self.reach = (
            self.left - made,
            self.length + made,
            self.reach + steps,
        )


class _Shapes(JaxNetwork):
    """A network whose weights are shapes."""

    def _placed(self, network: Any, *, keeps_values: bool) -> dict[str, Any]:
        shapes = self._stored.shapes_of(network)
        return abstract(shapes, self._layout.weight_shardings(shapes, self._stored.turned))


class AheadEngine(_Shapes, JaxDecoder):
    """Compiles for a topology the programs that an engine on its devices would run.

    Which programs a run of several prompts needs depends on when outputs end. Here each has all the
    tokens that the options allow, one a step, as though the model knew no stop token.

    Args:
      network: the torch module, on the meta device or not.
      topology: where to compile to.
      devices: that weights and cache are split over. Default: all of them.
      packed, draft: as for `JaxDecoder`.
    """

    def __init__(
        self,
        network: Any,
        topology: Topology,
        *,
        devices: int | None = None,
        packed: Packed = "exact",
        draft: Any = None,
    ) -> None:
        self.reports: list[Ahead] = []
        self._topology = topology
        self._rows: dict[Batch, _PlannedRows] = {}
        mesh = Mesh(np.array(list(topology.devices)[:devices]), (sharding.AXIS,))
        super().__init__(network, mesh=mesh, packed=packed, draft=draft)

    def _of_draft(self, draft: Any, **options: Any) -> JaxNetwork:
        return _Shapes(draft, **options)

    def compile(
        self, options: SamplingOptions, *, batch: int, prompt: int, slots: int
    ) -> tuple[Ahead, Ahead]:
        """The prefill of a batch of prompts, and the decode loop that follows it.

        Args:
          options: of sampling.
          batch: prompts at once.
          prompt: tokens of each, padding included.
          slots: of the cache, for prompt and output.
        """
        begin = len(self.reports)
        started = self.start([[0] * prompt] * batch, range(batch), options, slots=slots)
        self.advance(started, options.max_new_tokens)
        made = {report.name.partition(" ")[0]: report for report in self.reports[begin:]}
        return made["prefill"], made["decode"]

    # ---- programs

    def _replicated(self, *arrays: Any) -> tuple[Any, ...]:
        everywhere = sharding.replicated(self.mesh)
        return tuple(abstract(jax.tree.map(np.asarray, array), everywhere) for array in arrays)

    def _fetched(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)

    def _traced(
        self, key: tuple[Any, ...], function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Callable[..., Any]:
        return exported_program(function, args, platform=self._topology.device.platform).call

    def _compiled(
        self, name: str, lowered: Any, options: dict[str, str | bool] | None
    ) -> Callable[..., Any]:
        report = compile_lowered(lowered, self._topology, name=name, options=options)
        self.reports.append(report)
        if report.compiled is not None:
            results = abstract(lowered.out_info, report.compiled.output_shardings)
        else:
            results = jax.tree_util.tree_map_with_path(self._assumed, lowered.out_info)
        return lambda *_: results

    def _assumed(self, path: tuple[Any, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        """A result of a program that does not compile, for those after it."""
        name = next((k.key for k in reversed(path) if isinstance(k, jax.tree_util.DictKey)), "")
        of_cache = len(leaf.shape) == 4 and (name == "cache" or has_slots(str(name)))
        where = sharding.replicated(self.mesh)
        if of_cache:
            where = self._layout.cache_sharding(leaf.shape[1])
        return abstract(leaf, where)

    # ---- parts that need values

    def _start(self, batch: Batch, tokens: np.ndarray, length: np.ndarray) -> None:
        super()._start(batch, tokens, length)
        left = np.full(len(length), batch.options.max_new_tokens - 1)
        self._rows[batch] = _PlannedRows(left=left, length=length.copy(), reach=tokens.shape[1])

    def widen(self, batch: Batch, rows: int) -> None:
        super().widen(batch, rows)
        wide = self._rows[batch].select([0] * rows)
        wide.left[1:] = 0
        self._rows[batch] = wide

    def start_empty(self, *args: Any, **kwargs: Any) -> Batch:
        batch = super().start_empty(*args, **kwargs)
        none = np.zeros(batch.rows, int)
        self._rows[batch] = _PlannedRows(left=none, length=none.copy(), reach=0)
        return batch

    def admit(self, batch: Batch, row: int, prompt: Sequence[int], request: int, seed: int) -> None:
        super().admit(batch, row, prompt, request, seed)
        self._rows[batch].admit(row, len(prompt), batch.options.max_new_tokens)

    def admit_packed(
        self,
        batch: Batch,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        requests: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        super().admit_packed(batch, rows, prompts, requests, seeds)
        for row, prompt in zip(rows, prompts, strict=True):
            self._rows[batch].admit(row, len(prompt), batch.options.max_new_tokens)

    def resize(self, batch: Batch, keep: Sequence[int], *, rows: int, slots: int) -> None:
        super().resize(batch, keep, rows=rows, slots=slots)
        selected = self._rows[batch].select([*keep, *[0] * (rows - len(keep))])
        selected.left[len(keep) :] = 0
        self._rows[batch] = selected

    def _decode(self, batch: Batch, steps: int, least_running: int) -> None:
        super()._decode(batch, steps, least_running)
        self._rows[batch].advance(steps, least_running)

    def _reach(self, batch: Batch) -> int:
        return self._rows[batch].reach

    def _realign(self, batch: Batch) -> None:
        super()._realign(batch)
        self._rows[batch].realign()

    def running(self, batch: Batch) -> np.ndarray:
        return self._rows[batch].left > 0

    def outputs(self, batch: Batch) -> np.ndarray:
        return np.zeros((batch.rows, 1), np.int32)

    def logprobs(self, batch: Batch, row: int) -> None:
        return None

    def snapshot(self, batch: Batch) -> BatchSnapshot:
        """Without a cache: it is for a file, which is not written."""
        ones = np.ones(batch.rows, np.int32)
        return BatchSnapshot(
            cache={},
            filled=ones,
            token=ones,
            done=ones > 0,
            prompt=ones[:, None],
            outputs=ones[:, None],
            requests=batch.requests,
            seeds=batch.seeds,
        )
