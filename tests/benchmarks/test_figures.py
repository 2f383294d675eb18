"""The figures of README and docs are those of the JSON in benchmarks/results."""

import json
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
FIGURES = (("psnr", 2), ("ssim", 3))


def rows_of(name: str) -> list[dict]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def line_of(start: str) -> str:
    """The only line of the page of figures that begins so."""
    text = (ROOT / "docs" / "measured.md").read_text()
    (line,) = [x for x in text.splitlines() if x.startswith(start)]
    return line


def test_readme_has_the_figures_of_the_page_of_figures():
    """Each of README's five, without what the page says besides."""
    rows = [x.split(" | ") for x in (ROOT / "README.md").read_text().splitlines()]
    figures = {
        row[0].removeprefix("| "): row[1].removesuffix(" |") for row in rows if len(row) == 2
    }
    programs, weights = "| torch programs that agree", "| shipped ×4 weights"
    assert figures["torch programs that agree with plain torch"] in line_of(programs)
    gain = figures["shipped ×4 weights over bicubic, six unseen Kodak photos"]
    assert all(part in line_of(weights) for part in gain.split(" dB "))
    text = figures["SmolLM2-135M on two CPU cores, against transformers, batch 1"]
    assert f"{text} (batch 1)" in line_of("| SmolLM2-135M, float32, greedy")
    step = figures["MSHNet's training step on an H200, against `torch.compile`"]
    assert f"| {step.removesuffix(' ×')} |" in (ROOT / "docs" / "gpu-measured.md").read_text()


def test_training_steps():
    work = {
        "| Fast-SRGAN, pretraining step": "train_step",
        "| Fast-SRGAN, adversarial step": "train_step_adversarial",
        "| MSHNet, step with augmentation": "mshnet_step",
    }
    for start, name in work.items():
        for column, suffix in enumerate(("", "_mesh", "_avx2", "_mesh_avx2"), 2):
            cell = line_of(start).split("|")[column].strip()
            if cell:
                ratios = {x["contender"]: x["ratio_to_best_torch"] for x in rows_of(name + suffix)}
                assert cell == f"{ratios['jaxsr']:.2f}"


def test_restoring():
    sizes = {"320×180, shipped": "320x180", "1280×720": "1280x720", "16 mega": "4000x4000"}
    for start, size in sizes.items():
        rates = {
            row["contender"]: row["network_mp_per_s"]
            for row in rows_of("restore")
            if row["size"] == size
        }
        best = max(rates.get(name, 0) for name in ("eager", "channels_last", "compiled"))
        cells = [f"{rates[name] / best:.2f}" for name in ("jax", "jax_mesh")]
        assert f"| {' | '.join(cells)} |" in line_of(f"| restoring {start}")


def test_conformance():
    counts = Counter(row["status"] for row in rows_of("conformance"))
    agree, total = counts["supported"] + counts["corrected"], counts.total()
    line = line_of("| torch programs that agree")
    assert f"{agree} of {total}, {counts['refused']} refused by name" in line


def test_mshnet_on_a_gpu():
    rows = [row for row in rows_of("gpu_h200") if row["part"] == "steps mshnet" and row["name"]]
    ms, kernels = (
        {row["contender"]: row[key] for row in rows} for key in ("step_ms_median", "device_ms")
    )
    compiled, eager = "torch.compile, channels_last", "torch channels_last"
    text = (ROOT / "docs" / "gpu-measured.md").read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("| MSHNet step, 16 × 256², H200")]
    assert f"| {ms['jaxsr']:.1f} ms |" in line
    assert f"channels last {ms[compiled]:.1f}, of which kernels {kernels[compiled]:.1f}" in line
    assert f"eager {ms[eager]:.1f} and {kernels[eager]:.1f}" in line
    assert line.endswith(f"| {ms[compiled] / ms['jaxsr']:.2f} |")


def test_detection_weights():
    text = (ROOT / "docs" / "detect.md").read_text()
    names = {"targets": "`targets`"} | {f"sirst-seed-{n}": f"seed {n}" for n in range(3)}
    rows = {row["model"]: row for row in rows_of("detection_weights")}
    assert rows.keys() == names.keys()
    for model, name in names.items():
        (line,) = [x for x in text.splitlines() if x.startswith(f"| {name} |")]
        assert line.endswith(detection_cells(rows[model]))


