"""Products with packed weights against float64."""

import jax
import pytest
import torch

from jaxsr.interop.cpu_kernels import packed_product
from jaxsr.interop.cpu_kernels.packed_product import pack, product

GENERATOR = torch.Generator().manual_seed(0)


def matrix(bits, run, outputs=96, inputs=512):
    low, high = (0, 16) if bits == 4 else (-128, 128)
    levels = torch.randint(low, high, (outputs, inputs), generator=GENERATOR, dtype=torch.int16)
    levels = levels.to(torch.uint8 if bits == 4 else torch.int8)
    scale = torch.rand(outputs, inputs // run, generator=GENERATOR).half().float() + 0.1
    zero = torch.randn(outputs, inputs // run, generator=GENERATOR).half().float()
    each = (t.double().repeat_interleave(run, 1) for t in (scale, zero))
    weight = levels.double() * next(each) + next(each)
    return levels, scale, zero, weight


def error(y, reference):
    return float((y.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("run", [16, 32, 256])
@pytest.mark.parametrize("bits", [4, 8])
def test_errors_are_those_that_are_stated(bits, run, rows):
    levels, scale, zero, weight = matrix(bits, run)
    x = torch.randn(rows, 512, generator=GENERATOR)
    reference = x.double() @ weight.T
    for exact, most in ((True, 3e-5), (False, 1e-2)):
        packed = pack(levels, scale, zero, bits=bits, exact=exact)
        y = torch.empty(rows, 96)
        activations = x if exact else x.bfloat16()
        product(activations, packed.planes, packed.tables, out=y)
        assert error(y, reference) < most


def test_a_program_calls_the_kernel_and_gives_the_same():
    if not packed_product.available():
        pytest.skip("this CPU has no vector instructions for the kernel")
    levels, scale, zero, _ = matrix(4, 32)
    packed = pack(levels, scale, zero, bits=4, exact=True)
    x = torch.randn(2, 512, generator=GENERATOR)
    reference = torch.empty(2, 96)
    product(x, packed.planes, packed.tables, out=reference)
    arrays = (
        packed.planes.numpy(),
        jax.numpy.asarray(packed.tables.float().numpy(), "bfloat16"),
    )
    y = jax.jit(packed_product.call)(x.numpy(), *arrays)
    assert error(torch.from_numpy(jax.device_get(y).copy()), reference) < 1e-6


def test_matrices_of_many_rows_are_packed_in_parts():
    levels, scale, zero, weight = matrix(8, 32, outputs=4096 + 64, inputs=64)
    packed = pack(levels, scale, zero, bits=8, exact=True)
    x = torch.randn(1, 64, generator=GENERATOR)
    y = torch.empty(1, 4096 + 64)
    product(x, packed.planes, packed.tables, out=y)
    assert error(y, x.double() @ weight.T) < 3e-5
