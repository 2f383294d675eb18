"""`jaxsr.check(module, *inputs)`: right, wrong, refused and ill-conditioned modules."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan

import jaxsr
from jaxsr.comparison.arguments import Arguments
from jaxsr.comparison.check_modes import TorchRuns
from jaxsr.comparison.check_result import report_of
from jaxsr.comparison.measures import FLOOR_ULPS, ULP, compare_arrays
from jaxsr.comparison.report import html_page
from jaxsr.comparison.torch_runs import RunResult, run_torch
from jaxsr.errors import InputError, InputTypeError
from jaxsr.interop import lowering
from jaxsr.interop.folding.policy import choose_folding

Pair = collections.namedtuple("Pair", "first second")


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)

    def forward(self, x, *, shift):
        out, state = self.rnn(x + shift)
        return {"out": out, "pair": Pair(state.mean(), [out.argmax(-1)])}


class WrongScale(nn.Module):
    """Its operator is given a wrong lowering."""

    def forward(self, x):
        return torch.special.i0e(x)


class WrongGradient(nn.Module):
    def forward(self, x):
        return torch.special.i1e(x)


class Block(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.lin, self.act = nn.Linear(6, 6), act

    def forward(self, x):
        return x + self.act(self.lin(x))


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Cancels(nn.Module):
    def forward(self, x):
        return (x + 1000) ** 2 - 1000**2 - 2000 * x


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )  # fmt: skip


def image(rows=2):
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def wrong(act, x):
    torch.manual_seed(0)
    blocks = nn.Sequential(Block(nn.ReLU()), Block(act), Block(nn.Tanh()))
    return jaxsr.check(blocks, x, speed_s=0, vmap=False, mesh=1)


def test_a_network_with_batch_norm_and_dropout_is_the_same():
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result: Any = jaxsr.check(net, image(), modules=True, speed_s=0.01)
    assert result.ok, result
    assert result.exit_status == 0
    names = [row.name for row in result.rows]
    assert names == [
        "forward", "gradient", "buffers", "jit of apply", "calls", "train forward",
        "train gradient", "train buffers", "train calls", "random key", "vmap", "mesh of 2",
    ]  # fmt: skip
    assert {row.status for row in result.rows} == {"ok"}
    assert [speed.program for speed in result.speeds] == ["forward", "gradient"]
    assert [one.path for one in result.modules] == ["0", "1", "2", "3", "4", "5"]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training


def test_the_page_fits_one_screen():
    lines = repr(jaxsr.check(network(), image(), speed_s=0.01)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110


def test_dictionaries_tuples_and_keyword_arguments():
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    result: Any = jaxsr.check(
        Several(), x, kwargs={"shift": np.array([1, 2, 3, 4], np.float32)}, speed_s=0
    )
    assert result.ok, result
    outputs = {one.name for one in result.row("forward").arrays}
    assert outputs == {"out", "pair[0]", "pair[1][0]"}
    gradients = {one.name for one in result.row("gradient").arrays}
    assert {"∂ input", "∂ shift", "rnn.weight_ih_l0"} <= gradients
    assert result.row("vmap").status == "skipped"  # 3 rows of x, 4 values of shift


def test_an_odd_batch_is_doubled_for_the_mesh():
    result: Any = jaxsr.check(nn.Linear(4, 2), torch.ones(1, 4), speed_s=0)
    assert result.row("mesh of 2").arrays[0].shape == (2, 2)
    assert result.ok


@pytest.mark.usefixtures("registry_copy")
def test_a_wrong_lowering_differs_and_is_found():
    lowering("aten::special_i0e.default")(lambda x: jnp.exp(x * x) * (1 - jnp.tanh(x)))
    result: Any = wrong(WrongScale(), torch.rand(4, 6))
    assert result.status == "differs"
    assert result.exit_status == 1
    assert result.fault.path == "1.act"
    assert result.fault.kind == "WrongScale"
    assert "first wrong module: 1.act (WrongScale)" in repr(result)
    assert result.modules
    assert "wrong by itself" in html_page(report_of(result))


@pytest.mark.usefixtures("registry_copy")
def test_a_wrong_gradient_differs_and_is_found():
    import jax

    @jax.custom_jvp
    def i1e(x):
        return jax.scipy.special.i1e(x)

    i1e.defjvp(lambda x, dx: (i1e(*x), 1.001 * jax.jvp(jax.scipy.special.i1e, x, dx)[1]))
    lowering("aten::special_i1e.default")(i1e)
    result: Any = wrong(WrongGradient(), torch.rand(4, 6))
    assert result.row("forward").status == "ok"
    assert result.row("gradient").status == "differs"
    assert result.fault.path == "1.act"
    assert result.fault.quantity == "gradient of special_i1e"
    assert result.fault.source.startswith("test_check_module.py:")
    assert not any("kink" in note for note in result.notes)


class Integral(torch.autograd.Function):
    """No operation of forward is wrong, and those of backward cannot be run alone."""

    @staticmethod
    def forward(x):
        return x + x**3 / 12

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] * torch.special.i0e(ctx.saved_tensors[0])


class WrongFunction(nn.Module):
    def forward(self, x, *, shift):
        return Integral.apply(x) + shift


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.function = WrongFunction()

    def forward(self, x):
        shift = torch.ones_like(x)
        y = self.function(x, shift=shift)
        shift.zero_()  # its inputs are those of the call, not of the end
        return y


@pytest.mark.usefixtures("registry_copy")
def test_a_fault_of_a_submodule_as_a_whole_is_found():
    lowering("aten::special_i0e.default")(lambda x: jnp.exp(x) * (1 + x))
    result: Any = wrong(Shifted(), torch.rand(4, 6))
    assert result.row("gradient").status == "differs"
    assert (result.fault.path, result.fault.kind) == ("1.act.function", "WrongFunction")
    assert result.fault.quantity == "gradient ∂ input"


def test_a_branch_on_a_value_is_refused():
    result: Any = jaxsr.check(Branch(), torch.ones(2, 3))
    assert (result.status, result.exit_status) == ("refused", 2)
    assert "traced" in result.reason
    assert not result.ok


def test_an_ill_conditioned_operation_is_named():
    net = nn.Sequential(nn.Linear(6, 6), Cancels())
    result: Any = jaxsr.check(net, torch.rand(4, 6), speed_s=0, vmap=False, mesh=1)
    assert result.ok, result
    assert any(
        note.startswith("ill-conditioned") and "1 (Cancels)" in note for note in result.notes
    )


def test_training_that_torch_refuses_is_skipped():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    result: Any = jaxsr.check(net, torch.ones(1, 3), speed_s=0)
    assert result.ok
    assert "more than 1 value per channel" in result.row("train").detail


def test_a_module_without_gradients_is_checked_forward():
    result: Any = jaxsr.check(nn.Embedding(5, 3).requires_grad_(False), torch.tensor([[1, 2]]))
    assert result.ok
    assert result.row("gradient").status == "skipped"


def test_wrong_inputs_are_errors():
    with pytest.raises(InputError, match="torch cannot run Linear on input float32"):
        jaxsr.check(nn.Linear(4, 2), torch.ones(1, 5))
    with pytest.raises(InputTypeError, match=r"takes a torch\.nn\.Module"):
        jaxsr.check(torch.sin, torch.ones(1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputTypeError, match="meta device"):
        jaxsr.check(nn.Linear(4, 2), torch.ones(1, 4, device="meta"))


def test_the_bound_follows_from_torch_and_has_a_floor():
    exact = {"a": np.array([1.0, 2.0])}
    torch_arrays = {"a": np.array([1.0, 2.0 + 1e-5], np.float32)}
    (one,) = compare_arrays({"a": np.array([1.0, 2.00007], np.float32)}, torch_arrays, exact)
    assert one.ok
    assert one.bound == pytest.approx(8 * 0.5e-5, rel=0.05)
    (one,) = compare_arrays({"a": np.array([1.0, 2.0001], np.float32)}, torch_arrays, exact)
    assert not one.ok
    (one,) = compare_arrays(exact, exact, exact)
    assert one.bound == FLOOR_ULPS * ULP


@pytest.mark.parametrize(
    "wrong_array",
    [
        np.array([np.nan, 2], np.float32),
        np.array([1, 2, 3], np.float32),
        np.array([1, np.inf], np.float32),
    ],
)
def test_shapes_and_special_values_count(wrong_array):
    exact = {"a": np.array([1.0, 2.0])}
    (one,) = compare_arrays({"a": wrong_array}, exact, exact)
    assert not one.ok
    (one,) = compare_arrays({}, exact, exact)
    assert not one.ok


class PartlyInPlace(nn.Module):
    """torch can run it, and cannot differentiate it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = (x * self.scale).exp()
        y.mul_(2)
        return y


