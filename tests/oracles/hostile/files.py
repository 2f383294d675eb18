"""Small sound files of every kind that jaxsr reads, how they are damaged, and who reads them."""

import io
import json
import pickle
import random
import struct
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from jaxsr.errors import UserError
from tests.oracles.hostile import strangers

Reader = Callable[[Path], object]

_HF_CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048,
}  # fmt: skip
_NUMBERS = (0, 1, 127, 128, 255)
_WORDS = (b"-1", b"1e999", b"NaN", b"null", b"[" * 2000, b"9" * 6000, b'"../../x"', b"{}", b"\xff")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A file cut short, with flipped bits, bytes or counts replaced, or a part repeated."""
    changed = bytearray(data)
    match rng.randrange(6):
        case 0:
            return bytes(changed[: rng.randrange(len(changed))])
        case 1:
            for _ in range(rng.choice((1, 2, 8, 40))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        case 2:
            # Headers are where a decoder is led astray.
            for _ in range(rng.choice((1, 3))):
                changed[rng.randrange(min(len(changed), 160))] = rng.choice(_NUMBERS)
        case 3:
            start = rng.randrange(len(changed))
            changed[start:start] = changed[start : start + rng.randrange(1, 64)]
        case 4:  # counts and lengths
            form = rng.choice(("<I", ">I", "<Q", ">Q", "<H", ">H"))
            most = 2 ** (8 * struct.calcsize(form)) - 1
            value = rng.choice((0, 1, most, most >> 1, (most >> 1) + 1, most >> 4, most >> 8))
            start = rng.randrange(min(len(changed), 400))
            changed[start : start + struct.calcsize(form)] = struct.pack(form, value)
        case 5:
            start = rng.randrange(min(len(changed), 2000))
            changed[start : start + rng.randrange(1, 6)] = rng.choice(_WORDS)
    return bytes(changed)


def pictures() -> dict[str, bytes]:
    """Small pictures of every kind of file that is read, by name."""

    made: dict[str, bytes] = {}
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    rgb = Image.fromarray(_noise(48, 40, 3)).resize((40, 48), Image.Resampling.BICUBIC)

    def add(name: str, image: Image.Image, format: str, **options: Any) -> None:
        out = io.BytesIO()
        image.save(out, format, **options)
        made[name] = out.getvalue()

    add("rgb.png", rgb, "PNG", exif=exif, dpi=(72, 72))
    add("palette.png", rgb.quantize(32), "PNG", transparency=3)
    add("alpha.png", Image.fromarray(_noise(20, 20, 4)), "PNG")
    add("gray16.png", Image.fromarray(_noise(20, 20, deep=True)), "PNG")
    add("base.jpg", rgb, "JPEG", exif=exif)
    add("progressive.jpg", rgb, "JPEG", progressive=True)
    add("cmyk.jpg", Image.fromarray(_noise(24, 24, 4), "CMYK"), "JPEG")
    add("lossy.webp", rgb, "WEBP", exif=exif)
    add("lossless.webp", Image.fromarray(_noise(20, 20, 4)), "WEBP", lossless=True)
    add("plain.bmp", rgb, "BMP")
    add("frames.gif", rgb.quantize(16), "GIF", save_all=True, append_images=[rgb.quantize(8)])
    add("still.gif", rgb.quantize(16), "GIF")
    return made


def tiffs() -> dict[str, bytes]:
    """Small TIFFs, by name."""
    import tifffile

    made: dict[str, bytes] = {}
    rgb = Image.fromarray(_noise(48, 40, 3))
    for name in ("raw", "tiff_lzw", "jpeg", "tiff_adobe_deflate"):
        out = io.BytesIO()
        rgb.save(out, "TIFF", compression=name)
        made[f"{name}.tif"] = out.getvalue()
    pixels = _noise(24, 20, 3, deep=True)
    planes, gray_alpha = np.moveaxis(pixels, -1, 0), _noise(24, 20, 2, deep=True)
    options: dict[str, Any] = {"photometric": "minisblack", "extrasamples": ["unassalpha"]}
    stored: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "contig": (pixels, {"photometric": "rgb", "planarconfig": "contig"}),
        "separate": (planes, {"photometric": "rgb", "planarconfig": "separate"}),
        "alpha": (gray_alpha, {**options, "planarconfig": "contig"}),
    }
    for name, (array, named) in stored.items():
        out = io.BytesIO()
        tifffile.imwrite(out, array, **named)
        made[f"{name}.tif"] = out.getvalue()
    return made


def videos() -> dict[str, bytes]:
    """Videos of a few frames, by name."""
    import av

    made: dict[str, bytes] = {}
    for name, codec in (("a.mp4", "libx264"), ("a.mkv", "ffv1"), ("a.webm", "libvpx-vp9"),
                        ("a.avi", "mpeg4")):  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            with av.open(str(path), "w") as out:
                stream: Any = out.add_stream(codec, rate=25)
                stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
                for number in range(6):
                    pixels = np.roll(_noise(48, 64, 3), number, axis=1)
                    out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
                out.mux(stream.encode(None))
            made[name] = path.read_bytes()
    return made


def ggufs() -> dict[str, bytes]:
    """A language model's weights as a GGUF file, whole and quantised."""
    import gguf

    from jaxsr.models.registry import random_network

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, _HF_CONFIG["num_hidden_layers"])
    made: dict[str, bytes] = {}
    for quantised in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.gguf"
            writer = gguf.GGUFWriter(path, "llama")
            writer.add_context_length(2048)
            writer.add_embedding_length(_HF_CONFIG["hidden_size"])
            writer.add_block_count(_HF_CONFIG["num_hidden_layers"])
            writer.add_feed_forward_length(_HF_CONFIG["intermediate_size"])
            writer.add_head_count(_HF_CONFIG["num_attention_heads"])
            writer.add_head_count_kv(_HF_CONFIG["num_key_value_heads"])
            writer.add_layer_norm_rms_eps(1e-6)
            writer.add_token_list(["a", "b"])
            for name, value in random_network("llama").state_dict().items():
                short = names.get_name(name, try_suffixes=(".weight",))
                assert short is not None
                array = value.numpy()
                if quantised and array.ndim == 2:
                    q8 = gguf.GGMLQuantizationType.Q8_0
                    raw = gguf.quants.quantize(array, q8)
                    writer.add_tensor(short, raw, raw_dtype=q8)
                else:
                    writer.add_tensor(short, array)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            made["q8.gguf" if quantised else "f32.gguf"] = path.read_bytes()
    return made


