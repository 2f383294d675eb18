"""A release of torch that lacks an operator: everything else works, and `explain` says so."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
import torch.distributed.tensor
import torch._dynamo
import torch._inductor.lowering

plain = type(torch.ops.aten).__getattr__


def without(self, name):
    if name in ("cholesky", "qr", "unfold_copy"):
        raise AttributeError(f"'_OpNamespace' 'aten' object has no attribute '{name}'")
    return plain(self, name)


type(torch.ops.aten).__getattr__ = without
vars(torch.ops.aten).pop("cholesky", None)
names = torch._C._dispatch_get_all_op_names
torch._C._dispatch_get_all_op_names = lambda: [
    name for name in names() if name.split(".")[0] != "aten::cholesky"
]

from jaxsr.interop import explain, to_jax
from jaxsr.interop.errors import InputError

module = torch.nn.Linear(2, 2)
x = torch.ones(1, 2)
model = to_jax(module)
out, _ = model.apply(model.params, model.buffers, x.numpy())
assert abs(out - module(x).detach().numpy()).max() < 1e-6
for name in ("aten.cholesky", "aten::cholesky", "torch.ops.aten.cholesky.default"):
    try:
        explain(name)
    except InputError as error:
        assert f"torch {torch.__version__} has no operator '{name}'" in str(error), error
    else:
        raise AssertionError(name)
print("computed")
"""


@pytest.mark.slow
def test_the_rest_works():
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "computed\n", run.stderr
