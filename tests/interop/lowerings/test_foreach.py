"""Functions of lists of tensors, and weights averaged by them, against torch."""

import copy
from typing import cast

import jax
import numpy as np
import pytest
import torch
from torch import nn

from jaxsr.interop import to_jax

SHAPES = [(3,), (2, 2)]
ARGUMENTS = {
    "add": ("others", {"alpha": 2}),
    "sub": (2.0, {}),
    "mul": ([2.0, 3.0], {}),
    "div": ("others", {}),
    "lerp": ("others", 0.1, {}),
    "addcdiv": ("others", "others", 0.5, {}),
    "addcmul": ("others", "others", [0.5, 2.0], {}),
    "pow": (3, {}),
    "maximum": ("others", {}),
    "minimum": (0.2, {}),
    "clamp_min": (0.1, {}),
    "clamp_max": ([0.3, 0.4], {}),
    "copy": ("others", {}),
    "norm": (1, {}),
}
PLAIN = ["abs", "exp", "neg", "sqrt", "zero", "sigmoid", "reciprocal", "round", "max", "log1p"]
CASES = ARGUMENTS | {name: ({},) for name in PLAIN}


class Call(nn.Module):
    def __init__(self, function, args, options):
        super().__init__()
        self.function, self.args, self.options = function, args, options

    def forward(self, *tensors):
        first = [t * 1 for t in tensors[:2]]
        others = list(tensors[2:])
        args = [others if a == "others" else a for a in self.args]
        out = self.function(first, *args, **self.options)
        return [*out, *first]  # in-place ones change these


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", [n + end for n in CASES for end in ("", "_")])
def test_equals_torch(name):
    function = getattr(torch, f"_foreach_{name}", None)
    if function is None:
        pytest.skip("torch has no such function")
    *args, options = CASES[name.rstrip("_")]
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, np.float32) + 0.1 for shape in SHAPES * 2]
    module = Call(function, args, options)
    expected = module(*map(torch.from_numpy, arrays))
    for ours, theirs in zip(to_jax(module).apply({}, {}, *arrays)[0], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            sides = (list(m.parameters()) for m in (self.teacher, self.student))
            teacher, student = (cast("list[torch.Tensor]", side) for side in sides)
            torch._foreach_lerp_(teacher, student, 0.1)
        return self.student(x) - self.teacher(x * 2)


def test_a_teacher_is_the_running_mean_of_its_student():
    torch.manual_seed(0)
    module = Teacher()
    model = to_jax(module)
    params, buffers = model.params, model.buffers
    x = np.random.default_rng(0).random((2, 4), np.float32)
    for _ in range(3):
        out, buffers = jax.jit(model.apply)(params, buffers, x)
        np.testing.assert_allclose(out, module(torch.from_numpy(x)).detach(), atol=1e-6)
        params = {name: value * 1.1 for name, value in params.items()}
        with torch.no_grad():
            for weight in module.student.parameters():
                weight.mul_(1.1)
    for name, value in module.teacher.named_parameters():
        np.testing.assert_allclose(buffers[f"teacher.{name}"], value, rtol=1e-5)