def safetensors() -> dict[str, bytes]:
    """Weights as safetensors, the header first."""
    from safetensors.torch import save

    from jaxsr.models.registry import random_network

    weights = {
        name: value.contiguous() for name, value in random_network("llama").state_dict().items()
    }
    plain = save({n: w.clone() for n, w in weights.items()}, {"step": "3"})
    exported = resources.files("jaxsr").joinpath("weights", "restore_x4.safetensors").read_bytes()
    return {"plain.safetensors": plain, "exported.safetensors": exported}


def json_files() -> dict[str, bytes]:
    """The JSON files that are read: of a model folder, of a run."""
    from jaxsr.training.config_file import to_json
    from jaxsr.training.find_task import find_task

    run = to_json("span", find_task("span").presets["quick"])
    weight_map = dict.fromkeys(("model.norm.weight", "lm_head.weight"), "model-1.safetensors")
    files: dict[str, Any] = {
        "config.json": _HF_CONFIG,
        "model.safetensors.index.json": {"metadata": {}, "weight_map": weight_map},
        "run.json": run,
    }
    return {name: json.dumps(value, indent=1).encode() for name, value in files.items()}


def pickles() -> dict[str, bytes]:
    """Pickles of arrays, and torch's files."""
    import torch

    tree = {"a": {"kernel": _noise(3, 3, 4, 4).astype(np.float32), "bias": np.zeros(4, "f4")}}
    out = io.BytesIO()
    torch.save({"weight": torch.zeros(8, 8), "bias": torch.ones(8)}, out)
    return {
        "protocol-3.ckpt": pickle.dumps(tree, protocol=3),
        "protocol-4.ckpt": pickle.dumps(tree, protocol=4),
        "a.pt": out.getvalue(),
    }


