"""The transposed form of a network against the network itself, in plain torch."""

import copy

import pytest
import torch

from jaxsr.generation.generate_loop import complete
from jaxsr.generation.jax_decoder import JaxDecoder
from jaxsr.generation.options import SamplingOptions
from jaxsr.generation.stored_weights import named_tensors, without_values
from jaxsr.models.llama.quantized import quantize
from jaxsr.models.llama.transposed import arranged, linear_weights, transpose, untie_head


@pytest.mark.sample(8)
@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
@pytest.mark.parametrize("scheme", [None, "int8"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (2, 40)])
def test_logits_are_the_same(family, scheme, compiled, shape, network):
    plain = network(family)
    if scheme is not None:
        plain = quantize(copy.deepcopy(plain), scheme)
    state = dict(plain.named_parameters()) | dict(plain.named_buffers())
    turned = without_values(plain)
    names, in_panels = transpose(turned, compiled=compiled)
    assert ("model.embed_tokens.weight" in names) and all(n.endswith(".weight") for n in names)
    assert ("model.embed_tokens.weight" in in_panels) == compiled and in_panels <= names
    arrays = state | {n: arranged(state[n].detach(), panels=n in in_panels) for n in names}
    tokens = torch.randint(0, 320, shape, generator=torch.Generator().manual_seed(0))
    want, _ = plain(tokens)
    got, _ = torch.func.functional_call(turned, arrays, (tokens,))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-5)  # other order of float32 sums


class HeadFirst(torch.nn.Module):
    """Shares the embedding's weight with a head that comes before it, as CamemBERT does."""

    def __init__(self):
        super().__init__()
        self.head, self.plain = torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 4)
        self.table = torch.nn.Embedding(6, 4)
        self.table.weight = self.head.weight


def test_a_head_before_its_embedding_gets_a_weight_of_its_own():
    network = HeadFirst()
    turned = without_values(network)
    copied = untie_head(turned)
    assert copied == {"table.weight": "head.weight"}
    assert {*named_tensors(network), *copied} == {n for n, _ in turned.named_parameters()}
    assert linear_weights(turned) == {"head.weight", "plain.weight"}


@pytest.mark.parametrize(
    "family",
    ["llama", pytest.param("llama-plain", marks=pytest.mark.slow)],  # tied, untied
)
def test_an_engine_that_takes_the_values_computes_the_same(family, network):
    options, prompts = SamplingOptions(max_new_tokens=4), [[5, 7, 11]]
    reference = complete(JaxDecoder(network(family)), prompts, options).completions
    source = copy.deepcopy(network(family))
    engine = JaxDecoder(source, keeps_values=False)
    assert all(t.untyped_storage().nbytes() <= 8 for t in named_tensors(source).values())
    assert complete(engine, prompts, options).completions[0].tokens == reference[0].tokens
