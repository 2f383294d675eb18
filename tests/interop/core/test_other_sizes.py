"""Python state that one call leaves, and that a call with inputs of another size would read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.interop import UnsupportedTorchError, to_jax

WIDTH = 512
"""Tables of some hundred rows are then computed within the program."""


class Kept(nn.Module):
    """Keeps something of each call."""

    table: torch.Tensor | None = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seen, self.tables = [], {}

    def forward(self, x):
        return self.extra(self.linear(x), x.shape[1])

    def extra(self, y, rows):
        raise NotImplementedError


class FirstSize(Kept):
    size = None

    def extra(self, y, rows):
        if self.size is None:
            self.size = (rows, WIDTH)
        return F.interpolate(y[:, None], size=self.size)


class FirstScale(Kept):
    def extra(self, y, rows):
        if self.table is None:
            self.table = torch.full((1,), 1 / rows)
        return y * self.table


class FirstCount(Kept):
    def extra(self, y, rows):
        if self.table is None:
            self.table = torch.tensor(100_000 + rows)
        return y * (self.table - 100_000)


class Greatest(Kept):
    def extra(self, y, rows):
        self.seen.append(rows)
        return y * max(self.seen)


class Order(Kept):
    def extra(self, y, rows):
        return y + self.tables.setdefault(rows, len(self.tables))


class RelativeTable(Kept):
    def extra(self, y, rows):
        table = self.table
        if table is None or len(table) < rows:
            table = self.table = torch.linspace(0, 1, rows)[:, None]
        return y + table[:rows]


class LearnedTable(Kept):
    def extra(self, y, rows):
        if self.table is None or len(self.table) < rows:
            self.table = self.linear.weight[:1].expand(rows, -1) / rows
        assert self.table is not None
        return y + self.table[:rows]


class Positions(Kept):
    """As rotary embeddings: rows of a longer table are those of a shorter one."""

    def extra(self, y, rows):
        if self.table is None or len(self.table) < rows:
            inverse = 1 / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
            angles = torch.outer(torch.arange(rows, dtype=torch.float32), inverse)
            self.table = torch.cat([angles, angles], -1).cos()
        return y * self.table[:rows]


class Mask(Kept):
    """Is made anew for another size."""

    def extra(self, y, rows):
        if self.table is None or len(self.table) != rows:
            self.table = torch.triu(torch.full((rows, rows), -torch.inf), 1)
        return (y @ y.mT / 30 + self.table).softmax(-1) @ y


class Grids(Kept):
    """One for each size."""

    def extra(self, y, rows):
        key = str((rows, WIDTH))
        if key not in self.tables:
            self.tables[key] = torch.linspace(-1, 1, rows)[:, None].expand(-1, WIDTH)
        return y + self.tables[key]


class Size(Kept):
    """Keeps the size of this call alone."""

    def extra(self, y, rows):
        self.rows = rows
        return y / self.rows


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("sizes", [(300, 100), (100, 300)])
@pytest.mark.parametrize(
    "kind", [FirstSize, FirstScale, FirstCount, Greatest, Order, RelativeTable, LearnedTable]
)
def test_state_that_another_size_reads_is_refused(kind, sizes, jitted):
    jm = to_jax(kind())
    apply = jax.jit(jm.apply) if jitted else jm.apply
    apply(jm.params, jm.buffers, jnp.ones((1, sizes[0], WIDTH)))
    with pytest.raises(UnsupportedTorchError, match="with other inputs computes something else"):
        apply(jm.params, jm.buffers, jnp.ones((1, sizes[1], WIDTH)))


@pytest.mark.parametrize("kind", [Positions, Mask, Grids, Size])
def test_tables_that_are_torchs_at_each_size(kind):
    network = kind()
    jm = to_jax(network)
    apply = jax.jit(jm.apply)
    for rows in (300, 100, 400, 200, 100):
        x = np.random.default_rng(rows).standard_normal((1, rows, WIDTH)).astype(np.float32)
        ours, _ = apply(jm.params, jm.buffers, x)
        theirs = network(torch.from_numpy(x)).detach()
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


class Mode(Kept):
    last = None

    def forward(self, x, mode="a"):
        y = self.linear(x)
        y = y if self.last in (None, mode) else 2 * y
        self.last = mode
        return y


def test_values_of_arguments_count_as_sizes_do():
    jm = to_jax(Mode())
    apply = jax.jit(jm.apply, static_argnames="mode")
    x = jnp.ones((1, 3, WIDTH))
    apply(jm.params, jm.buffers, x, mode="a")
    with pytest.raises(UnsupportedTorchError, match=r"`self\.last` from None to 'a'"):
        apply(jm.params, jm.buffers, x, mode="b")


class Counted(Kept):
    """Counts its calls in one mode; other modes only keep a table."""

    def forward(self, x, mode="a"):
        y = self.linear(x) + self.tables.setdefault(x.shape[1], torch.ones(1))
        if mode == "b":
            self.seen.append(mode)
            y = y * len(self.seen)
        return y


def test_each_kind_of_call_is_repeated():
    """A harmless table of the first call does not end the comparison of later ones."""
    jm = to_jax(Counted())
    apply = jax.jit(jm.apply, static_argnames="mode")
    x = jnp.ones((1, 3, WIDTH))
    apply(jm.params, jm.buffers, x)
    with pytest.raises(UnsupportedTorchError, match=r"`self\.seen\[0\]`.*a second call"):
        apply(jm.params, jm.buffers, x, mode="b")
