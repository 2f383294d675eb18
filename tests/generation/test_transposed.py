"""The transposed form of a network against the network itself, in plain torch."""

import copy

import pytest
import torch

from jaxsr.models.llama.host_weights import without_values
from jaxsr.models.llama.quantized import quantize
from jaxsr.models.llama.transposed import arranged, transpose


@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
@pytest.mark.parametrize("scheme", [None, "int8"])
@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (2, 40)])
def test_logits_are_the_same(family, scheme, panels, shape, network):
    plain = network(family)
    if scheme is not None:
        plain = quantize(copy.deepcopy(plain), scheme)
    state = dict(plain.named_parameters()) | dict(plain.named_buffers())
    turned = without_values(plain)
    names, in_panels = transpose(turned, panels=panels)
    assert ("model.embed_tokens.weight" in names) and all(n.endswith(".weight") for n in names)
    assert ("model.embed_tokens.weight" in in_panels) == panels and in_panels <= names
    given = state | {
        n: torch.from_numpy(arranged(state[n].detach().numpy(), panels=n in in_panels))
        for n in names
    }
    tokens = torch.randint(0, 320, shape, generator=torch.Generator().manual_seed(0))
    want, _ = plain(tokens)
    got, _ = torch.func.functional_call(turned, given, (tokens,))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)  # other order of float32 sums