def detection_cells(row: dict) -> str:
    shares = ("iou", "niou", "precision", "recall", "pd")
    cells = [f"{100 * row[name]:.1f}" for name in shares]
    return f" | {' | '.join(cells)} | {row['fa_1e6']:.1f} |"


def gains(model: str, *, scale: int, jpeg: int) -> dict[tuple[str, str], float]:
    """Decibels over bicubic, by folder and photo."""
    rows = [r for r in rows_of("shipped_weights") if (r["scale"], r["jpeg"]) == (scale, jpeg)]
    psnr = {(r["model"], r["folder"], r["photo"]): r["psnr"] for r in rows}
    return {
        (folder, photo): value - psnr["bicubic", folder, photo]
        for (name, folder, photo), value in psnr.items()
        if name == model
    }


def of_kodak(gain: dict[tuple[str, str], float]) -> list[float]:
    values = [value for (folder, _), value in gain.items() if folder == "photos"]
    assert len(values) == 6
    return values


def test_shipped_weights():
    clean = gains("clean", scale=4, jpeg=0)
    kodak = of_kodak(clean)
    line = line_of("| shipped ×4 weights")
    assert f"+{np.mean(kodak):.2f} dB" in line and f"(least {min(kodak):.2f})" in line
    assert f"+{np.mean(list(clean.values())):.2f} dB with two photos from the wheels" in line


def test_page_of_the_weights():
    text = (ROOT / "jaxsr" / "weights" / "README.md").read_text()
    at = {q: np.mean(of_kodak(gains("photo", scale=4, jpeg=q))) for q in (90, 60, 30)}
    sentence = (
        f"`photo` gains {at[90]:.2f} dB over bicubic at JPEG 90, {at[60]:.2f} at JPEG 60 and "
        f"{at[30]:.2f} at JPEG 30."
    )
    assert sentence in " ".join(text.split())
    twice = of_kodak(gains("clean_x2", scale=2, jpeg=0))
    assert f"`clean_x2` gains {np.mean(twice):.2f} dB over bicubic on the six" in text
    assert f"(least {min(twice):.2f})" in text
    at = {q: np.mean(of_kodak(gains("photo_x2", scale=2, jpeg=q))) for q in (90, 60, 30)}
    sentence = (
        f"`photo_x2` {at[90]:.2f} at JPEG 90, {at[60]:.2f} at JPEG 60 and {at[30]:.2f} at JPEG 30"
    )
    assert sentence in " ".join(text.split())
    for jpeg, name in ((0, "as it is"), (90, "JPEG 90"), (60, "JPEG 60"), (30, "JPEG 30")):
        cells = []
        for model in ("bicubic", "clean", "photo"):
            key = {"scale": 4, "jpeg": jpeg, "model": model}
            same = [r for r in rows_of("shipped_weights") if key.items() <= r.items()]
            cells.append(", ".join(f"{np.mean([r[k] for r in same]):.{d}f}" for k, d in FIGURES))
        assert f"| {name} | {' | '.join(cells)} |" in text.replace("**", "")


def test_generation():
    rates = {
        (row["contender"], row["batch"]): row["decode_tokens_per_s"]
        for row in rows_of("generate")
        if "decode_tokens_per_s" in row
    }

    def ratio(one: str, other: str, batch: int) -> str:
        return f"{rates[one, batch] / rates[other, batch]:.1f} ×"

    ours, theirs = "jaxsr, JAX", "transformers, torch"
    line = line_of("| SmolLM2-135M")
    first, *others = (ratio(ours, theirs, batch) for batch in (1, 4, 16))
    assert f"{first} (batch 1), {others[0]} (4), {others[1]} (16)" in line
    prompts = {
        row["contender"]: row["first_token_ms"]
        for row in rows_of("generate")
        if row["prompt_tokens"] == 512
    }
    assert f"a prompt of 512 tokens {prompts[theirs] / prompts[ours]:.1f} ×" in line
    packed, cpp = f"{ours}, weights in the file's blocks", "llama.cpp, the same file"
    line = line_of("| the same from its Q4_1 file")
    assert f"decoding {ratio(packed, cpp, 1)}" in line
    assert f"a prompt of 512 tokens {prompts[cpp] / prompts[packed]:.1f} ×" in line
    first, *others = (
        f"{rates[f'{ours}, deterministic', b] / rates[ours, b]:.2f} ×" for b in (1, 4, 16)
    )
    line = line_of("| float32 with `--deterministic`")
    assert f"{first} (batch 1), {others[0]} (4), {others[1]} (16)" in line


