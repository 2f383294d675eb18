"""Loading and calling models in one thread, while others use transformers themselves."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from huggingface_hub import constants
from transformers.integrations import sdpa_attention

from jaxsr.models.hugging_face.loading import load_folder
from jaxsr.models.hugging_face.network import LibraryLM
from jaxsr.models.transformers_files import check_config
from tests.oracles.language_models.tiny import tiny_model


@pytest.fixture
def elsewhere():
    """Calls a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result(timeout=60)


def test_configurations_are_opened_in_another_thread_meanwhile(elsewhere, tmp_path, monkeypatch):
    transformers.GPT2Config().save_pretrained(tmp_path)
    make, seen = transformers.AutoConfig.for_model, []

    def slow(*args, **kwargs):
        seen.append(constants.is_offline_mode())
        seen.append(elsewhere(constants.is_offline_mode))
        seen.append(elsewhere(lambda: type(transformers.GPT2Config.from_pretrained(tmp_path))))
        return make(*args, **kwargs)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.AutoConfig, "for_model", slow)
    check_config({"model_type": "gpt2"})
    assert seen == [True, False, transformers.GPT2Config]


def test_attention_of_other_threads_repeats_keys_meanwhile(elsewhere, tmp_path):
    network = LibraryLM(tiny_model("gpt2", tmp_path)).eval()
    mask, keys, seen = torch.ones(1, 1, 2, 2), torch.ones(1, 2, 2, 4), []

    def note(*_):
        for call in (lambda function: function(), elsewhere):
            seen.append(call(lambda: sdpa_attention.use_gqa_in_sdpa(mask, keys, keys)))
            seen.append(call(lambda: os.environ.get("TRANSFORMERS_SDPA_FORCE_GQA")))

    network.inner.register_forward_pre_hook(note)
    with torch.no_grad():
        network(torch.tensor([[4, 5]]))
    assert seen == [True, None, False, None]


def test_models_that_are_loaded_in_threads_leave_torch_as_it_was(tmp_path):
    model = tiny_model("gpt2", tmp_path)
    model.save_pretrained(tmp_path / "m")
    with ThreadPoolExecutor(4) as pool:
        dtypes = [torch.bfloat16, torch.float32] * 4
        loaded = [pool.submit(load_folder, tmp_path / "m", dtype=dtype) for dtype in dtypes]
        networks = [future.result().network for future in loaded]
    assert torch.get_default_dtype() == torch.float32
    for network, dtype in zip(networks, dtypes, strict=True):
        for name, value in model.state_dict().items():
            weight = network.state_dict()[f"inner.{name}"]
            assert torch.equal(weight, value.to(dtype)), name
