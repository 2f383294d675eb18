"""examples/denoise: the script as a task and with a loop of its own trains as the one it was."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from jaxsr.train import main
from tests.examples.plain_torch import EXAMPLES, load_example

DOCS = EXAMPLES.parent / "docs"


@pytest.fixture(scope="module")
def plain():
    """The losses and the network of the plain script."""
    return load_example("denoise", "in_torch").main(40)


def by_task(out, *, steps, devices):
    arguments = ["in_jaxsr:Denoising", "--steps", f"{steps}", "--mesh", f"{devices}"]
    if (out / "config.json").exists():
        arguments = ["--resume", *arguments[1:]]
    assert main([*arguments, "--out", str(out)]) == 0
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record["network/loss"] for record in records], out / "network.safetensors"


def by_own_loop(out, *, steps, devices):
    losses = load_example("denoise", "own_loop").main(out, steps=steps, devices=devices)
    return losses, out / "denoiser.safetensors"


@pytest.mark.sample(1)
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("train", [by_task, by_own_loop])
def test_the_same_losses_and_weights(plain, tmp_path, monkeypatch, train, devices):
    monkeypatch.syspath_prepend(str(EXAMPLES / "denoise"))
    expected, network = plain
    losses, file = train(tmp_path, steps=40, devices=devices)
    # Float32 in another order of sums, through 40 steps.
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < 0.5 * losses[0]
    weights = load_file(file)
    assert weights.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        # AdamW moves a weight by up to 3e-3 a step; rounding turns into a part of that.
        torch.testing.assert_close(weights[name], value, atol=1e-3, rtol=1e-3, msg=name)
    network.load_state_dict(weights)


@pytest.mark.slow
def test_the_task_goes_on_where_it_stopped(plain, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "denoise"))
    uninterrupted, _ = by_task(tmp_path / "whole", steps=40, devices=4)
    assert by_task(tmp_path / "parts", steps=20, devices=4)[0] == uninterrupted[:20]
    assert by_task(tmp_path / "parts", steps=40, devices=4)[0] == uninterrupted


@pytest.mark.slow
def test_the_loop_goes_on_where_it_stopped(plain, tmp_path):
    train = load_example("denoise", "own_loop").main
    uninterrupted = train(tmp_path / "whole", steps=40, devices=4)
    assert train(tmp_path / "parts", steps=20, devices=4) == uninterrupted[:20]
    assert train(tmp_path / "parts", steps=40, devices=4) == uninterrupted[20:]
    assert train(tmp_path / "parts", steps=40, devices=4) == []


@pytest.mark.parametrize("name", ["in_torch", "in_jaxsr", "own_loop"])
def test_the_page_shows_the_scripts_as_they_are(name):
    page = (DOCS / "migrating.md").read_text()
    code = (EXAMPLES / "denoise" / f"{name}.py").read_text()
    start = code.index("class Den")
    ends = {"in_torch": "def batch_of", "own_loop": 'if __name__ == "__'}
    end = code.index(ends[name]) if name in ends else len(code)
    assert code[start:end].strip() in page
