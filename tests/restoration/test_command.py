"""`jaxsr.restore` as a function and as a command: what arrives, what is kept, what is said."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import jaxsr
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.pictures import read_picture
from jaxsr.restore import main
from tests.restoration import networks

MODEL = ("--model", "tests.restoration.networks:Small", "--engine", "torch", "--platform", "cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.pt"
    torch.save(networks.Small().state_dict(), path)
    return path


def noise(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    top = np.iinfo(dtype).max + 1
    return np.random.default_rng(sum(shape)).integers(0, top, shape, dtype=dtype)


def restored(inputs, out: Path, weights: Path, *options: str) -> int:
    return main([*map(str, inputs), "--out", str(out), "--weights", str(weights), *MODEL, *options])


def whole(network: torch.nn.Module, pixels: np.ndarray) -> np.ndarray:
    planes = torch.from_numpy(np.moveaxis(pixels.astype(np.float32) / 255, -1, 0)[None])
    with torch.no_grad():
        result = network.eval()(planes)[0].clamp(0, 1).numpy()
    return np.rint(np.moveaxis(result, 0, -1) * 255).astype(np.uint8)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_the_function_equals_the_plain_network(engine):
    torch.manual_seed(0)
    network = networks.Small()
    pictures = [noise(70, 150, 3), noise(90, 64, 3)]
    got = jaxsr.restore(pictures, network, engine=engine, tile=64)
    for one, picture in zip(got, pictures, strict=True):
        # Sums in another order may fall on the other side of a rounding.
        difference = np.abs(one.astype(int) - whole(network, picture))
        assert difference.max() <= 1 and (difference > 0).mean() < 1e-3
    alone = jaxsr.restore(Image.fromarray(pictures[0]), network, engine="torch", tile=64)
    assert isinstance(alone, np.ndarray) and alone.shape == (140, 300, 3)


def test_the_module_can_be_called_however_it_is_imported():
    code = (
        "import sys, jaxsr\n"
        "assert not {'torch', 'jax', 'torchax'} & set(sys.modules)\n"
        "assert callable(jaxsr.restore)\n"
        "import jaxsr.restore as module\n"
        "from jaxsr.restore import restore\n"
        "assert jaxsr.restore is module and callable(module) and module.restore is restore\n"
        "assert not {'torch', 'jax', 'torchax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_gray_stays_gray_and_depth_and_alpha_stay(monkeypatch):
    torch.manual_seed(0)
    network = networks.Small()
    for shape, dtype in (((40, 50), np.uint8), ((40, 50, 2), np.uint8), ((40, 50, 4), np.uint16)):
        result = np.asarray(jaxsr.restore(noise(*shape, dtype=dtype), network, engine="torch"))
        assert result.dtype == dtype
        assert result.shape == (80, 100, *shape[2:])
    picture = noise(40, 50, 4)
    result = np.asarray(jaxsr.restore(picture, network, engine="torch"))
    alpha = (
        Image.fromarray(picture[..., 3]).convert("F").resize((100, 80), Image.Resampling.BICUBIC)
    )
    want = np.rint(np.clip(np.asarray(alpha), 0, 255))
    assert np.abs(result[..., 3].astype(int) - want).max() <= 1


def test_a_luma_network_keeps_chroma_and_alpha_at_scale_one():
    torch.manual_seed(0)
    network = networks.Small(scale=1, channels=1)
    picture = noise(40, 50, 4)
    result = np.asarray(jaxsr.restore(picture, network, engine="torch")).astype(float)
    np.testing.assert_array_equal(result[..., 3], picture[..., 3])
    luma = np.array([0.299, 0.587, 0.114])
    inside = ((result[..., :3] > 0) & (result[..., :3] < 255)).all(-1)  # nothing was clipped
    inside &= picture[..., 3] > 0  # invisible pixels get a visible one's colour
    before, after = picture[..., :3] - (picture[..., :3] @ luma)[..., None], result[..., :3]
    after = after - (after @ luma)[..., None]
    assert np.abs(before - after)[inside].max() <= 1.01  # each channel is rounded
    gray = np.asarray(jaxsr.restore(picture[..., 0], network, engine="torch"))
    planes = torch.from_numpy(picture[..., 0].astype(np.float32) / 255)[None, None]
    with torch.no_grad():
        want = np.rint(network(planes)[0, 0].clamp(0, 1).numpy() * 255)
    assert np.abs(gray - want).max() <= 1


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_the_ensemble_averages_eight_symmetries(engine):
    torch.manual_seed(0)
    network = networks.Small()
    picture = noise(40, 56, 3)
    total = np.zeros((80, 112, 3))
    for flip in (False, True):
        for turns in range(4):
            turned = np.rot90(picture[:, ::-1] if flip else picture, turns)
            planes = torch.from_numpy(np.moveaxis(turned / 255, -1, 0)[None].astype(np.float32))
            with torch.no_grad():
                result = np.rot90(np.moveaxis(network.eval()(planes)[0].numpy(), 0, -1), -turns)
            total += result[:, ::-1] if flip else result
    want = np.clip(total / 8, 0, 1) * 255
    got = np.asarray(jaxsr.restore(picture, network, engine=engine, ensemble=True))
    assert np.abs(got - want).max() <= 0.5 + 1e-2


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_sizes_compile_at_most_four_programs(count):
    import jax

    torch.manual_seed(0)
    sizes = np.random.default_rng(0).integers(8, 260, (count, 2)).tolist()
    pictures = [noise(*size, 3) for size in sizes]
    compiled = []

    class Counted(networks.Small):
        def forward(self, x):
            if torch.compiler.is_compiling():
                compiled.append(tuple(x.shape))  # traced by JAX, once for each program
            return super().forward(x)

    network = Counted()
    results = jaxsr.restore(pictures, network, tile=128)
    assert [r.shape[:2] for r in results] == [(2 * h, 2 * w) for h, w in sizes]
    assert 1 <= len(set(compiled)) <= 4, jax.__version__


def test_a_mesh_gives_the_same_pictures():
    torch.manual_seed(0)
    network = networks.Small()
    pictures = [noise(100, 90, 3), noise(65, 120, 3), noise(80, 80, 3)]
    one = jaxsr.restore(pictures, network, tile=64)
    eight = jaxsr.restore(pictures, network, tile=64, mesh=8)
    for a, b in zip(one, eight, strict=True):
        difference = np.abs(a.astype(int) - b)
        assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


def test_wrong_arguments_are_told():
    with pytest.raises(TypeError, match="image 0 has dtype float32"):
        jaxsr.restore(np.zeros((4, 4, 3), np.float32), networks.Small())
    with pytest.raises(ValueError, match=r"image 1 has shape \(4, 4, 7\)"):
        jaxsr.restore([noise(4, 4, 3), noise(4, 4, 7)], networks.Small())


@pytest.mark.usefixtures("unchecked_types")
def test_wrong_values_are_told():
    with pytest.raises(ValueError, match="scale must be one of 2, 4, got 3"):
        jaxsr.restore(noise(4, 4, 3), scale=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"value_range must be \(black, white\)"):
        jaxsr.restore(noise(4, 4, 3), networks.Small(), value_range=(1,))  # pyright: ignore
    with pytest.raises(ValueError, match="format must be one of png, jpeg, webp, tiff, got 'gif'"):
        RestoreConfig(format="gif")  # pyright: ignore[reportArgumentType]


def test_a_tile_too_small_is_raised(caplog):
    network, picture = networks.Small(), noise(60, 60, 3)
    tiled = jaxsr.restore(picture, network, tile=8, engine="torch")
    assert "tiles of 40 pixels take the place of --tile 8" in caplog.text
    np.testing.assert_allclose(tiled, jaxsr.restore(picture, network, engine="torch"), atol=1)


def test_folders_keep_their_structure_and_files_their_notes(tmp_path, weights, capsys):
    source = tmp_path / "in"
    (source / "deep" / "er").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(30, 40, 3)).save(source / "a.JPEG", exif=exif, quality=95)
    Image.fromarray(noise(30, 40)).save(source / "deep" / "gray.png", dpi=(300, 300))
    Image.fromarray(noise(30, 40, 4)).save(source / "deep" / "er" / "alpha.webp", lossless=True)
    (source / "notes.txt").write_text("not an image")
    assert restored([source], tmp_path / "out", weights, "--suffix", "_x2") == 0
    written = sorted(
        str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("[!.]*.*")
    )
    assert written == ["a_x2.JPEG", "deep/er/alpha_x2.webp", "deep/gray_x2.png"]
    jpeg = read_picture(tmp_path / "out" / "a_x2.JPEG")
    assert jpeg.notes.orientation == 6 and jpeg.pixels.shape == (60, 80, 3)
    gray = read_picture(tmp_path / "out" / "deep" / "gray_x2.png")
    assert gray.kind == "gray" and gray.notes.dpi == pytest.approx((300, 300), abs=0.02)
    assert read_picture(tmp_path / "out" / "deep" / "er" / "alpha_x2.webp").kind == "rgb-alpha"
    said = capsys.readouterr().out
    assert (
        "restored 3 files to" in said
        and " s (0.0036 MP at " in said
        and "passed over: 1 file in folders" in said
    )


def test_nothing_is_overwritten_unasked(tmp_path, weights, capsys):
    Image.fromarray(noise(20, 24, 3)).save(tmp_path / "a.png")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.png").write_bytes(b"precious")
    assert restored([tmp_path / "a.png"], out, weights) == 2
    assert (out / "a.png").read_bytes() == b"precious"
    assert " has 1 result that this model with these options did not" in capsys.readouterr().err
    assert restored([tmp_path / "a.png"], out, weights, "--overwrite") == 0
    capsys.readouterr()
    assert restored([tmp_path / "a.png"], out, weights) == 0
    assert "left alone: 1 result of this model and options" in capsys.readouterr().out
    assert read_picture(out / "a.png").pixels.shape == (40, 48, 3)
    before = (tmp_path / "a.png").read_bytes()
    assert restored([tmp_path / "a.png"], tmp_path, weights, "--overwrite") == 1
    assert "would replace its source" in capsys.readouterr().err
    assert (tmp_path / "a.png").read_bytes() == before


def test_two_results_of_one_name_are_not_mixed_up(tmp_path, weights, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Image.fromarray(noise(20, 24 + len(name), 3)).save(tmp_path / name / "a.png")
    inputs = [tmp_path / name / "a.png" for name in ("one", "two")]
    assert restored(inputs, tmp_path / "out", weights) == 1
    assert "its result would be" in capsys.readouterr().err
    assert len(list((tmp_path / "out").glob("*.png"))) == 1
    assert restored(inputs, tmp_path / "out", weights) == 1
    printed = capsys.readouterr()
    assert "a.png is there already, of another model, options or source" in printed.err
    assert "left alone: 1 result" in printed.out


@pytest.mark.parametrize("outscale", ["3", "1", "0.5"])
def test_outscale_resizes_what_the_network_made(tmp_path, weights, outscale):
    picture = noise(150, 130, 3)
    Image.fromarray(picture).save(tmp_path / "a.png")
    options = ("--outscale", outscale, "--tile", "64")
    assert restored([tmp_path / "a.png"], tmp_path / "out", weights, *options) == 0
    got = read_picture(tmp_path / "out" / "a.png").pixels
    network = networks.Small()
    network.load_state_dict(torch.load(weights, weights_only=True))
    size = round(130 * float(outscale)), round(150 * float(outscale))
    want = Image.fromarray(whole(network, picture)).resize(size, Image.Resampling.BICUBIC)
    # Pillow rounds its weights to fixed point, band by band from other offsets.
    assert np.abs(got.astype(int) - np.asarray(want)).max() <= 1


def test_format_changes_name_and_content(tmp_path, weights):
    Image.fromarray(noise(20, 24, 3)).save(tmp_path / "a.png")
    for name in ("jpeg", "webp", "tiff"):
        assert restored([tmp_path / "a.png"], tmp_path / "out", weights, "--format", name) == 0
    assert {p.name for p in (tmp_path / "out").glob("[!.]*")} == {"a.jpg", "a.webp", "a.tif"}
    for path in (tmp_path / "out").glob("[!.]*"):
        with Image.open(path) as image:
            assert image.size == (48, 40)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.png"], "no such file or folder"),
        ([], "nothing to restore"),
        (["x.png", "--quality", "0"], "quality must be at least 1, got 0"),
        (["x.png", "--benchmark", "10by20"], "benchmark takes sizes such as 1280x720"),
        (["x.png", "--suffix", "a/b"], "suffix is part of a file name"),
    ],
)
def test_what_cannot_start_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    if "--benchmark" in arguments or "--quality" in arguments or "--suffix" in arguments:
        Image.fromarray(noise(4, 4, 3)).save("x.png")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_of_what_jax_refuses_the_other_engine_is_named_and_restores_it(tmp_path, weights, capsys):
    Image.fromarray(noise(24, 32, 3)).save(tmp_path / "x.png")
    model = ["--model", "tests.restoration.networks:Branching", "--weights", str(weights)]
    words = [str(tmp_path / "x.png"), "--out", str(tmp_path), "--suffix", "_big", *model]
    assert main([*words, "--platform", "cpu"]) != 0
    error = capsys.readouterr().err
    assert "networks.py" in error and "--engine torch runs the network as it is" in error
    assert not (tmp_path / "x_big.png").exists()
    assert main([*words, "--platform", "cpu", "--engine", "torch"]) == 0
    network = networks.Branching()
    network.load_state_dict(torch.load(weights, weights_only=True))
    picture = read_picture(tmp_path / "x_big.png").pixels
    np.testing.assert_array_equal(picture, whole(network, noise(24, 32, 3)))


class _Code:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_models_that_do_not_fit_are_refused(tmp_path, monkeypatch, capsys, weights):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(noise(4, 4, 3)).save("x.png")
    torch.save({"w": _Code()}, "code.pth")
    torch.save(networks.Small(width=16).state_dict(), "other.pt")
    (tmp_path / "cut.pt").write_bytes(weights.read_bytes()[:500])
    (tmp_path / "empty").mkdir()
    small = ["--model", "tests.restoration.networks:Small"]
    cases = [
        (["--model", "code.pth"], "it holds Python objects"),
        ([*small, "--weights", "other.pt"], "misshapen"),
        ([*small, "--weights", "cut.pt"], "damaged or cut short"),
        ([*small, "--weights", "nowhere.pt"], "no weights file"),
        (small, "add --weights FILE"),
        (["--model", "tests.restoration.networks:Nothing", "--weights", str(weights)], "no class"),
        (["--model", "no.such.module:Net", "--weights", str(weights)], "cannot import"),
        ([*small, "--weights", str(weights), "--model-options", '{"depth": 3}'], "does not take"),
        (["--model", "x.png"], "neither a run folder"),
        (["--model", "empty"], "holds no exported network"),
        (["--model", str(weights)], "of no family that jaxsr knows"),
    ]
    for options, said in cases:
        assert main(["x.png", "--engine", "torch", *options]) == 2, options
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, (options, error)
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "restored").exists()


def test_the_public_checkpoint_is_told_to_have_global_statistics(tmp_path, capsys, shared_data):
    checkpoint = shared_data / "weights" / "fast_srgan_x4_hasnainraz.pt"
    Image.fromarray(noise(24, 32, 3)).save(tmp_path / "a.png")
    arguments = [str(tmp_path / "a.png"), "--out", str(tmp_path / "out"), "--engine", "torch"]
    assert main([*arguments, "--model", str(checkpoint), "--platform", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "in 'stem.0.bn1' (InstanceNorm2d)" in said and "--tiling approximate" in said
    assert read_picture(tmp_path / "out" / "a.png").pixels.shape == (96, 128, 3)


def test_a_run_folder_restores(tmp_path, capsys):
    from jaxsr.interop.weights import export_weights
    from jaxsr.models.fast_srgan.config import FastSRGANConfig
    from jaxsr.models.fast_srgan.generator import Generator

    config = FastSRGANConfig(norm="none", depth=1, width=8, scale=2)
    network = Generator(config)
    arrays = {f"generator.{n}": v.numpy() for n, v in network.state_dict().items()}
    metadata = {"family": "fast-srgan", "network": "generator", "config": vars(config)}
    export_weights(tmp_path / "generator.safetensors", arrays, metadata=metadata)
    picture = noise(30, 40, 3)
    got = np.asarray(jaxsr.restore(picture, tmp_path, engine="torch"))
    planes = torch.from_numpy(np.moveaxis(picture / 127.5 - 1, -1, 0)[None].astype(np.float32))
    with torch.no_grad():
        want = np.moveaxis(network.eval()(planes)[0].numpy(), 0, -1) * 127.5 + 127.5
    assert np.abs(got - want).max() <= 0.5 + 1e-2


@pytest.mark.parametrize("expansion", [None, 2])
def test_span_weights_are_recognised_and_merged(tmp_path, expansion):
    from safetensors.torch import save_file

    from jaxsr.models.span.config import SpanConfig
    from jaxsr.models.span.generator import Span
    from jaxsr.restoration.models import find_model

    torch.manual_seed(0)
    network = Span(SpanConfig(width=8, depth=2, expansion=expansion))
    torch.nn.init.normal_(network.get_parameter("upsampler.0.weight"), std=0.1)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    model = find_model(tmp_path / "w.safetensors")
    assert model.scale == 4 and model.reach.margin == network.config.receptive_radius
    picture = torch.rand(1, 3, 20, 24)
    with torch.no_grad():
        # Merging multiplies the factors in another order.
        torch.testing.assert_close(model.network(picture), network(picture), atol=1e-5, rtol=0)


def test_benchmark_measures_what_is_asked(weights, capsys):
    import json

    sizes = ("--benchmark", "64x48", "80x80")
    assert main([*MODEL, "--weights", str(weights), *sizes]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["width"], row["height"]) for row in result["rows"]] == [(64, 48), (80, 80)]
    assert all(row["repeats"] >= 1 and row["first_s"] > 0 for row in result["rows"])


def test_report_of_a_name_that_is_not_utf_8(tmp_path, weights, capsys):
    name = os.fsdecode(b"a\xff.png")
    for folder, side in (("in", 10), ("truth", 20)):
        (tmp_path / folder).mkdir()
        Image.fromarray(noise(side, side, 3)).save(tmp_path / folder / name)
    out = tmp_path / "out"
    assert restored([tmp_path / "in"], out, weights, "--truth", str(tmp_path / "truth")) == 0
    assert (out / name).is_file() and "a\\udcff.png" in capsys.readouterr().out
    (figures,) = json.loads((out / "report" / "figures.json").read_text())["pictures"]
    assert figures["name"].encode(errors="surrogateescape") == b"a\xff.png"
    assert b"a\xff.png" in (out / "report" / "figures.txt").read_bytes()


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_report_replaces_no_file_of_the_users(tmp_path, weights, capsys, kind):
    (tmp_path / "in").mkdir()
    (tmp_path / "report").mkdir()
    Image.new("RGB", (10, 10)).save(tmp_path / "in" / "a.png")
    mine = tmp_path / "report" / "contact-sheet.png"
    os.mkfifo(mine) if kind == "fifo" else mine.write_text("mine")
    words = ["--truth", str(tmp_path / "in"), "--report", str(tmp_path / "report")]
    assert restored([tmp_path / "in"], tmp_path / "out", weights, *words) == 2
    assert "contact-sheet.png); choose another --report" in capsys.readouterr().err
    assert mine.is_fifo() if kind == "fifo" else mine.read_text() == "mine"


def test_report_compares_with_the_truth(tmp_path, weights, capsys):
    import json

    from skimage.metrics import peak_signal_noise_ratio

    smooth = Image.fromarray(noise(9, 11, 3)).resize((120, 96), Image.Resampling.BICUBIC)
    for folder in ("in", "truth"):
        (tmp_path / folder).mkdir()
    smooth.save(tmp_path / "truth" / "a.bmp")
    Image.new("RGB", smooth.size).save(tmp_path / "truth" / "a.2.png")  # of another image
    (tmp_path / "truth" / "a.aaa").write_text("a note")
    smooth.resize((60, 48), Image.Resampling.BICUBIC).save(tmp_path / "in" / "a.png")
    out = tmp_path / "out"
    assert restored([tmp_path / "in"], out, weights, "--truth", str(tmp_path / "truth")) == 0
    figures = json.loads((out / "report" / "figures.json").read_text())
    result, truth = np.asarray(Image.open(out / "a.png")), np.asarray(smooth)

    def y(image: np.ndarray) -> np.ndarray:
        weights = np.array([65.481, 128.553, 24.966]) / 255  # MATLAB's rgb2ycbcr
        return np.rint(image @ weights + 16)[2:-2, 2:-2]

    want = peak_signal_noise_ratio(y(truth), y(result), data_range=255)
    assert figures["pictures"][0]["psnr"] == pytest.approx(want, abs=0.02)
    assert "MATLAB" in figures["convention"]["psnr_ssim"]
    assert (out / "report" / "contact-sheet.png").is_file()
    assert "mean" in capsys.readouterr().out


def test_a_report_names_what_it_leaves_out(tmp_path, weights, capsys):
    for folder, side in (("in", 10), ("truth", 20)):
        (tmp_path / folder).mkdir()
        for name in ("a.bmp", "b.png"):
            Image.fromarray(noise(side, side, 3)).save(tmp_path / folder / name)
    (tmp_path / "truth" / "b.png").rename(tmp_path / "truth" / "bb.png")
    (tmp_path / "in" / "c.png").write_text("no image")
    (tmp_path / "in" / "d.mp4").write_text("no video")
    out = tmp_path / "out"
    assert restored([tmp_path / "in"], out, weights, "--truth", str(tmp_path / "truth")) == 1
    figures = json.loads((out / "report" / "figures.json").read_text())
    assert [row["name"] for row in figures["pictures"]] == ["a.bmp"]
    assert figures["not_compared"] == {
        "b.png": f"{tmp_path / 'truth'} has no image of its name",
        "c.png": "it was not restored",
        "d.mp4": "a video",
    }
    assert "not compared: b.png: " in (out / "report" / "figures.txt").read_text()
    assert "not compared: b.png: " in capsys.readouterr().out
    for name in ("c.png", "d.mp4"):
        (tmp_path / "in" / name).unlink()
    assert restored([tmp_path / "in"], out, weights, "--truth", str(tmp_path / "truth")) == 1
    (tmp_path / "truth" / "bb.png").rename(tmp_path / "truth" / "b.png")
    assert restored([tmp_path / "in"], out, weights, "--truth", str(tmp_path / "truth")) == 0


def test_a_report_replaces_no_result(tmp_path, weights, capsys):
    for folder in ("in", "truth"):
        (tmp_path / folder / "report").mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / folder / "report" / "contact-sheet.png")
    words = ["--truth", str(tmp_path / "truth")]
    assert restored([tmp_path / "in"], tmp_path / "out", weights, *words) == 2
    assert "as the report's contact-sheet.png is; give the report" in capsys.readouterr().err
    assert not (tmp_path / "out" / "report").exists()


def test_a_picture_in_memory_needs_no_disk():
    out = io.BytesIO()
    Image.fromarray(noise(12, 14, 3)).save(out, "PNG")
    image = Image.open(out)
    result = jaxsr.restore(image, networks.Small(), engine="torch")
    assert np.asarray(result).shape == (24, 28, 3)
