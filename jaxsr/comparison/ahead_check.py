"""`python -m jaxsr.check --model MODEL --aot v5e:1x1`: a model, compiled ahead of time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_command import load
from jaxsr.comparison.check_options import CheckConfig
from jaxsr.comparison.jax_runs import JaxRuns, Named
from jaxsr.errors import InputError
from jaxsr.interop.aot.compile import Ahead, abstract, compile_ahead
from jaxsr.interop.folding.policy import choose_folding
from jaxsr.interop.mesh import batch_sharding, make_mesh, replicated
from jaxsr.interop.module import to_jax
from jaxsr.runtime.aot import Compile, compile_batches, prepare


def run(config: CheckConfig) -> int:
    """Runs the command with `--aot`; returns its exit status."""
    topology = prepare(config)
    loaded, (args, kwargs) = load(config)
    arguments = Arguments.of(args, kwargs)
    rows = arguments.rows
    if rows is None:
        raise InputError("--aot splits a batch, but the inputs share no batch axis; give --input")
    mesh = make_mesh(len(topology.devices), topology.devices)
    module = to_jax(
        loaded.network,
        compute_dtype=None if config.dtype == "float32" else jnp.dtype(config.dtype),
        lane_folding=choose_folding(config.lane_folding, topology.devices[0]),
    )
    evaluate = JaxRuns(module, arguments).forward(train=False)
    same, split = replicated(mesh), batch_sharding(mesh)

    def forward(params: Named, buffers: Named, inputs: Named, key: jax.Array) -> Named:
        return evaluate((params, buffers), inputs, key)[0]

    def loss(params: Named, buffers: Named, inputs: Named, key: jax.Array) -> jax.Array:
        outputs = forward(params, buffers, inputs, key).values()
        floating = [v.real.sum() for v in outputs if jnp.issubdtype(v.dtype, jnp.inexact)]
        return jnp.asarray(sum(floating), jnp.float32)

    def program(name: str, function: Callable) -> Compile:
        def compile_at(batch: int) -> Ahead:
            inputs = {
                n: jax.ShapeDtypeStruct(
                    (batch, *v.shape[1:]) if v.ndim else (),
                    v.dtype,
                    sharding=split if v.ndim else same,
                )
                for n, v in ((n, jnp.asarray(a)) for n, a in arguments.arrays.items())
            }
            state = (abstract(module.params, same), abstract(module.buffers, same))
            key = abstract(jax.eval_shape(lambda: jax.random.key(0)), same)
            return compile_ahead(jax.jit(function), (*state, inputs, key), topology, name=name)

        return compile_at

    devices = len(topology.devices)
    batch = -(-rows // devices) * devices
    programs = [(program("forward", forward), batch)]
    if module.params and not config.forward_only:
        programs.append((program("gradient", jax.grad(loss)), batch))
    return compile_batches(programs, config, step=devices)
