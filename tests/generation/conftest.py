"""Small random models made by `transformers`, the oracle of these tests, and their folders."""

import json
import os
import shutil
from pathlib import Path

import jax
import pytest
import torch
from safetensors.torch import load_file


def _config(family: str):
    transformers = pytest.importorskip("transformers")
    common = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "max_position_embeddings": 512,
        # Wide enough that greedy outputs do not fall into a fixed point at once.
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "llama":  # Llama 3.2: tied, rope scaled, grouped queries
        rope = {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        return transformers.LlamaConfig(
            **common, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=rope
        )
    if family == "llama-plain":  # own head, a key-value head per query head, biases
        return transformers.LlamaConfig(
            **common,
            num_key_value_heads=8,
            tie_word_embeddings=False,
            attention_bias=True,
            mlp_bias=True,
            rms_norm_eps=1e-5,
        )
    return transformers.Qwen3Config(
        **common, num_key_value_heads=4, head_dim=16, tie_word_embeddings=False
    )


FAMILIES = ("llama", "llama-plain", "qwen3")


@pytest.fixture(scope="session")
def hf_model():
    """`hf_model(family)`: a seeded random `transformers` model in eval mode."""
    import torch

    made = {}

    def make(family: str):
        if family not in made:
            transformers = pytest.importorskip("transformers")
            torch.manual_seed(FAMILIES.index(family))
            model = transformers.AutoModelForCausalLM.from_config(_config(family))
            generator = torch.Generator().manual_seed(9)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "norm" in name or name.endswith("bias"):  # or they would hide a mistake
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.add_(0.2 * noise)
            model.generation_config.do_sample = False
            made[family] = model.eval()
        return made[family]

    return make


@pytest.fixture(scope="session")
def network(hf_model):
    """`network(family)`: our network with that model's weights."""
    import torch

    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.llama.loading import build

    made = {}

    def make(family: str):
        if family not in made:
            model = hf_model(family)
            fields = json.loads(model.config.to_json_string(use_diff=False))
            config = LlamaConfig.from_hf(fields)
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            made[family] = build(config, state, torch.float32).requires_grad_(False).eval()
        return made[family]

    return make


TEXTS = (
    "Hello, how are you?",
    "The capital of France is Paris; it's 2024 and 1234567 people don't know.",
    "  leading spaces\n\n\nand lines\t\ttabs  ",
    "Über naïve façades: 東京 🙂 — “quotes”",
    "x = [1, 2, 3]  # comment\n\tif x: pass",
)

TEMPLATE = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim "
    "+ '<|im_end|>' + '\\n' }}\n"
    "{% endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def hf_tokenizer():
    """A byte-level BPE of 320 tokens, trained here, as `transformers` wraps it."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = tokenizers.Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS * 4, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )


@pytest.fixture(scope="session")
def texts() -> tuple[str, ...]:
    return TEXTS


@pytest.fixture(scope="session")
def model_folder(hf_model, hf_tokenizer, tmp_path_factory):
    """`model_folder(family)`: the model and tokenizer as `transformers` saves them, in shards."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            hf_model(family).save_pretrained(folder, max_shard_size="100KB")
            hf_tokenizer.save_pretrained(folder)
            made[family] = folder
        return made[family]

    return make


def single_file(model_folder, family, tmp_path):
    """A copy with all tensors in one file, to be changed."""
    folder = shutil.copytree(model_folder(family), tmp_path / "m")
    tensors = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
        path.unlink()
    (folder / "model.safetensors.index.json").unlink()
    return folder, tensors


@pytest.fixture
def settings_restored(tmp_path, monkeypatch):
    """The command changes JAX's configuration and the environment; tests after it must not see."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    names = (
        "jax_default_matmul_precision",
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    torch.use_deterministic_algorithms(False)
