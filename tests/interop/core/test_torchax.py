"""Parts of torchax that jaxsr takes, and an installed torchax that lacks one."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.doctor.adapter import check_adapter
from jaxsr.interop import UnsupportedTorchError, explain, to_jax
from jaxsr.interop._core import registry, torchax
from jaxsr.interop._core.torchax import OPERATORS


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


@pytest.fixture
def without_bessel(monkeypatch):
    """torchax as it would be if it had no lowering of `aten.special_bessel_j0`."""
    registry.load()
    lowerings, decompositions = torchax._tables()
    packet = torch.ops.aten.special_bessel_j0
    bessel = {packet, packet.default}
    fewer = {op: lowering for op, lowering in lowerings.items() if op not in bessel}
    monkeypatch.setattr(torchax, "_tables", lambda: (fewer, decompositions))
    registry.resolve.cache_clear()
    yield
    registry.resolve.cache_clear()


def test_the_list_is_what_the_registry_says():
    registry.load()
    taken = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        operator, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, operator, None) if namespace == "aten" else None
        func = getattr(packet, overload or "default", None)
        if overload == "names":  # of named tensors, which torch 2.11 still makes
            continue
        if func is not None and registry.resolve(func).kind is registry.Kind.TORCHAX:
            taken.add(str(func))
    assert taken <= OPERATORS, "add them to interop/_core/torchax.py"
    unused = {
        name
        for name in OPERATORS - taken
        if torch._C._dispatch_has_kernel(name.replace(".", "::", 1).removesuffix(".default"))
    }
    assert not unused, "take them out of interop/_core/torchax.py"


@pytest.mark.usefixtures("without_bessel")
def test_an_operator_that_it_lacks_is_refused_by_name():
    message = (
        r"torchax \S+ has no lowering of aten\.special_bessel_j0\.default, "
        r"which jaxsr takes from it; "
        r"pip install 'torchax=="
    )
    with pytest.raises(UnsupportedTorchError, match=message):
        to_jax(Bessel()).apply({}, {}, np.eye(3, dtype=np.float32))
    assert re.search(message, str(explain("aten.special_bessel_j0")))
    first = next(check_adapter())
    assert first.subject == "torchax's lowerings"
    assert first.status == "fail"
    assert "aten.special_bessel_j0.default" in first.detail
    assert first.advice is not None
    assert first.advice.startswith("pip install 'torchax==")
    # What the registry does not take from it needs nothing of it.
    module = nn.ReLU()
    out, _ = to_jax(module).apply({}, {}, np.ones(3, np.float32))
    assert out.shape == (3,)


def test_doctor_is_content_with_this_one():
    assert next(check_adapter()).status == "ok"


@pytest.mark.slow
def test_one_that_has_no_table_is_one_line():
    program = """
import sys, types
import torch
sys.modules["torchax"] = types.ModuleType("torchax")
sys.modules["torchax.ops"] = types.ModuleType("torchax.ops")
from jaxsr.interop import explain
try:
    explain("aten.cat")
except ValueError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(
        r"torchax \S+ has no lowerings that jaxsr can read with torch \S+ \(ImportError: .*\); "
        r"pip install 'torchax==.*'.*\n",
        run.stdout,
    )


def test_the_version_to_install_is_the_one_of_ci():
    pin = re.search(r"torchax==[\w.]+", torchax.HOW_TO_INSTALL)
    constraints = Path(__file__).parents[3] / "constraints.txt"
    assert pin and pin[0] in constraints.read_text().splitlines()
