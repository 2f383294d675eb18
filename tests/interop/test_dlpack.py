"""torch tensors and JAX arrays in the same memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from jaxsr.interop.dlpack import array_of, tensor_of
from jaxsr.interop.errors import InputError, InputTypeError
from jaxsr.interop.mesh import make_mesh

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_have_the_same_memory(dtype):
    tensor = torch.randint(0, 2, (2, 3, 5)).to(getattr(torch, dtype))
    array = array_of(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert array.dtype == dtype
    back = tensor_of(array)
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (1, 4, 1)])
def test_shapes_without_much_in_them(shape):
    tensor = torch.ones(shape)
    np.testing.assert_array_equal(array_of(tensor), tensor.numpy())
    assert tensor_of(jnp.ones(shape)).shape == shape


def test_channels_last_is_not_copied():
    tensor = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    array = array_of(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(array), tensor.numpy() * 2)


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(InputError, match=r"strides \(6, 2\) has gaps in memory, .*contiguous"):
        array_of(torch.randn(4, 6)[:, ::2])
    with pytest.raises(InputError, match=r"strides \(0, 1\) has gaps"):
        array_of(torch.randn(1, 6).expand(4, 6))
    with pytest.raises(InputError, match=r"requires a gradient, .*detach"):
        array_of(torch.randn(3, requires_grad=True))
    with pytest.raises(InputError, match=r"would copy a tensor of int64; .*jax_enable_x64"):
        array_of(torch.arange(3))
    with pytest.raises(InputTypeError, match=r"takes a torch.Tensor, got ndarray"):
        array_of(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"JAX array of numbers, got key<fry>"):
        tensor_of(jax.random.key(0))
    with pytest.raises(InputTypeError, match="JAX array of numbers, got Tensor"):
        tensor_of(torch.ones(3))  # type: ignore[arg-type]
    sharding = NamedSharding(make_mesh(2), PartitionSpec("data"))
    with pytest.raises(InputError, match=r"lies on 2 devices .*addressable_shards"):
        tensor_of(jax.device_put(jnp.zeros(4), sharding))