def test_table_of_start_up():
    text = (ROOT / "docs" / "generate-speed.md").read_text()
    for row in rows_of("generate_start_up"):
        ratios = (row[f"{name}_to_transformers"] for name in ("processor", "wall"))
        cells = [f"{ratio:.2f}" for ratio in ratios]
        cells += [f"{row[name]:.1f}" for name in ("processor_s", "wall_s")]
        assert f"| {row['start']} | {' | '.join(cells)} |" in text


def test_table_of_generation():
    text = (ROOT / "docs" / "generate-speed.md").read_text()
    contenders = (
        "jaxsr, JAX",
        "jaxsr, JAX, by transformers' code",
        "jaxsr, JAX, weights in the file's blocks",
        "jaxsr, JAX, deterministic",
        "transformers, torch",
        "llama.cpp, the same file",
    )
    rates, prompts = {}, {}
    for row in rows_of("generate"):
        if "decode_tokens_per_s" in row:
            rates[row["batch"], row["contender"]] = f"{row['decode_tokens_per_s']:.0f}"
        elif row["prompt_tokens"] == 512:
            prompts[row["contender"]] = f"{row['first_token_ms']:.0f}"
    for batch in (1, 4, 16):
        cells = (rates.get((batch, name), "") for name in contenders)
        assert f"| {batch} | {' | '.join(cells)} |" in text
    cells = (prompts.get(name, "") for name in contenders)
    assert f"| 1, a prompt of 512 tokens, ms | {' | '.join(cells)} |" in text


def test_table_of_proposed_tokens():
    text = (ROOT / "docs" / "generate-speed.md").read_text()
    cases: dict[tuple, dict[int, str]] = {}
    for row in rows_of("generate_proposals"):
        share = "" if row["accepted"] is None else f" ({row['accepted']:.2f})"
        of_case = cases.setdefault((row["case"], row["scale"]), {})
        of_case[row["proposals"]] = f"{row['token_ms']:.1f}{share}"
    assert len(cases) == 8
    for cells in cases.values():
        assert f" | {cells[0]} | {cells[3]} | {cells[7]} |" in text


def test_table_of_many_prompts():
    text = (ROOT / "docs" / "generate-speed.md").read_text()
    theirs = "transformers, torch, sorted, batches of "
    rows = [r for r in rows_of("generate_throughput") if r["contender"].startswith(theirs)]
    for row in rows:
        batch = row["contender"].removeprefix(theirs)
        assert f"| {batch} | {1 / row['times_jaxsr']:.1f} |" in text


def test_table_of_pictures():
    names = {
        "clean": "`clean` | 384,720 | ×4",
        "photo": "`photo` | 384,720 | ×4",
        "clean_x2": "`clean_x2` | 369,132 | ×2",
        "photo_x2": "`photo_x2` | 369,132 | ×2",
        "fast_srgan_x4_hasnainraz.pt": "Fast-SRGAN | 925,646 | ×4",
    }
    text = (ROOT / "docs" / "pictures.md").read_text()
    for model, name in names.items():
        of_model = [r for r in rows_of("shipped_weights") if r["model"] == model]
        scale = of_model[0]["scale"]
        cells = [np.mean(of_kodak(gains(model, scale=scale, jpeg=q))) for q in (0, 90, 60, 30)]
        times = [r["processor_s_per_mp"] for r in of_model if "processor_s_per_mp" in r]
        row = " | ".join(f"{cell:+.2f}" for cell in cells)
        assert f"| {name} | {row} | {np.median(times):.0f} |" in text
