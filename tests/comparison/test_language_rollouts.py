"""The steps of a comparison are those of generation."""

import pytest
import torch

pytest.importorskip("transformers")

from jaxsr.comparison.workload import LanguageWorkload
from jaxsr.models.hugging_face.network import LibraryLM
from tests.oracles.language_models.tiny import PROMPTS, reference_tokens, tiny_model


@pytest.mark.parametrize("family", ["gemma2", "mamba2"])
def test_models_of_transformers_choose_their_own_tokens(family, tmp_path):
    model = tiny_model(family, tmp_path)
    network = LibraryLM(model).requires_grad_(False).eval()
    workload = LanguageWorkload(
        family=family, model="tiny", network=network, inputs_text="", casts_buffers=False,
        prompt=tuple(PROMPTS[1]), new_tokens=6,
    )  # fmt: skip
    rollout = workload.begin()
    while (inputs := rollout.inputs()) is not None:
        args, options = torch.utils._pytree.tree_map(_tensor, inputs)
        logits, entries = network(*args, **options)
        outputs = (logits.numpy(), {name: t.numpy() for name, t in entries.items()})
        rollout.take(outputs)
    assert rollout.tokens == reference_tokens(model, new_tokens=6)[1]


def _tensor(array):
    tensor = torch.as_tensor(array)
    return tensor if tensor.is_floating_point() else tensor.long()
