"""Folders of families whose code or configuration is out of the ordinary, quantised and plain."""

import copy
import json

import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.language_models import load_language_model, load_shapes
from jaxsr.models.llama.quantized import QuantizedLinear
from tests.oracles.language_models.tiny import tiny_model

TOKENS = torch.arange(5, 12)[None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(family)`: the folder of a tiny model, as transformers writes it, and the model."""

    def make(family):
        folder = tmp_path_factory.mktemp(family)
        model = tiny_model(family, folder / "configuration")
        model.save_pretrained(folder)
        return folder, model

    return make


# Mamba's and Jamba's code multiplies `dt_proj.weight` itself; Falcon's linear layer is a class of
# its own.
@pytest.mark.parametrize(
    ("family", "plain"),
    [("mamba", "mixer.dt_proj"), ("jamba", "mamba.dt_proj"), ("falcon", None)],
)
def test_int8_is_the_product_with_rounded_weights(family, plain, saved):
    folder, model = saved(family)
    network = load_language_model(folder, scheme="int8").network
    rounded = copy.deepcopy(model)
    layers = {n: m for n, m in network.inner.named_modules() if isinstance(m, QuantizedLinear)}
    assert len(layers) >= 4
    for name, layer in layers.items():
        rounded.get_submodule(name).weight.data = layer.dequantized()
    if plain is not None:
        left = [n for n, m in network.inner.named_modules() if n.endswith(plain)]
        assert left and not {*left} & {*layers}
    with torch.no_grad():
        reference, _ = LibraryLM(rounded)(TOKENS)
        logits, _ = network(TOKENS)
    torch.testing.assert_close(logits, reference, atol=1e-4, rtol=1e-4)
    of_shapes = load_shapes(folder, scheme="int8").network
    layers = [(n, type(m)) for n, m in network.named_modules()]
    assert [(n, type(m)) for n, m in of_shapes.named_modules()] == layers


def test_infinity_in_a_configuration_is_read(saved):
    folder, model = saved("falcon_h1")
    assert "__float__" in (folder / "config.json").read_text()  # JSON has no infinity
    network = load_language_model(folder).network
    assert (
        json.loads(network.config.values)["time_step_limit"]
        == json.loads(model.config.to_json_string(use_diff=False))["time_step_limit"]
    )
    with torch.no_grad():
        logits, _ = network(TOKENS)
        torch.testing.assert_close(logits, model(TOKENS).logits[:, -1], atol=1e-5, rtol=1e-5)
