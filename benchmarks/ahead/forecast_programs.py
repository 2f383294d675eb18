"""The training steps of `benchmarks.forecast`, compiled for eight devices without them.

Steps of equal layers are compiled with one layer and with two, and their figures continued to the
model's depth: all of them are sums over layers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.report import Row

LAYERS = {"SR transformer": 14, "Llama-3.1-8B": 32}
WIDTH, HEADS, TOKENS = 768, 12, 48 * 48
"""Width, heads and tokens of the SR transformer: one token a low-resolution pixel, ×4."""
SR_BATCH, LM_TOKENS = 8, 4096
"""Pictures, and tokens of one sequence, on each device."""
FIGURES = ("flops", "bytes", "arguments", "temporaries", "gathered", "reduced")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one device's step."""

    flops: float
    bytes: float
    """Read and written."""
    arguments: float
    """Bytes of state and batch; where parameters are split, the part of one of eight devices."""
    temporaries: float
    gathered: float
    """Bytes of whole arrays that are gathered from all devices, or scattered over them."""
    reduced: float
    """Bytes of arrays that are summed over all devices."""


def continued(one: Figures, two: Figures, layers: int) -> Figures:
    """Figures of a step with so many layers, from those with one and with two."""
    first, second = asdict(one), asdict(two)
    return Figures(**{n: first[n] + (layers - 1) * (second[n] - first[n]) for n in FIGURES})


def figures_of(row: Mapping[str, Any]) -> Figures:
    """From the report of a program compiled ahead, as `as_json` has it."""
    memory, collectives = row["memory_bytes"], row["collectives"]
    moved = {kind: entry["bytes"] for kind, entry in collectives.items()}
    return Figures(
        flops=row["flops_per_device"],
        bytes=row["bytes_per_device"],
        arguments=memory["arguments"],
        temporaries=memory["total"] - memory["arguments"],
        gathered=moved.get("all-gather", 0) + moved.get("reduce-scatter", 0),
        reduced=moved.get("all-reduce", 0),
    )


def compile_layers(model: str, layers: int, topology_name: str) -> Row:
    """The report of one step with so many layers."""
    from jaxsr.interop.aot.compile import compile_ahead
    from jaxsr.interop.aot.report import as_json
    from jaxsr.interop.aot.topology import load_topology

    topology = load_topology(topology_name)
    step, arguments = _STEPS[model](layers, topology)
    name = f"{model}, {layers} layers, {topology_name}"
    ahead = compile_ahead(step, arguments, topology, name=name, training=True)
    return {"program": name, **as_json(ahead)}


def _language_model(layers: int, topology: Any) -> tuple[Any, tuple[Any, ...]]:
    """Fine-tuning of all weights, in bfloat16 with float32 state, split over all devices."""
    import torch
    from torch import nn

    from benchmarks.ahead.aot import LLAMA_3_1_8B
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.network import CausalLM

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes: dict[str, Any] = {**LLAMA_3_1_8B, "num_hidden_layers": layers}
            self.network = CausalLM(LlamaConfig(**sizes))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits, _ = self.network(tokens)
            return nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long()
            )

    with torch.device("meta"):
        loss = Loss()
    devices = len(topology.devices)
    batch = {"tokens": ((devices, LM_TOKENS), "int32")}
    return _step(loss, batch, topology, remat="network.model.layers.*", fsdp=devices)


def _sr_transformer(layers: int, topology: Any) -> tuple[Any, tuple[Any, ...]]:
    """A plain transformer over low-resolution pixels, replicated, its batch split."""
    import torch
    from torch import nn

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, WIDTH, 1)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )  # fmt: skip
            self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, 3 * 16)

        def forward(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
            x = self.embed(low)
            tokens = self.head(self.body(x.flatten(2).transpose(1, 2)))
            planes = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
            return (nn.functional.pixel_shuffle(planes, 4) - high).abs().mean()

    with torch.device("meta"):
        loss = Loss()
    rows, side = SR_BATCH * len(topology.devices), round(TOKENS**0.5)
    batch = {
        "low": ((rows, 3, side, side), "float32"),
        "high": ((rows, 3, 4 * side, 4 * side), "float32"),
    }
    return _step(loss, batch, topology, remat="body.layers.*", fsdp=1)


def _step(
    loss: Any, batch: dict[str, Any], topology: Any, *, remat: str, fsdp: int
) -> tuple[Any, tuple[Any, ...]]:
    """A jitted AdamW step of a module that gives a loss, and its arguments without values."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import PartitionSpec

    from jaxsr.interop import mesh as meshes
    from jaxsr.interop.aot.compile import abstract
    from jaxsr.interop.mesh_shape import MeshShape
    from jaxsr.interop.module import to_jax

    mesh = meshes.make_mesh(
        MeshShape(data=len(topology.devices) // fsdp, fsdp=fsdp), topology.devices
    )
    model = to_jax(loss, compute_dtype=jnp.bfloat16, remat=remat)
    optimizer, names = optax.adamw(1e-5), list(batch)

    def step(params: Any, moments: Any, buffers: Any, batch: Any) -> Any:
        def objective(params: Any) -> Any:
            outputs, _ = model.apply(params, buffers, *(batch[name] for name in names))
            return outputs.astype(jnp.float32)

        value, gradients = jax.value_and_grad(objective)(params)
        if fsdp == 1:
            value, gradients = jax.lax.pmean((value, gradients), meshes.DATA_AXES)
        updates, moments = optimizer.update(gradients, moments, params)
        return value, optax.apply_updates(params, updates), moments

    if fsdp == 1:  # as jaxsr's own step does without a split state: nothing but gradients is sent
        everything, rows = PartitionSpec(), PartitionSpec(meshes.DATA_AXES)
        step = jax.shard_map(
            step, mesh=mesh, in_specs=(everything, everything, everything, rows),
            out_specs=everything, check_vma=False,
        )  # fmt: skip
    moments = jax.eval_shape(optimizer.init, model.params)
    state = model.params, moments
    shardings = meshes.tree_shardings(state, mesh)
    everywhere = meshes.replicated(mesh)
    inputs = {n: jax.ShapeDtypeStruct(s, jnp.dtype(d)) for n, (s, d) in batch.items()}
    arguments = (
        *abstract(state, shardings),
        abstract(model.buffers, everywhere),
        abstract(inputs, meshes.batch_sharding(mesh)),
    )
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=(everywhere, *shardings)), arguments


_STEPS = {"SR transformer": _sr_transformer, "Llama-3.1-8B": _language_model}
