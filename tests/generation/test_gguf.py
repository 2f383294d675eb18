"""GGUF files written by the `gguf` package, with the permutation of llama.cpp's converter."""

import json
import struct

import numpy as np
import pytest
import torch

from jaxsr.errors import InputError, MissingFileError
from jaxsr.models.language_models import check_model, load_language_model
from jaxsr.models.llama.gguf_file import open_gguf
from jaxsr.models.llama.tokenizer import load_tokenizer
from jaxsr.models.load import load_model

pytest.importorskip("gguf")

import gguf

from tests.generation.command import run
from tests.generation.gguf_writer import write_gguf, zip_names

K = gguf.GGMLQuantizationType

TOKENS = torch.randint(3, 320, (1, 90), generator=torch.Generator().manual_seed(0))


def byte_level(tokenizer):
    """Writes a tokenizer of transformers as llama.cpp's converter does."""

    def write(writer):
        vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        special = set(tokenizer.all_special_tokens)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list([text for text, _ in vocab])
        writer.add_token_types([3 if text in special else 1 for text, _ in vocab])
        merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
        writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in merges])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
        writer.add_chat_template(tokenizer.chat_template)

    return write


@pytest.mark.parametrize("family", ["llama", "llama-plain", "qwen3"])
@torch.no_grad()
def test_file_gives_the_network_that_it_was_made_from(family, hf_model, tmp_path):
    model = hf_model(family)
    write_gguf(tmp_path / "m.gguf", model)
    got, _ = load_model(tmp_path / "m.gguf").network(TOKENS)
    torch.testing.assert_close(got, model(TOKENS).logits, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [K.F16, K.BF16, K.Q8_0, K.Q4_0, K.Q4_1])
def test_quantised_tensors_are_those_of_the_gguf_package(kind, hf_model, tmp_path):
    used = write_gguf(tmp_path / "m.gguf", hf_model("qwen3"), kind)
    network = load_language_model(tmp_path / "m.gguf", packed=False).network
    state = network.state_dict()
    assert len(state) == len(used)
    for name, source in zip_names(hf_model("qwen3")):
        np.testing.assert_array_equal(state[name].numpy(), used[source], err_msg=name)


@pytest.mark.parametrize("kind", [K.Q4_K, K.Q6_K, K.Q5_K, K.Q3_K, K.Q2_K, K.Q5_0])
def test_block_kinds_that_cannot_be_written_are_read_as_gguf_reads_them(kind, tmp_path):
    # Any bytes are a valid block; only infinite scales are avoided, for the comparison's sake.
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (4, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("before", np.ones(3, np.float32))
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = open_gguf(tmp_path / "m.gguf").read("t")
    theirs = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == "t")
    want = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
    assert got.shape == (4, 2 * block)
    np.testing.assert_array_equal(got, want.reshape(got.shape))


def test_tokenizer_in_the_file_is_the_one_it_was_made_from(hf_model, hf_tokenizer, texts, tmp_path):
    write_gguf(tmp_path / "m.gguf", hf_model("llama"), tokenizer=byte_level(hf_tokenizer))
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    for text in (*texts, "<|im_start|>user\nhi<|im_end|>"):
        assert tokenizer.encode(text) == hf_tokenizer.encode(text)
    messages = [{"role": "user", "content": " hi "}]
    want = hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.chat(messages) == want
    assert load_model(tmp_path / "m.gguf").stop_ids == (2, 0)  # <|im_end|>, <|endoftext|>


@pytest.mark.usefixtures("settings_restored")
def test_sampling_that_a_file_recommends_is_refused_where_it_is_asked_for(
    capsys, hf_model, hf_tokenizer, tmp_path
):
    path, extra = tmp_path / "m.gguf", {"general.sampling.temp": 0.7, "general.sampling.top_k": 9}
    write_gguf(path, hf_model("llama"), tokenizer=byte_level(hf_tokenizer), extra=extra)
    common = ("Hi", "--raw", "--model", path, "--max-new-tokens", 3, "--engine", "torch")
    for implementation in ("own", "transformers"):
        status, _, stderr = run(
            capsys, *common, "--implementation", implementation, "--model-sampling"
        )
        assert (status, stderr.count("\n")) == (2, 1)
        assert "sets general.sampling.temp, general.sampling.top_k, which jaxsr does not" in stderr
    assert run(capsys, *common)[0] == 0


def test_file_cut_anywhere_is_refused_in_one_line(hf_model, hf_tokenizer, tmp_path):
    write_gguf(tmp_path / "m.gguf", hf_model("llama"), tokenizer=byte_level(hf_tokenizer))
    whole = (tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [0, 3, 10, 23, 24, *np.linspace(30, len(whole) - 1, 60).astype(int)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut short|breaks off|cut\.gguf") as caught:
            open_gguf(cut)
        assert "\n" not in str(caught.value)


def test_other_files_and_architectures_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(ValueError, match="is not a GGUF file"):
        load_model(path)
    writer = gguf.GGUFWriter(path, "rwkv6")
    writer.add_tensor("t", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="holds a 'rwkv6' model; GGUF files are read of"):
        load_model(path)


def header(tensors=0, fields=(), tail=b""):
    text = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields))
    for name, content in fields:
        text += struct.pack("<Q", len(name)) + name.encode() + content
    return (text + tail).ljust(2000, b"\0")


