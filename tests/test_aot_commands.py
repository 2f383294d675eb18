"""`--aot` on every command: compiles for a TPU or a GPU, reports, runs nothing."""

import importlib.util
import json

import jax
import pytest

from jaxsr import check, detect, generate, restore, train

if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install -e '.[aot]'", allow_module_level=True)

needs_cuda_plugin = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="JAX's CUDA plugin is not installed: pip install -e '.[aot-gpu]'",
)
GPUS = [pytest.param(name, marks=needs_cuda_plugin) for name in ("a100", "h100", "b200", "l4")]
TRAIN = (
    "--model.width", "8", "--model.depth", "1", "--batch", "8", "--crop", "32", "--steps", "2",
)  # fmt: skip
TPU = ("--aot", "v5e:2x2")


@pytest.fixture(params=["v5e", *GPUS])
def device(request):
    return request.param


@pytest.fixture
def four(device):
    """Four devices of a kind."""
    return "v5e:2x2" if device == "v5e" else f"{device}:4"


@pytest.fixture(autouse=True)
def settings():
    """The commands change JAX's settings, as they may: each is a process of its own."""
    names = ("jax_default_matmul_precision", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def report(path):
    programs = json.loads(path.read_text())["programs"]
    assert all(one["compiles"] and one["devices"] == 4 for one in programs), programs
    assert all(one["memory_bytes"]["total"] > 0 and one["memory_share"] < 1 for one in programs)
    assert all("not measured" in one["estimate"]["method"] for one in programs)
    for one in programs:
        memory = one["memory_bytes"]
        # On TPUs the code is most of a tiny program, and not always a part of XLA's peak.
        # Of a program without weights XLA's peak leaves out what is a third of its few kilobytes.
        is_large = memory["total"] > 2**16
        if memory["peak"] is not None and "v5e" not in one["topology"] and is_large:
            assert memory["total"] == pytest.approx(memory["peak"], rel=0.15), one["name"]
    return programs


@pytest.mark.sample(1)
def test_train_compiles_and_leaves_no_run(four, tmp_path, capsys):
    options = (
        *TRAIN,
        "--aot",
        four,
        "--out",
        str(tmp_path / "run"),
        "--aot-json",
        str(tmp_path / "report"),
    )
    assert train.main(options) == 0
    (one,) = report(tmp_path / "report")
    assert one["name"] == "fast-srgan pretrain" and "all-reduce" in one["collectives"]
    assert not (tmp_path / "run").exists()
    shown = capsys.readouterr().out
    assert f"{four}: 4 devices" in shown and "(estimate)" in shown


@pytest.mark.slow
def test_generate_needs_the_configuration_alone(four, tmp_path):
    fields = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    options = ["--model", str(tmp_path), "--dtype", "bfloat16", "--aot", four]
    options += ["--aot-json", str(tmp_path / "report"), "--quantize", "int8"]
    assert generate.main(options) == 0
    prefill, first_token, decode = report(tmp_path / "report")
    assert (prefill["name"], decode["name"]) == ("prefill 1x256", "decode 1x1024")
    assert first_token["name"] == "first_token 1x256"
    # Tensor parallel: two sums a layer, and nothing that is split is gathered; GPUs gather the
    # devices' likeliest tokens.
    assert decode["collectives"]["all-reduce"]["count"] >= 2 * fields["num_hidden_layers"]
    gathered = decode["collectives"].get("all-gather", {"bytes": 0})
    assert gathered["bytes"] < 100


@pytest.mark.sample(1)
def test_restore_compiles_tiles(four, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import torch\nclass Net(torch.nn.Conv2d):\n"
        "    def __init__(self):\n        super().__init__(3, 3, 3, padding=1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from own import Net  # type: ignore[import-not-found]
    from safetensors.torch import save_file

    save_file(Net().state_dict(), tmp_path / "net.safetensors")
    options = ["--model", "own:Net", "--weights", str(tmp_path / "net.safetensors")]
    options += ["--aot", four, "--aot-json", str(tmp_path / "report"), "--tile", "64"]
    assert restore.main(options) == 0
    (one,) = report(tmp_path / "report")
    assert one["name"] == "restore 64x64"
    assert restore.main([*options, "--benchmark", "96x48"]) == 0
    (one,) = report(tmp_path / "report")
    # A tile for each of the four devices, a pixel of margin on its two inner sides.
    assert one["name"] == "restore 49x25"


@pytest.mark.slow
def test_detect_compiles_a_batch(four, tmp_path):
    from jaxsr.interop.weights import export_weights
    from jaxsr.models.mshnet.config import MSHNetConfig
    from jaxsr.models.mshnet.network import MSHNet

    state = {name: value.numpy() for name, value in MSHNet(MSHNetConfig()).state_dict().items()}
    export_weights(tmp_path / "net.safetensors", state)
    options = ["--model", str(tmp_path / "net.safetensors"), "--out", str(tmp_path / "found")]
    options += ["--aot", four, "--aot-json", str(tmp_path / "report"), "--base", "64"]
    assert detect.main(options) == 0
    (one,) = report(tmp_path / "report")
    assert one["name"] == "detect 64x64"
    assert not (tmp_path / "found").exists()


@pytest.mark.sample(2)
def test_check_compiles_forward_and_gradient(four, tmp_path):
    sizes = '{"in_features": 2048, "out_features": 1024}'
    options = ["--model", "torch.nn:Linear", "--model-options", sizes, "--input", "8,2048"]
    options += ["--aot", four, "--aot-json", str(tmp_path / "report")]
    assert check.main(options) == 0
    assert [one["name"] for one in report(tmp_path / "report")] == ["forward", "gradient"]


@pytest.fixture
def reset_cache():
    """JAX looks for the folder once."""
    from jax.experimental.compilation_cache import compilation_cache

    compilation_cache.reset_cache()
    yield compilation_cache.reset_cache
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


@pytest.mark.slow
@pytest.mark.usefixtures("reset_cache")
def test_programs_are_kept_as_a_compile_cache(tmp_path):
    assert train.main([*TRAIN, *TPU, "--aot-save", str(tmp_path / "cache")]) == 0
    assert list((tmp_path / "cache").glob("jit_step*"))


@needs_cuda_plugin
def test_programs_that_a_gpu_cannot_run_are_not_kept(reset_cache, tmp_path, capsys):
    """cuDNN refuses a convolution without an algorithm, which XLA chooses on the device."""
    save = tmp_path / "cache"
    saved = ["--aot", "h100:1", "--aot-save", str(save)]
    sizes = '{"in_channels": 8, "out_channels": 8, "kernel_size": 3}'
    options = ["--model", "torch.nn:Conv2d", "--model-options", sizes, "--input", "1,8,16,16"]
    assert check.main([*options, *saved]) == 0
    assert not list(save.glob("jit_forward*"))
    text = capsys.readouterr().out
    assert "forward is not kept: the device compiles it, for cuDNN's algorithms" in text
    assert "--compile-cache" not in text

    reset_cache()
    sizes = '{"in_features": 64, "out_features": 64}'
    options = ["--model", "torch.nn:Linear", "--model-options", sizes, "--input", "1,64"]
    assert check.main([*options, *saved]) == 0
    assert list(save.glob("jit_forward*"))
    assert "give it to the host as --compile-cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--aot", "v9:2x2"], "no topology 'v9:2x2'; write a TPU as CHIP:SIZE (v4, "),
        (["--aot", "h100:eight"], "no GPU topology 'h100:eight'; write h100:8 for 8 GPUs"),
        (["--aot-largest"], "aot_largest needs aot"),
        (["--aot", "v5e:2x2", "--mesh", "8"], "mesh of 8 devices asked for"),
        (["--aot", "v5e:2x4", "--batch", "12"], "batch=12 cannot be split over mesh=8"),
    ],
)
def test_wrong_options_are_one_line(arguments, message, capsys):
    options = [*TRAIN, *arguments] if "--aot" in arguments else arguments
    assert train.main(options) == 2
    line = capsys.readouterr().err.strip()
    assert message in line
