"""Rows that a mask of values selects: torch's results, without a shape that depends on values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

X = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32))
Y = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 5, 4)).astype(np.float32))
LABELS = torch.from_numpy(np.random.default_rng(2).integers(0, 4, (3, 5)))
MASK = torch.from_numpy(np.random.default_rng(3).random((3, 5)) > 0.5)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, y, labels, mask):
        return self.function(self, x, y, labels, mask)


def _write(m, x, y, labels, mask):
    out = x.clone()
    out[mask] = m.norm(m.linear(y[mask])).relu() * 2 + 1
    return out


def _inverse_write(m, x, y, labels, mask):
    inside = (x > -0.5) & (x < 0.5)
    out = torch.zeros_like(x)
    out[~inside] = x[~inside]
    out[inside] = (x[inside] * 3).log1p()
    return out


def _nearest(m, x, y, labels, mask):
    """Distances to the nearest of points picked one by one, as PointNet++ samples them."""
    least = torch.full(x.shape[:2], 1e10)
    for i in range(3):
        distance = ((x - y[:, i : i + 1]) ** 2).sum(-1)
        nearer = distance < least
        least[nearer] = distance[nearer]
    return least


def _experts(m, x, y, labels, mask):
    """Each token's share of its experts, gathered and added as transformers' loops do."""
    flat = x.reshape(-1, 4)
    weights, chosen = m.linear(flat).softmax(-1)[:, :3].topk(2, -1)
    out = torch.zeros_like(flat)
    for e, expert in enumerate(m.experts):
        token, place = torch.where(chosen == e)
        out.index_add_(0, token, expert(flat[token]) * weights[token, place, None])
    return out


def _with_column(rows, others):
    rows = rows * 2
    rows[..., 0] = 1.5
    rows[:, 1] = others[:, 2]
    return rows


def _narrower(m, x, y, labels, mask):
    rows, others = x[mask], y[mask]
    positive = rows.sum(-1) > 0
    return rows[positive].exp().sum() + (rows[positive] * others[positive]).mean()


CASES = {
    "written back": _write,
    "written to both sides of a range": _inverse_write,
    "least distances": _nearest,
    "experts": _experts,
    "a mask of rows": _narrower,
    "mean squared error": lambda m, x, y, labels, mask: F.mse_loss(m.linear(x)[mask], y[mask]),
    "summed L1": lambda m, x, y, labels, mask: F.l1_loss(x[mask], y[mask], reduction="sum"),
    "cross entropy": lambda m, x, y, labels, mask: F.cross_entropy(
        m.linear(x)[mask], labels[mask], weight=torch.tensor([1.0, 2, 3, 4])
    ),
    "binary cross entropy": lambda m, x, y, labels, mask: F.binary_cross_entropy_with_logits(
        x[mask], (y[mask] > 0).float()
    ),
    "logarithms of what is positive": lambda m, x, y, labels, mask: x[x > 0].log().mean(),
    "reductions": lambda m, x, y, labels, mask: (
        x[mask].sum(0), x[mask].mean((0, 1)), x[mask].amax(0), x[mask].min(), (x[mask] > 2).any(),
        x[mask].softmax(-1).mean(0, keepdim=True), torch.masked_select(x, y > 0).sum(),
        x[mask].norm(dim=-1).sum(),
    ),
    "columns": lambda m, x, y, labels, mask: (
        torch.cat([x[mask][:, :2], y[mask][..., 1:]], -1).square().sum()
        + x[mask].unsqueeze(1).expand(-1, 3, 4).reshape(-1, 12).view(-1, 3, 4).sum((0, 2)).max()
    ),
    "places": lambda m, x, y, labels, mask: x.reshape(-1, 4)[mask.view(-1).nonzero()[:, 0]].sum(0),
    "written by places": lambda m, x, y, labels, mask: torch.zeros(3, 5).index_put(
        torch.where(mask), x[mask].sum(-1)
    ),
    "in place": lambda m, x, y, labels, mask: x[mask].mul_(2).add_(y[mask]).sum(),
    "divided by their number": lambda m, x, y, labels, mask: (
        x[mask].sum() / x[mask].shape[0] + x[mask].size(0) * x[mask].mean(),
        x[mask].view(-1, 2, x[mask].shape[-1] // 2).sum((0, 1)),
    ),
    "padded": lambda m, x, y, labels, mask: F.pad(x[mask].cumsum(-1), (1, 0), value=2.0).mean(0),
    "scattered back": lambda m, x, y, labels, mask: x.masked_scatter(
        mask.unsqueeze(-1), m.norm(x[mask])
    ).masked_scatter(~mask.unsqueeze(-1), m.linear(y[~mask])),
    "a flat mask": lambda m, x, y, labels, mask: (x[mask] * y.view(-1, 4)[mask.view(-1)]).sum(),
    "a column written": lambda m, x, y, labels, mask: _with_column(x[mask], y[mask]).mean(0),
    "lookup": lambda m, x, y, labels, mask: F.embedding(labels[mask], m.linear.weight).sum(),
}  # fmt: skip


def _both(function, mask, inputs=(X, Y)):
    module = Call(function)
    jm = to_jax(module)

    def loss(params, x, y, mask):
        out = jm.apply(params, jm.buffers, x, y, LABELS.numpy(), mask)[0]
        leaves = [v for v in jax.tree.leaves(out) if jnp.issubdtype(v.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(v)) for v in leaves), out

    arrays = [t.numpy() for t in inputs]
    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
        jm.params, *arrays, mask.numpy()
    )
    x, y = (t.clone().requires_grad_() for t in inputs)
    expected = module(x, y, LABELS, mask)
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.stack([v.sin().sum() for v in expected if v.is_floating_point()]).sum().backward()
    for actual, value in zip(jax.tree.leaves(out), expected, strict=True):
        np.testing.assert_allclose(actual, value.detach(), rtol=2e-5, atol=2e-6)
    for actual, tensor in zip(gradients[1:], (x, y), strict=True):
        expected = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)
    for name, parameter in module.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(gradients[0][name], expected, rtol=2e-4, atol=2e-5)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_mask(name):
    _both(CASES[name], MASK)


@pytest.mark.parametrize("name", ["written back", "experts", "cross entropy", "written by places"])
@pytest.mark.parametrize("value", [False, True])
def test_all_rows_or_none(name, value):
    if name == "cross entropy" and not value:
        pytest.skip("NaN in torch as well")
    _both(CASES[name], torch.full((3, 5), value))


def test_values_that_are_left_out_reach_no_gradient():
    """1 / 0 outside the mask."""
    x = torch.where(MASK[..., None], X, 0)
    _both(lambda m, x, y, labels, mask: m.linear(1 / x[mask]).mean(), MASK, (x, Y))


REFUSED = {
    "returned": lambda m, x, y, labels, mask: x[mask],
    "shape": lambda m, x, y, labels, mask: torch.zeros(x[mask].shape).sum(),
    "repeated in Python": lambda m, x, y, labels, mask: sum(i for i in range(x[mask].shape[0])) + x,
    "a branch": lambda m, x, y, labels, mask: x.sum() if x[mask].shape[0] > 0 else x,
    "len": lambda m, x, y, labels, mask: x[mask].sum() / len(x[mask]),
    "iterated": lambda m, x, y, labels, mask: sum(row.sum() for row in x[mask]),
    "batchmean": lambda m, x, y, labels, mask: F.kl_div(x[mask], y[mask], reduction="batchmean"),
    "soft labels": lambda m, x, y, labels, mask: F.cross_entropy(x[mask], y[mask].softmax(-1)),
    "smoothed labels": lambda m, x, y, labels, mask: F.cross_entropy(
        x[mask], labels[mask], label_smoothing=0.1
    ),
    "two masks": lambda m, x, y, labels, mask: (x[mask] - y[~mask]).sum(),
    "other rows": lambda m, x, y, labels, mask: (x[mask] - torch.zeros(15, 4)).sum(),
    "batch statistics": lambda m, x, y, labels, mask: nn.BatchNorm1d(4)(x[mask]).sum(),
    "deviation": lambda m, x, y, labels, mask: x[mask].std(0),
    "covariance": lambda m, x, y, labels, mask: torch.cov(x[mask].mT),
    "first row": lambda m, x, y, labels, mask: x[mask][0],
    "dropout": lambda m, x, y, labels, mask: F.dropout(x[mask], 0.5).sum(),
    "flattened": lambda m, x, y, labels, mask: x[mask].flatten() @ x[mask].flatten(),
    "sorted": lambda m, x, y, labels, mask: x[mask].sort(0)[0][0],
    "padded rows": lambda m, x, y, labels, mask: F.pad(x[mask], (0, 0, 1, 0)).mean(),
    "scattered elsewhere": lambda m, x, y, labels, mask: x.masked_scatter(y > 0, x[mask]),
    "a shape by chance": lambda m, x, y, labels, mask: y[0, :4][mask[0, :4]].view(4, -1).sum(0),
    "masks of other shapes": lambda m, x, y, labels, mask: _of_other_shapes(
        x.view(-1)[:6], y.view(-1)[:3]
    ),
    "chosen by another": lambda m, x, y, labels, mask: x[mask].gather(
        1, torch.zeros(15, 1, dtype=torch.int64)
    ),
    "outer": lambda m, x, y, labels, mask: torch.outer(x[mask][:, 0], x[mask][:, 1]).sum(),
    "a loss of a column and a row": lambda m, x, y, labels, mask: F.soft_margin_loss(
        x[mask][:, :1], y[mask][:, 0]
    ),
    "columns by a row": lambda m, x, y, labels, mask: torch.where(
        x[mask][:, :1] > 0, y[mask][:, 0], 0
    ).mean(),
    "added in place": lambda m, x, y, labels, mask: x[mask].add_(y[mask][:, 0]).sum(),
    "repeated": lambda m, x, y, labels, mask: x[mask].repeat(2, 1).sum(),
    "a norm of all": lambda m, x, y, labels, mask: x[mask].norm() + 1,
    "a loss of deviations": lambda m, x, y, labels, mask: F.mse_loss(x[mask].std(), y[mask].var()),
    "a place among all": lambda m, x, y, labels, mask: x[mask].argmax().sum(),
    "split by default": lambda m, x, y, labels, mask: x[mask].split(2)[0].sum(),
    "a changed mask": lambda m, x, y, labels, mask: _changed(x, y, mask),
}  # fmt: skip


def _of_other_shapes(a, b):
    """Two masks of the same numbers, compared along other axes."""
    wide, tall = a.view(2, 3), a.view(3, 2)
    return (wide[wide > b] - tall[tall > b.view(3, 1)]).sum()


def _changed(x, y, mask):
    mask = mask.clone()
    rows = x[mask]
    mask[0] = False
    return (rows + y[mask]).sum()


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_of_rows_is_refused(name):
    jm = to_jax(Call(REFUSED[name]))
    args = (X.numpy(), Y.numpy(), LABELS.numpy(), MASK.numpy())
    reason = "needed in Python: a branch" if name == "a branch" else "depends on|two masks"
    with pytest.raises(UnsupportedTorchError, match=reason):
        jax.jit(lambda *a: jm.apply(jm.params, jm.buffers, *a, rng=jax.random.key(0))[0])(*args)
