"""LSTM, GRU and plain recurrent layers: one `lax.scan` each, not an unrolled graph."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from jaxsr.interop._core.dtypes import widened
from jaxsr.interop._core.registry import overrides
from jaxsr.interop._core.trace import Trace
from jaxsr.interop.errors import UnsupportedTorchError


def _cell(mode: str) -> Callable[..., tuple]:
    def lstm(state: tuple, gates_x: jax.Array, w: jax.Array, b: jax.Array) -> tuple:
        h, c = state
        i, f, g, o = jnp.split(gates_x + h @ w.T + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, c

    def gru(state: tuple, gates_x: jax.Array, w: jax.Array, b: jax.Array) -> tuple:
        (h,) = state
        xr, xz, xn = jnp.split(gates_x, 3, -1)
        hr, hz, hn = jnp.split(h @ w.T + b, 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        n = jnp.tanh(xn + r * hn)
        return (n + z * (h - n),)

    def plain(act: Callable[[jax.Array], jax.Array]) -> Callable[..., tuple]:
        def step(state: tuple, gates_x: jax.Array, w: jax.Array, b: jax.Array) -> tuple:
            return (act(gates_x + state[0] @ w.T + b),)

        return step

    return {"lstm": lstm, "gru": gru, "rnn_tanh": plain(jnp.tanh), "rnn_relu": plain(jax.nn.relu)}[
        mode
    ]


def _recurrent(mode: str) -> Callable[..., tuple]:
    states = 2 if mode == "lstm" else 1
    step = _cell(mode)

    def run(trace: Trace, func: Callable, args: tuple, kwargs: dict) -> tuple:
        if len(args) != 9 or not isinstance(args[3], bool):
            raise UnsupportedTorchError(
                f"{mode} on a packed sequence; pad the batch and mask the loss instead"
            )
        x, hidden, flat, biases, layers, dropout, train, both, batch_first = args
        hidden = hidden if mode == "lstm" else (hidden,)
        tensors = [trace.as_jax_tensor(t) for t in (x, *hidden, *flat)]
        # In float32 at least, as torch's cells: each step rounds, and gradients of all are added.
        arrays = [widened(t.array()) for t in tensors]
        value, initial, weights = arrays[0], arrays[1 : 1 + states], arrays[1 + states :]
        directions = 2 if both else 1
        per = len(weights) // (layers * directions)
        has_projection = per % 2 == 1  # an LSTM's proj_size: one more matrix for each direction
        if batch_first:
            value = jnp.swapaxes(value, 0, 1)
        final: list[tuple] = []
        for layer in range(layers):
            outs = []
            for d in range(directions):
                k = layer * directions + d
                w = weights[k * per : (k + 1) * per]
                bias_x, bias_h = (w[2], w[3]) if biases else (0.0, jnp.zeros(w[1].shape[0]))
                projection = w[-1] if has_projection else None
                gates = value @ w[0].T + bias_x

                def body(
                    state: tuple,
                    g: jax.Array,
                    w: jax.Array = w[1],
                    b: jax.Array = bias_h,
                    projection: jax.Array | None = projection,
                ) -> tuple:
                    h, *rest = step(state, g, w, b)
                    h = h if projection is None else h @ projection.T
                    return (h, *rest), h

                start = tuple(s[k] for s in initial)
                end, seq = jax.lax.scan(body, start, gates, reverse=d == 1)
                outs.append(seq)
                final.append(end)
            value = jnp.concatenate(outs, -1) if both else outs[0]
            if dropout and train and layer < layers - 1:
                keep = jax.random.bernoulli(trace.next_key(), 1 - dropout, value.shape)
                value = jnp.where(keep, value / ((1 - dropout) or 1), 0)
        if batch_first:
            value = jnp.swapaxes(value, 0, 1)
        needs = any(t.needs_grad for t in tensors)
        results = [value, *(jnp.stack([f[i] for f in final]) for i in range(states))]
        metas = [trace.wrap(r, tensors[0].dtype).meta for r in results]
        return trace.wrap_result(func, results, tuple(metas), needs)

    return run


for _mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    overrides(getattr(torch, _mode))(_recurrent(_mode))
