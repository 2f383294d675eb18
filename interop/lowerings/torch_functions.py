"""Torch functions that are redirected before torch splits them: value checks, loops, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from jaxsr.interop._core.dispatch import REFUSED, Trace, handles_function
from jaxsr.interop._core.tensor import JaxTensor
from jaxsr.interop.errors import UnsupportedTorchError
from jaxsr.interop.lowerings.batch_norm import batch_norm

aten = torch.ops.aten


# ---- functions whose Python body looks at values


@handles_function(F.gaussian_nll_loss)
def _gaussian_nll(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    """torch's formula without its check that every variance is positive."""
    return _gaussian_nll_formula(*args, **kwargs)


def _gaussian_nll_formula(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    if isinstance(var, float):
        var = var * torch.ones_like(input)
    elif var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    floor = var.detach().clamp(min=eps)
    var = floor + var - var.detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727  # 0.5·log 2π
    return {"mean": torch.mean, "sum": torch.sum}.get(reduction, lambda x: x)(loss)


@handles_function(F.one_hot)
def _one_hot(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    tensor = trace._ours(args[0])
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if tensor.const is not None:
        return func(*args, **kwargs)
    if classes == -1:
        raise UnsupportedTorchError("one_hot needs num_classes=: the largest value is not known")
    steps = torch.arange(classes)
    return (tensor.unsqueeze(-1) == steps).to(torch.int64)


@handles_function(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)
def _to_python(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    tensor = args[0]
    const = tensor.const if isinstance(tensor, JaxTensor) else tensor
    if const is None:
        raise UnsupportedTorchError(
            f"Tensor.{func.__name__}() needs the values of a traced tensor; stay in torch, or do "
            "this outside apply"
        )
    with torch._C._DisableTorchDispatch():
        return func(const, *args[1:], **kwargs)


@handles_function(torch.Tensor.__deepcopy__)
def _deepcopy(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    tensor, memo = args[0], args[1]
    if not isinstance(tensor, JaxTensor):
        return func(*args, **kwargs)
    if id(tensor) not in memo:
        twin = tensor.detach().clone()
        twin.needs_grad = tensor.needs_grad
        if getattr(tensor, "_is_param", False):
            twin._is_param = True
        memo[id(tensor)] = twin
    return memo[id(tensor)]


@handles_function(torch.tensor_split, torch.Tensor.tensor_split)
def _tensor_split(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    args_: list[Any] = list(args)
    where = args_[1] if len(args_) > 1 else next(iter(kwargs.values()), None)
    if isinstance(where, JaxTensor):
        if where.const is None:
            raise UnsupportedTorchError(
                "tensor_split at traced places has no fixed shapes; split at Python numbers"
            )
        places = tuple(where.const.tolist()) if where.dim() else where.const.item()
        rest = {k: v for k, v in kwargs.items() if k == "dim"}
        return func(args_[0], places, *args_[2:], **rest)
    return func(*args, **kwargs)


# ---- devices: JAX places arrays, so a device that torch code names means nothing


@handles_function(torch.Tensor.to)
def _to(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    tensor, *rest = args
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
    other = kwargs.pop("other", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    if other is not None:
        kwargs["dtype"] = other.dtype
    rest = [v for v in rest if not isinstance(v, (str, int, torch.device)) and v is not None]
    if not rest and kwargs.get("dtype") is None and "memory_format" not in kwargs:
        return tensor.clone() if kwargs.get("copy") else tensor
    return func(tensor, *rest, **kwargs)


@handles_function(torch.Tensor.cuda, torch.Tensor.cpu)
def _stay(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
    return args[0]


# ---- recurrent layers as one scan instead of an unrolled graph


def _cell(mode: str) -> Any:
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

    def plain(act: Any) -> Any:
        def step(state: tuple, gates_x: jax.Array, w: jax.Array, b: jax.Array) -> tuple:
            return (act(gates_x + state[0] @ w.T + b),)

        return step

    return {
        "lstm": lstm,
        "gru": gru,
        "rnn_tanh": plain(jnp.tanh),
        "rnn_relu": plain(jax.nn.relu),
    }[mode]


def _recurrent(mode: str) -> Any:
    states = 2 if mode == "lstm" else 1
    step = _cell(mode)

    def run(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
        if len(args) != 9 or not isinstance(args[3], bool):
            raise UnsupportedTorchError(
                f"{mode} on a packed sequence; pad the batch and mask the loss instead"
            )
        x, hidden, flat, biases, layers, dropout, train, both, batch_first = args
        hidden = hidden if mode == "lstm" else (hidden,)
        tensors = [trace._ours(t) for t in (x, *hidden, *flat)]
        arrays = [t.array() for t in tensors]
        value, initial, weights = arrays[0], arrays[1 : 1 + states], arrays[1 + states :]
        directions = 2 if both else 1
        per = len(weights) // (layers * directions)
        # With proj_size an LSTM has a further matrix per direction.
        if per not in ((4,) if biases else (2,)):
            raise UnsupportedTorchError(f"{mode} with proj_size; project with a Linear instead")
        if batch_first:
            value = jnp.swapaxes(value, 0, 1)
        final: list[tuple] = []
        for layer in range(layers):
            outs = []
            for d in range(directions):
                k = layer * directions + d
                w = weights[k * per : (k + 1) * per]
                bias_x, bias_h = (w[2], w[3]) if biases else (0.0, jnp.zeros(w[1].shape[0]))
                gates = value @ w[0].T + bias_x

                def body(state: tuple, g: Any, w: Any = w[1], b: Any = bias_h) -> tuple:
                    new = step(state, g, w, b)
                    return new, new[0]

                start = tuple(s[k] for s in initial)
                end, seq = jax.lax.scan(body, start, gates, reverse=d == 1)
                outs.append(seq)
                final.append(end)
            value = jnp.concatenate(outs, -1) if both else outs[0]
            if dropout and train and layer < layers - 1:
                keep = jax.random.bernoulli(trace.next_key(), 1 - dropout, value.shape)
                value = jnp.where(keep, value / (1 - dropout), 0)
        if batch_first:
            value = jnp.swapaxes(value, 0, 1)
        needs = any(t.needs_grad for t in tensors)
        results = [value, *(jnp.stack([f[i] for f in final]) for i in range(states))]
        wrapped = []
        for r in results:
            meta = trace.wrap(r, tensors[0].dtype).meta
            wrapped.append(trace.wrap_like(r.astype(arrays[0].dtype), meta, needs))
        return tuple(wrapped)

    return run


for _mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    handles_function(getattr(torch, _mode))(_recurrent(_mode))


# ---- batch normalisation whose factor or axis the aten operator cannot express


def batch_norm_forward(module: Any, axis: str | tuple[str, ...] | None, x: Any) -> Any:
    """`_BatchNorm.forward` for momentum=None, a traced factor, and for a named mesh axis."""
    from jaxsr.interop._core.trace_context import running_trace

    module._check_input_dim(x)
    trace = running_trace()
    tracked = module.running_mean is not None
    batch = module.training or not tracked
    factor: Any = module.momentum
    if module.training and tracked:
        module.num_batches_tracked.add_(1)
        if factor is None:
            factor = 1.0 / module.num_batches_tracked.to(torch.float32)
    given = (x, module.weight, module.bias, module.running_mean, module.running_var)
    ours = [None if t is None else trace._ours(t) for t in given]
    return batch_norm(trace, *ours, batch, factor, module.eps, axis)[0]  # type: ignore[arg-type]


# ---- refusals


def _refuse_function(reason: str, *funcs: Any) -> None:
    def handler(trace: Trace, func: Any, args: tuple, kwargs: dict) -> Any:
        raise UnsupportedTorchError(reason)

    handles_function(*funcs)(handler)


_refuse_function(
    "torch.autograd.grad inside forward; compute that gradient with jax.grad over apply",
    torch.autograd.grad,
    torch.autograd.backward,
    torch.Tensor.backward,
)
_refuse_function(
    "Tensor.register_hook changes gradients behind JAX's back; write a torch.autograd.Function "
    "with that backward",
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
)
_refuse_function(
    "packed sequences have no fixed shape; pad the batch and mask the loss instead",
    torch._pack_padded_sequence,
)

REFUSED.update(
    {
        aten.embedding_renorm_: "embedding with max_norm rewrites its weights in forward; "
        "normalise the rows before the lookup instead",
        aten._pack_padded_sequence: "packed sequences; pad the batch and mask the loss instead",
    }
)