class Forces(nn.Module):
    """The slope of an energy, by default without a graph, as most force fields take it."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 1))

    def forward(self, x):
        x.requires_grad_()
        energy = self.energy(x).sum()
        return energy, torch.autograd.grad(energy, x, create_graph=self.training)[0]


class Control(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        def step(carry, row):
            return (carry + self.layer(row)).tanh(), carry * 2

        _, rows = scan(step, torch.zeros(4), x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (rows,))


def test_gradients_that_the_module_takes():
    result = jaxsr.check(Forces(), torch.randn(2, 3), speed_s=0.01)
    assert result.ok
    names = {row.name for row in result.rows if row.status == "ok"}
    assert {"forward", "vmap", "train forward", "train gradient"} <= names


def test_control_flow():
    result = jaxsr.check(Control(), torch.randn(4, 3), speed_s=0.01)
    assert result.ok
    assert {row.name for row in result.rows if row.status == "ok"} >= {"forward", "gradient"}


def test_what_torch_cannot_differentiate_is_compared_forward():
    result = jaxsr.check(PartlyInPlace(), torch.randn(2, 3), speed_s=0)
    assert result.ok
    row = result.row("gradient")
    assert row is not None and row.status == "skipped"
    assert "torch cannot differentiate it" in row.detail


@pytest.mark.parametrize("speed_s", [0.0, 0.01])
def test_outputs_of_the_gradients_program(speed_s):
    result = jaxsr.check(nn.Linear(4, 2), torch.randn(3, 4), speed_s=speed_s, mesh=1)
    assert result.ok
    assert [speed.program for speed in result.speeds][-1] == "gradient"
    assert len(result.speeds) == (2 if speed_s else 1)
    assert all((speed.steps_per_s is not None) == bool(speed_s) for speed in result.speeds)
    assert str(result)  # the page shows what was timed


def test_the_folded_program():
    narrow = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    folding = choose_folding("on", jax.devices()[0])
    result = jaxsr.check(narrow, torch.randn(2, 3, 16, 16), lane_folding=folding, speed_s=0)
    assert result.ok, result


class OtherwiseWhileCompiling(nn.Module):
    def forward(self, x):
        return x * 2 if torch.compiler.is_compiling() else x


def test_a_library_that_computes_otherwise_while_compiling_is_named():
    result = jaxsr.check(OtherwiseWhileCompiling(), torch.randn(2, 3), speed_s=0)
    assert result.status == "differs"
    assert any("is_compiling() is true" in note for note in result.notes)


class Places(nn.Module):
    """Keeps constants of the last size in a buffer, as timm's ConViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.get_buffer("places").shape[0] != x.shape[-1]:
            self.places = torch.arange(x.shape[-1]) / 2
        return x * self.get_buffer("places")


