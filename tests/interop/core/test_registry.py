"""Registration, and the order in which `resolve` chooses."""

import re

import pytest
import torch

from jaxsr.interop import lowering
from jaxsr.interop._core import registry
from jaxsr.interop._core.registry import Kind, is_overload, resolve

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("registry_copy")


def test_every_entry_is_in_force():
    """No entry stands behind another one, or behind what torch's schema decides."""
    for (slot, func), entry in registry._ENTRIES.items():
        if slot is None and is_overload(func):
            assert resolve(func) is entry, func
        elif slot is Kind.UNUSED and is_overload(func):
            assert resolve(func).kind is not Kind.TORCHAX, func


def test_a_second_registration_names_both_places():
    with pytest.raises(ValueError, match="registered twice") as error:
        registry.lowers(aten.amax.default)(lambda x: x)
    assert re.search(r"extremes\.py:\d+ .*test_registry\.py:\d+ ", str(error.value))
    with pytest.raises(ValueError, match=r"aten\.amax\.default is registered twice"):
        registry.refuse({aten.amax: "another kind is a second registration as well"})


def test_a_users_lowering_goes_in_front_and_can_be_replaced():
    for func in (
        aten.amax.default,
        aten.as_strided_scatter.default,
        aten.native_batch_norm.default,
    ):
        for function in (lambda *_: None, lambda *_: None):
            lowering(func)(function)
            assert resolve(func).kind is Kind.USER
            assert resolve(func).function is function


def test_a_users_lowering_of_an_operator_is_one_of_all_its_overloads():
    lowering(aten.sinc)(abs)
    assert resolve(aten.sinc.default).function is abs


@pytest.mark.parametrize(
    ("func", "text"),
    [
        (aten.add_.Tensor, r"aten\.add_\.Tensor writes into its argument"),
        (aten.permute.default, r"aten\.permute\.default is a view of its argument"),
    ],
)
def test_writes_and_views_take_no_lowering(func, text):
    with pytest.raises(ValueError, match=text):
        lowering(func)(lambda x: x)


@pytest.mark.parametrize(
    ("func", "kind"),
    [
        (torch.ops.prim.device.default, Kind.PYTHON),
        (aten.lift_fresh.default, Kind.LIFT),
        (aten.as_strided_scatter.default, Kind.REFUSED),
        (aten.rand.default, Kind.HANDLER),
        (aten.linear.default, Kind.COMPOSITE),
        (aten.equal.default, Kind.VALUE),
        (aten.add_.Tensor, Kind.WRITE),
        (aten.as_strided.default, Kind.VIEW),
        (aten.relu.default, Kind.LOWERING),
        (aten.index_reduce.default, Kind.DECOMPOSITION),
        (aten.silu.default, Kind.LOWERING),
        (aten.native_layer_norm_backward.default, Kind.DECOMPOSITION),
        (aten.special_bessel_j0.default, Kind.TORCHAX),
        (aten.geqrf.default, Kind.NOTHING),
    ],
)
def test_kinds(func, kind):
    assert resolve(func).kind is kind


def test_a_lowering_by_name_waits_for_its_library():
    lowering("jaxsr_late::double")(lambda x: 2 * x)
    library = torch.library.Library("jaxsr_late", "DEF")
    library.define("double(Tensor x) -> Tensor")
    assert resolve(torch.ops.jaxsr_late.double.default).kind is Kind.USER
    lowering("jaxsr_late::double")(abs)
    assert resolve(torch.ops.jaxsr_late.double.default).function is abs
    lowering("aten::sinc.out_of_nowhere")(abs)
    assert resolve(aten.sinc.default).kind is not Kind.USER


def test_a_late_operator_that_writes_takes_no_lowering():
    lowering("jaxsr_late::halve_")(abs)
    library = torch.library.Library("jaxsr_late", "FRAGMENT")
    library.define("halve_(Tensor(a!) x) -> Tensor(a!)")
    with pytest.raises(ValueError, match=r"jaxsr_late\.halve_\.default writes into its argument"):
        resolve(torch.ops.jaxsr_late.halve_.default)


@pytest.mark.parametrize("name", ["sinc", "::sinc", "aten::", "aten.sinc"])
def test_a_name_has_a_namespace(name):
    with pytest.raises(ValueError, match=r'names no operator; write "namespace::op"'):
        lowering(name)(abs)