def _noise(*shape: int, deep: bool = False) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(0, 65536 if deep else 256, shape, dtype=np.uint16 if deep else np.uint8)


def read_picture_file(path: Path) -> None:
    """As `restore`, `detect` and `train` do."""
    from jaxsr.data.decode import decode_rgb, picture_size
    from jaxsr.data.masks import read_mask
    from jaxsr.restoration import pictures as restoration

    restoration.picture_size(path)
    _all_of(
        lambda: restoration.read_picture(path),
        lambda: picture_size(path),
        lambda: decode_rgb(path),
        lambda: read_mask(path),
    )


def read_video_file(path: Path) -> None:
    """Every frame, as RGB."""
    from jaxsr.data.video import open_video

    with open_video(path) as reading:
        for frame in reading.frames():
            frame.to_ndarray(format="rgb24")


def read_model_file(path: Path) -> None:
    """As `generate` and `restore --model` do."""
    from jaxsr.models.load import load_model

    _all_of(lambda: load_model(path), lambda: load_model(path, kind="language model"))


def read_safetensors_file(path: Path) -> None:
    """As weights by themselves, and as those of a model folder."""
    from jaxsr.interop.weights import read_weights
    from jaxsr.models.load import load_model

    folder = path.parent / "model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_HF_CONFIG))
    (folder / "model.safetensors").write_bytes(path.read_bytes())
    _all_of(lambda: read_weights(path), lambda: load_model(folder), lambda: load_model(path))


def read_json_file(path: Path) -> None:
    """As the file of its name."""
    from jaxsr.models.llama import hf_folder
    from jaxsr.models.llama.config import LlamaConfig
    from jaxsr.models.load import load_model
    from jaxsr.training.config_file import read_config
    from jaxsr.training.find_task import find_task

    if path.name == "run.json":
        file = read_config(path)
        file.run_config(find_task(file.family).Config)
    elif path.name == "config.json":
        _all_of(lambda: LlamaConfig.from_hf(hf_folder.read_json(path)),
                lambda: load_model(path.parent))  # fmt: skip
    else:
        hf_folder.weight_files(path.parent)


def read_pickle_file(path: Path) -> None:
    """As VGG16's weights, or as a torch file."""
    from jaxsr.models.numpy_pickle import read_numpy_pickle
    from jaxsr.models.weight_files import read_weights

    (read_weights if path.suffix == ".pt" else read_numpy_pickle)(path)


def _all_of(*reads: Callable[[], object]) -> None:
    """Calls all, for each must read or refuse; raises the last refusal if none could read."""
    refusals: list[Exception] = []
    for read in reads:
        try:
            read()
        except (UserError, OSError) as error:
            check_refusal(error)
            refusals.append(error)
    if len(refusals) == len(reads):
        raise refusals[-1]


def check_refusal(error: Exception) -> None:
    """Raises `AssertionError` where a refusal is not a line for the user."""
    is_line = bool(str(error)) and "\n" not in str(error)
    from_system = isinstance(error, OSError) and error.errno is not None
    assert is_line and (isinstance(error, UserError) or from_system), repr(error)


KINDS: dict[str, tuple[Callable[[], dict[str, bytes]], Reader]] = {
    "pictures": (pictures, read_picture_file),
    "TIFF": (tiffs, read_picture_file),
    "videos": (videos, read_video_file),
    "GGUF": (ggufs, read_model_file),
    "safetensors": (safetensors, read_safetensors_file),
    "JSON": (json_files, read_json_file),
    "pickles": (pickles, read_pickle_file),
    "builders": (strangers.builders, strangers.read_builder_file),
    "tensors": (strangers.tensors, strangers.read_tensors_file),
    "tokenizers": (strangers.tokenizers, strangers.read_tokenizer_file),
    "run folders": (strangers.run_folders, strangers.read_run_folder),
    "rows": (strangers.rows, strangers.read_row_file),
}
"""Each kind's sound files and its reader."""