def test_a_cache_of_constants_in_a_buffer_is_no_difference():
    assert jaxsr.check(Places(), torch.randn(2, 3), mesh=1, speed_s=0).ok


class AtItsKink(nn.Module):
    """Rounding decides on which side of relu's kink an input of 1 lies; here, the tracer does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounding = 2e-7 if torch.compiler.is_compiling() else -2e-7
        return x + 10 * torch.relu(x - 1 + rounding)


def test_a_gradient_at_a_kink_is_said_to_be():
    result = jaxsr.check(AtItsKink(), torch.ones(2, 3), mesh=1, speed_s=0)
    assert [row.name for row in result.rows if row.status == "differs"] == ["gradient"]
    assert any("these lie at a kink" in note for note in result.notes)


class Grouped(nn.Module):
    """Depends on which of equal keys comes first, which torch does not promise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, order = torch.sort((x > 0).long(), -1)
        return torch.take_along_dim(x, order, -1).cumsum(-1)


def test_a_module_that_depends_on_an_unstable_sort_is_said_to():
    x = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    keys = (x > 0).long()
    if torch.equal(torch.sort(keys, -1)[1], torch.sort(keys, stable=True, dim=-1)[1]):
        pytest.skip("torch's sort is stable on this processor")
    result = jaxsr.check(Grouped(), x, mesh=1, speed_s=0)
    assert result.status == "differs"
    assert any("a sort has stable=True" in note for note in result.notes)


class Chosen(nn.Module):
    """Depends on which of equal scores `topk` takes, which torch does not promise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.take_along_dim(x, x.relu().topk(40, dim=-1).indices, -1).cumsum(-1)


def test_a_module_that_depends_on_ties_of_topk_is_said_to():
    x = torch.randn(2, 60, generator=torch.Generator().manual_seed(0))
    result = jaxsr.check(Chosen(), x, mesh=1, speed_s=0)
    assert result.status == "differs"
    assert any("torch.topk leaves equal elements" in note for note in result.notes)


def test_a_module_that_torch_refuses_to_copy():
    """Old-style weight_norm keeps a tensor with a graph in an attribute."""
    module = nn.Sequential(nn.utils.weight_norm(nn.Conv1d(2, 3, 3)), nn.Tanh())
    assert jaxsr.check(module, torch.ones(1, 2, 5)).ok


class Adapted(nn.Module):
    """LoRA: draws behind a weight of zeros."""

    def __init__(self):
        super().__init__()
        self.base, self.down = nn.Linear(4, 4), nn.Linear(4, 2, bias=False)
        self.up = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        dropped = nn.functional.dropout(x, 0.5, self.training)
        return self.base(x) + self.down(dropped) @ self.up.T


def test_draws_that_no_output_depends_on():
    assert jaxsr.check(Adapted(), torch.ones(3, 4)).ok


def test_noise_is_of_the_results_that_are_compared():
    def twice(module, arguments, **options):
        """Two calls, as the rows of further calls have them."""
        outputs = run_torch(module, arguments, **options).outputs
        return RunResult(
            outputs={f"{name} of call {k}": outputs[name] for name in outputs for k in "12"}
        )

    arguments = Arguments.of((torch.rand(4, 6),), {})
    options = {"train": False, "key": jax.random.key(0)}
    runs = TorchRuns.of(nn.Linear(6, 6), arguments, **options, run=twice)
    noise = runs.noise["outputs"]
    assert noise.keys() == runs.single.outputs.keys() and min(noise.values()) > 0
