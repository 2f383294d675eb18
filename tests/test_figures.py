"""The figures of README and docs are those of the JSON in benchmarks/results."""

import json
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]


def rows_of(name: str) -> list[dict]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]


def line_of(start: str) -> str:
    """README's only line that begins so."""
    (line,) = [x for x in (ROOT / "README.md").read_text().splitlines() if x.startswith(start)]
    return line


def test_conformance():
    counts = Counter(row["status"] for row in rows_of("conformance"))
    agree, total = counts["supported"] + counts["corrected"], counts.total()
    line = line_of("| torch programs that agree")
    assert f"{agree} of {total}, {counts['refused']} refused by name" in line


def test_shipped_weights():
    psnr = {
        (row["model"], row["folder"], row["photo"]): row["psnr"]
        for row in rows_of("shipped_weights")
        if row["jpeg"] == 0
    }
    gains = {
        (folder, photo): value - psnr["bicubic", folder, photo]
        for (model, folder, photo), value in psnr.items()
        if model == "clean"
    }
    kodak = [gain for (folder, _), gain in gains.items() if folder == "photos"]
    line = line_of("| shipped ×4 weights")
    assert len(kodak) == 6
    assert f"+{np.mean(kodak):.2f} dB" in line and f"(least {min(kodak):.2f})" in line
    assert f"+{np.mean(list(gains.values())):.2f} dB with two photos from the wheels" in line


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
    packed = ratio(f"{ours}, weights in the file's blocks", "llama.cpp, the same file", 1)
    assert packed in line_of("| the same from its Q4_1 file")
    first, *others = (
        f"{rates[f'{ours}, deterministic', b] / rates[ours, b]:.2f} ×" for b in (1, 4, 16)
    )
    line = line_of("| float32 with `--deterministic`")
    assert f"{first} (batch 1), {others[0]} (4), {others[1]} (16)" in line


def test_table_of_generation():
    text = (ROOT / "docs" / "generate.md").read_text()
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
