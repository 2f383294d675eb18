"""The precision comparison: its figures against NumPy's, its files, its refusals."""

import json
import sys
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from jaxsr.compare import main
from jaxsr.comparison.compare_ops import difference_on
from jaxsr.comparison.kernel_libraries import box_of, ellipse, make_contenders
from jaxsr.comparison.ops_options import Dtype, Method, OpsOptions


def photo(height=60, width=44, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def test_figures_on_both_scales():
    a = np.array([0.0, 10.0, 255.0, 128.0], np.float32)
    b = np.array([0.0, 12.0, 254.0, 128.0], np.float32)
    levels = difference_on("0…255", a, b)
    assert (levels.largest, levels.mean, levels.median) == (2, 0.75, 0.5)
    assert (levels.equal, levels.unequal) == (2, 2)
    unit = difference_on("[-1, 1]", a, b)
    np.testing.assert_allclose(
        [unit.largest, unit.mean], [2 / 127.5, 0.75 / 127.5], rtol=1e-5
    )  # float32 near 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_every_library_gives_the_size_asked_for(method, dtype):
    options = OpsOptions(size=(21, 17), convention="opencv")
    resizers, absent = make_contenders(options, method, dtype)
    libraries = {r.library for r in resizers}
    assert len(resizers) + len(absent) == 6
    assert "jaxsr (opencv)" in libraries
    assert ("OpenCV" in libraries) == (dtype != "bfloat16")
    for resizer in resizers:
        got = resizer.fetch(resizer.run(resizer.load(photo())))
        assert got.shape == (21, 17, 3)
        assert got.dtype == np.float32
        assert got.max() > 2  # still on 0…255


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command on two small pictures; gives status, stdout, stderr and the out folder."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(2):
        Image.fromarray(photo(seed=k)).save(folder / f"{k}.png")
    monkeypatch.chdir(tmp_path)

    def call(*words):
        status = main(["ops", "--images", str(folder), "--platform", "cpu", *words])
        said = capsys.readouterr()
        return status, said.out, said.err, tmp_path / "runs" / "compare-ops"

    return call


def test_command_writes_table_json_and_picture(run):
    status, out, _, folder = run("--size", "30", "22", "--methods", "bilinear", "bicubic")
    assert status == 0
    assert "absolute differences" in out and "[-1, 1]" in out and "cached, median" in out
    written = json.loads((folder / "comparison.json").read_text())
    assert [(g["method"], g["dtype"]) for g in written["groups"]] == [
        (method, dtype) for method in ("bilinear", "bicubic") for dtype in get_args(Dtype)
    ]
    assert all(len(s["cached"]) == 5 for s in written["groups"][0]["seconds"].values())
    assert written["against_published"] == []  # another size
    for group in written["groups"]:
        for pair in group["pairs"]:
            for d in pair["differences"]:
                assert d["equal"] + d["unequal"] == 2 * 30 * 22 * 3
    with Image.open(folder / "comparison.png") as picture:
        assert picture.width > 900 and picture.height > 900


def test_jaxsr_equals_the_library_whose_convention_it_follows(run):
    _, _, _, folder = run("--size", "30", "22", "--dtypes", "uint8", "--convention", "opencv")
    pairs = json.loads((folder / "comparison.json").read_text())["groups"][0]["pairs"]
    pair = next(p for p in pairs if p["pair"] == ["jaxsr (opencv) uint8", "OpenCV uint8"])
    assert pair["differences"][0]["unequal"] == 0


@pytest.mark.parametrize(
    ("operation", "library", "most"),
    [
        ("gaussian_blur", "OpenCV", 1e-3),
        ("mask_crop", "OpenCV", 1e-2),
        ("mask_crop", "torch", 1e-3),
    ],
)
def test_other_kernels_are_compared(run, operation, library, most):
    words = ("--operation", operation, "--size", "20", "24", "--dtypes", "float32", "uint8")
    status, out, _, folder = run(*words)
    assert status == 0
    groups = json.loads((folder / "comparison.json").read_text())["groups"]
    assert [g["dtype"] for g in groups] == ["float32", "uint8"]
    (pair,) = (
        pair
        for pair in groups[0]["pairs"]
        if pair["pair"][0].startswith("jaxsr") and pair["pair"][1] == f"{library} float32"
    )
    assert pair["differences"][0]["largest"] < most  # float32 sums of values up to 255
    lines = out.splitlines()
    assert lines[0].startswith(f"jaxsr: {operation} float32: at most")
    assert max(map(len, lines)) <= 100 and any("0.png 60×44" in line for line in lines)


@pytest.mark.parametrize("shape", [(60, 44), (1200, 1000)])
def test_the_box_of_a_mask_is_the_rules(shape):
    from tests.ops.test_mask_crop import rule

    assert box_of(ellipse(*shape)) == rule(ellipse(*shape)[None])


@pytest.mark.slow
def test_default_stands_beside_the_published_figures(run):
    status, out, _, folder = run()
    assert status == 0
    said = json.loads((folder / "comparison.json").read_text())["against_published"]
    assert "max 0.0078 (published 0.0078)" in said[0]
    assert any("published 1.7109" in line for line in said)
    assert "0.0078 is one uint8 level" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "0", "5"], "size must be at least 1"),
        (["--runs", "2"], "runs must be at least 5"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--methods", "cubic"], "methods"),
        (["--images", "nowhere"], "nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(run, words, message):
    status, out, err, folder = run(*words)
    assert status == 2
    assert out == ""
    assert err.startswith("jaxsr: ") and err.count("\n") == 1 and message in err
    assert not folder.exists()


def test_unknown_comparison(capsys):
    assert main(["speed"]) == 2
    assert "choose one of ops" in capsys.readouterr().err
    assert main([]) == 0
    assert "ops" in capsys.readouterr().out


def test_importing_the_command_loads_no_framework():
    import subprocess

    code = "import sys, jaxsr.compare; print({'jax', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