def tensor(name, shape, kind=0, offset=0):
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name.encode() + axes + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0) + bytes(99), "tensors, more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60) + bytes(99), "fields, more than"),
        (header(0, [("a", struct.pack("<IIQ", 9, 0, 2**62))]), "entries of a list, more than"),
        (header(0, [("a", struct.pack("<IIQ", 9, 9, 2))]), "a list of lists"),
        (header(0, [("a", struct.pack("<IQ", 8, 2**40))]), "a string of"),
        (header(0, [("general.alignment", struct.pack("<II", 4, 0))]), "no power of two"),
        (header(1, tail=tensor("t", [2**32, 2**32])), "cut short"),
        (header(1, tail=tensor("t", [1] * 20)), "axes of t"),
        (header(1, tail=tensor("t", [33], kind=8)), "whole blocks of 32"),
        (header(2, tail=tensor("t", [1]) * 2), "there twice"),
        (header(2, tail=tensor("t", [9]) + tensor("u", [9], offset=32)), "t and u overlap"),
        (header(1, tail=tensor("t", [1], kind=77)), "t has the unknown type 77"),
    ],
)
def test_counts_are_judged_before_anything_follows_them(tmp_path, content, reason):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as error:
        open_gguf(path)
    assert "\n" not in str(error.value)


def test_a_huge_sparse_file_is_refused_at_once(tmp_path):
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2**16))
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"sparse\.gguf"):
        load_model(path)


def with_field(content, name, value):
    """A GGUF file whose field of numbers has another value: it follows the name and its type."""
    at = content.index(name) + len(name) + 4
    return content[:at] + value + content[at + len(value) :]


def with_text(content, name, value):
    """A GGUF file with one more field, of text; the tensors' place is aligned to 32 bytes."""
    words = [struct.pack("<Q", len(word)) + word for word in (name.encode(), value.encode())]
    field = words[0] + struct.pack("<I", 8) + words[1]
    (count,) = struct.unpack_from("<Q", content, 16)
    padding = b"\0" * (-len(field) % 32)
    assert not padding, len(field)
    return content[:16] + struct.pack("<Q", count + 1) + field + content[24:]


@torch.no_grad()
def test_parts_and_folders_of_gguf_files(hf_model, hf_tokenizer, texts, tmp_path):
    model, folder = hf_model("llama"), tmp_path / "split"
    folder.mkdir()
    write_gguf(folder / "m.gguf", model, tokenizer=byte_level(hf_tokenizer), split=5)
    parts = sorted(folder.glob("*.gguf"))
    assert len(parts) > 2
    (folder / "mmproj-m.gguf").write_bytes(b"of images")
    for path in (folder, parts[0], parts[1]):
        loaded = load_model(path)
        assert loaded.name == parts[0].stem
        network = loaded.network
        torch.testing.assert_close(network(TOKENS)[0], model(TOKENS).logits, atol=2e-4, rtol=1e-5)
        assert load_tokenizer(path).encode(texts[0]) == hf_tokenizer.encode(texts[0])
    check_model(folder)
    content, others = parts[2].read_bytes(), parts[1].read_bytes()
    parts[2].write_bytes(with_field(others, b"split.no", struct.pack("<H", 2)))
    with pytest.raises(InputError, match="is in two parts"):
        load_model(folder)
    parts[2].write_bytes(content)
    parts[2].write_bytes(with_text(content, "general.architecture", "x" * 24))
    with pytest.raises(
        InputError, match=r"00003-of-\d+\.gguf has another general\.architecture than"
    ):
        load_model(folder)
    parts[2].write_bytes(content)
    first = parts[0].read_bytes()
    parts[0].write_bytes(with_field(first, b"split.tensors.count", struct.pack("<i", 999)))
    with pytest.raises(InputError, match=r"the parts hold \d+ of 999 tensors"):
        load_model(folder)
    parts[0].write_bytes(first)
    parts[2].write_bytes(others)
    with pytest.raises(InputError, match="is not part 3 of"):
        load_model(folder)
    parts[2].unlink()
    with pytest.raises(MissingFileError, match=r"lacks 1 of .* parts: m-00003-of-"):
        load_model(folder)
    parts[2].write_bytes(content)
    renamed = parts[0].rename(folder / "other.gguf")
    with pytest.raises(InputError, match="give the files their names again"):
        load_model(renamed)
    (folder / "more.gguf").write_bytes(content)
    with pytest.raises(
        InputError, match=r"has 3 GGUF files .m-00001\S+, more\.gguf, other\.gguf.; give one"
    ):
        load_model(folder, kind="language model")
