"""examples/colab.ipynb runs from top to bottom; here on the CPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "colab.ipynb"


def test_it_is_stored_without_results():
    content = json.loads(NOTEBOOK.read_text())
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), NOTEBOOK.name, "exec")


@pytest.mark.slow
@pytest.mark.skipif(
    any(
        importlib.util.find_spec(name) is None for name in ("nbconvert", "ipykernel", "ipywidgets")
    ),
    reason="nbconvert, ipykernel or ipywidgets is not installed: pip install -e '.[notebook]'",
)
def test_it_runs(tmp_path):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook"]
    command += ["--ExecutePreprocessor.timeout=500", "--output-dir", str(tmp_path), str(NOTEBOOK)]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    content = json.loads((tmp_path / "colab.ipynb").read_text())
    printed = "".join(
        "".join(output.get("text", ""))
        for cell in content["cells"]
        for output in cell.get("outputs", [])
    )
    assert "largest difference from torch" in printed
    assert "validation at step 20" in printed
    widgets = content["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    states = [widget["state"] for widget in widgets.values()]
    (bar,) = (state for state in states if state["_model_name"] == "FloatProgressModel")
    assert (bar["value"], bar["max"]) == (20, 20)
    texts = "".join(str(state.get("value")) for state in states)
    assert "20/20" in texts and "█" not in texts  # one bar, the widget
