"""docs/migrating.md: the migrated script trains as the one it came from, and the page shows it."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "denoise"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the migrated script imports the other by this name
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scripts():
    """Both scripts, and what the first found."""
    before, after = load("in_torch"), load("in_jaxsr")
    yield after, before.main(40)
    for name in ("in_torch", "in_jaxsr"):
        del sys.modules[name]


@pytest.mark.parametrize("devices", [1, 8])
def test_the_same_losses_and_weights(scripts, tmp_path, devices):
    migrated, (wanted, network) = scripts
    losses = migrated.main(tmp_path, steps=40, devices=devices)
    # Float32 in another order of sums, through 40 steps.
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    assert losses[-1] < 0.5 * losses[0]
    weights = load_file(tmp_path / "denoiser.safetensors")
    assert weights.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        # AdamW moves a weight by up to 3e-3 a step; rounding turns into a part of that.
        torch.testing.assert_close(weights[name], value, atol=1e-3, rtol=1e-3, msg=name)
    network.load_state_dict(weights)


def test_it_goes_on_where_it_stopped(scripts, tmp_path):
    migrated, _ = scripts
    whole = migrated.main(tmp_path / "whole", steps=40, devices=4)
    assert migrated.main(tmp_path / "parts", steps=20, devices=4) == whole[:20]
    assert migrated.main(tmp_path / "parts", steps=40, devices=4) == whole[20:]
    assert migrated.main(tmp_path / "parts", steps=40, devices=4) == []


@pytest.mark.parametrize("name", ["in_torch", "in_jaxsr"])
def test_the_page_shows_the_scripts_as_they_are(name):
    page = (ROOT / "docs" / "migrating.md").read_text()
    code = (FOLDER / f"{name}.py").read_text()
    start = code.index("class Den")
    end = code.index("def batch_of") if name == "in_torch" else code.index('if __name__ == "__')
    assert code[start:end].strip() in page
