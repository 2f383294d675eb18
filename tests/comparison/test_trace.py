"""Recording changes nothing, both engines give the same stream, memory stays bounded."""

import weakref

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jaxsr.comparison.jax_backend import JaxBackend
from jaxsr.comparison.op_recorder import OpRecorder, StatisticsObserver
from jaxsr.comparison.recorded_trace import make_trace
from jaxsr.comparison.torch_backend import TorchBackend
from jaxsr.interop import to_jax
from jaxsr.interop.hooks import run_torch, watched
from jaxsr.interop.host_arrays import to_numpy
from tests.comparison.faults import FAMILIES, JAX, TORCH, single


def inputs_of(subject):
    inputs = subject.begin().inputs()
    assert inputs is not None
    return inputs


def leaves(outputs):
    return [np.asarray(x) for x in jax.tree.leaves(outputs)]


@pytest.mark.parametrize("family", FAMILIES)
def test_torch_results_are_bitwise_the_same_when_recorded(subject, family):
    side = TorchBackend(subject(family), TORCH)
    inputs = inputs_of(subject(family))
    plain = side.run(inputs)
    recorded, records = side.record(inputs, step=0)
    assert len(records) > 20
    for a, b in zip(leaves(plain), leaves(recorded), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("family", ["span", "llama"])
def test_jax_program_is_bitwise_the_same_when_recorded(subject, family):
    side = JaxBackend(subject(family), JAX)
    inputs = inputs_of(subject(family))
    for a, b in zip(leaves(side.run(inputs)), leaves(side.record(inputs, step=0)[0]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_are_those_without_the_recorder_even_where_it_is_noticed(subject):
    """InstanceNorm is fused otherwise once its parts are returned; the trace says by how much."""
    image = subject("fast-srgan")
    side = JaxBackend(image, JAX)
    trace = make_trace(image, side)
    plain = side.run(inputs_of(image))
    np.testing.assert_array_equal(trace.outputs[0], plain)
    noticed = trace.header["recorder_difference"]
    recorded, _ = side.record(inputs_of(image), step=0)
    assert noticed == float(np.abs(recorded - plain).max())
    assert ("equal to the bit" in trace.header["recorder"]) == (noticed == 0)
    # Two roundings of values below 1 through a network that amplifies them up to a hundredfold.
    assert noticed < 1e-5


@pytest.mark.slow
def test_operations_alone_are_the_same_when_heard(subject):
    span = subject("span")
    side = JaxBackend(span, JAX)
    inputs = inputs_of(span)
    ear = StatisticsObserver(side.value)
    heard = side.observe(inputs, ear, step=0)
    model = to_jax(span.network)
    plain, _ = model.apply(model.params, model.buffers, *inputs[0])
    np.testing.assert_array_equal(heard, np.asarray(plain))


@pytest.mark.parametrize("family", ["span", "llama"])
def test_both_engines_run_the_same_stream(subject, family):
    inputs = inputs_of(subject(family))
    streams = []
    for side in (TorchBackend(subject(family), TORCH), JaxBackend(subject(family), JAX)):
        _, records = side.record(inputs, step=0)
        assert [r.call.order for r in records] == list(range(len(records)))
        streams.append(records)
    for a, b in zip(*streams, strict=True):
        assert a.call.key == b.call.key
        assert [r.shape for r in a.call.results] == [r.shape for r in b.call.results]
        assert [r.dtype for r in a.call.results] == [r.dtype for r in b.call.results]
        kinds = [[(o.kind, o.name) for o in r.call.operands] for r in (a, b)]
        assert kinds[0] == kinds[1], a.call.key
        assert len(a.figures) == len(b.figures) == len(a.call.results)


class Tricky(nn.Module):
    """In-place writes, views, constants, shared modules, results that are tuples."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.table = torch.arange(4.0)

    def forward(self, x):
        x = self.shared(self.shared(x)).clone()
        x[:, 0] *= 2
        x[:, 1] = 7.0
        x = torch.tanh(F.leaky_relu(x, 0.2, inplace=True), out=x)
        values, places = x.max(dim=1)
        low, high = (x + self.table).chunk(2, -1)
        return torch.cat((low, high, values[:, None], places[:, None].to(x.dtype)), 1)


def tricky():
    torch.manual_seed(0)
    image = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    return single(Tricky(), image)


def test_in_place_views_constants_and_tuples():
    made = tricky()
    inputs = inputs_of(made)
    torch_side, jax_side = TorchBackend(made, TORCH), JaxBackend(made, JAX)
    (want, first), (got, second) = (s.record(inputs, step=0) for s in (torch_side, jax_side))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert [r.call.key for r in first] == [r.call.key for r in second]
    by_key = {r.call.key: r.call for r in first}
    assert by_key["shared:linear:1"].nth == 1
    assert by_key[":max:0"].results[1].dtype == "int64"
    assert [o.kind for o in by_key[":add:0"].operands] == ["operation", "constant"]
    program = by_key[":setitem:0"].program
    assert program is not None and program.written == (0,)
    for a, b in zip(first, second, strict=True):
        for x, y in zip(a.figures, b.figures, strict=True):
            np.testing.assert_allclose(x.sample, y.sample, rtol=1e-5, atol=1e-7)


def test_a_call_made_again_gives_its_result():
    made = tricky()
    inputs = inputs_of(made)
    sides = TorchBackend(made, TORCH), JaxBackend(made, JAX)
    for side in sides:
        _, records = side.record(inputs, step=0, keep=("*",))
        assert all(record.tensors for record in records)
        for record in records:
            call = record.call
            operands = [record.tensors[f"in{k}"] for k in range(len(call.operands))]
            activations = [
                None if o.kind in ("parameter", "constant") else g
                for o, g in zip(call.operands, operands, strict=True)
            ]
            for values in (operands, activations):
                for k, result in enumerate(side.call(call, values)):
                    # Alone an operation may be fused otherwise than in the whole program.
                    np.testing.assert_allclose(result, record.tensors[f"out{k}"], rtol=1e-6)


def test_modules_instead_of_operations(subject):
    span = subject("span")
    records = [
        side.record(inputs_of(span), step=0, granularity="module")[1]
        for side in (TorchBackend(span, TORCH), JaxBackend(span, JAX))
    ]
    keys = [[r.call.key for r in side] for side in records]
    assert keys[0] == keys[1]
    leaves_ = {name for name, m in span.network.named_modules() if name and not [*m.children()]}
    assert leaves_ <= {r.call.path for r in records[0]}


@pytest.mark.slow
def test_recording_programs_return_a_bounded_number_of_bytes(subject):
    span = subject("span")
    inputs = inputs_of(span)
    whole, small = (JaxBackend(span, JAX, record_bytes=n) for n in (1 << 30, 450_000))
    want, records = whole.record(inputs, step=0)
    got, windowed = small.record(inputs, step=0)
    programs = next(iter(small._programs.values()))
    assert len(programs) > 2
    sizes = [sum(x.nbytes for taken in ear.taken for x in taken.values()) for _, ear in programs]
    # A turn ends with the tensor that exceeds the budget; the largest joins 4 × 12 channels.
    assert max(sizes) <= 450_000 + 4 * 12 * 24 * 24 * 4
    np.testing.assert_array_equal(got, want)
    for a, b in zip(records, windowed, strict=True):
        assert a.call.key == b.call.key
        np.testing.assert_array_equal(a.figures[0].sample, b.figures[0].sample)


def test_listening_keeps_no_activation_alive():
    alive = []

    class Observer(StatisticsObserver):
        def after_call(self, call, inputs, results):
            super().after_call(call, inputs, results)
            alive.append(sum(ref() is not None for ref in seen))
            seen.extend(weakref.ref(t) for t in results)

    seen: list = []
    network = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    recorder = OpRecorder(Observer(to_numpy))
    with torch.no_grad(), recorder(network, (), {}):
        network(torch.ones(2, 8))
    assert max(alive) <= 2  # of 12: the layer's input, and what held it before


def test_hooks_are_gone_afterwards_and_others_are_not_heard():
    network = nn.Linear(3, 3)
    ear = StatisticsObserver(to_numpy)
    with pytest.raises(RuntimeError), OpRecorder(ear)(network, (), {}):
        network(torch.ones(2, 4))
    count = len(ear.records)
    network(torch.ones(2, 3))
    assert len(ear.records) == count


def test_a_watcher_sees_apply_once_and_only_in_its_block():
    model = to_jax(nn.Linear(3, 3))
    seen = []

    class Watcher:
        def __init__(self, module, args, kwargs):
            seen.append((type(module).__name__, args[0].shape))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    x = np.ones((2, 3), np.float32)
    with watched(Watcher):
        model.apply(model.params, model.buffers, x)
    model.apply(model.params, model.buffers, x)
    assert seen == [("Linear", (2, 3))]


def test_torch_code_on_arrays():
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    got = jax.jit(lambda v: run_torch(lambda t: {"y": t.softmax(-1)}, v))(x)
    np.testing.assert_allclose(
        np.asarray(got["y"]), torch.from_numpy(x).softmax(-1).numpy(), rtol=1e-6
    )


def test_language_model_takes_the_tokens_that_generate_takes(subject):
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.generation.torch_decoder import TorchDecoder

    llama = subject("llama")
    engine = TorchDecoder(llama.network)
    options = SamplingOptions(max_new_tokens=llama.new_tokens)
    batch = engine.start([llama.prompt], [0], options)
    engine.advance(batch, llama.new_tokens)
    trace = make_trace(llama, TorchBackend(llama, TORCH))
    assert trace.tokens == engine.outputs(batch)[0].tolist()
    forced = make_trace(llama, TorchBackend(llama, TORCH), forced=[5, 6])
    assert forced.tokens == [5, 6]
