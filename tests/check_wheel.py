"""Looks into a built sdist and wheel, and runs what it installs; `.ci/run` calls it, not pytest.

Usage: python check_wheel.py SDIST WHEEL, with the wheel's contents first on the import path.
"""

import importlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def main() -> None:
    """Fails if the wheel misses a file of the source tree or would overwrite somebody else's."""
    sdist, wheel = map(Path, sys.argv[1:])
    root = Path(__file__).resolve().parents[1]
    _check_sdist(sdist)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if name.endswith(".py")}
    tops = {name.split("/")[0] for name in inside}
    assert tops == {"jaxsr"}, f"top-level packages {tops}: only jaxsr may be installed"
    sources = {str(path.relative_to(root)) for path in (root / "jaxsr").rglob("*.py")}
    for folder in ("ops", "interop"):
        sources |= {f"jaxsr/{path.relative_to(root)}" for path in (root / folder).rglob("*.py")}
    sources = {name for name in sources if "__pycache__" not in name}
    assert inside == sources, f"the wheel and the tree differ: {sorted(inside ^ sources)}"
    weights = {f"jaxsr/weights/{path.name}" for path in (root / "jaxsr" / "weights").iterdir()}
    assert "jaxsr/weights/restore_x4.safetensors" in weights
    weights.add("jaxsr/ops/_niqe_model/model.npz")
    assert weights <= names, f"the wheel misses {sorted(weights - names)}"

    templates = {str(path.relative_to(root)) for path in (root / "jaxsr").rglob("*.jinja")}
    assert templates and templates <= names, f"the wheel misses {sorted(templates - names)}"

    package = importlib.import_module("jaxsr.interop")
    assert root not in Path(str(package.__file__)).parents, "the source tree was imported instead"
    command = [sys.executable, "-m", "jaxsr.train", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--mesh" in shown
    _restore_with_shipped_weights()
    print(f"{wheel.name}: {len(inside)} modules, imported and run from the wheel")


def _check_sdist(sdist: Path) -> None:
    """It has README's files, folders in the place of links, and no half of the tests."""
    with tarfile.open(sdist) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers()}
    links = [name for name, member in members.items() if not (member.isfile() or member.isdir())]
    assert not links, f"the sdist has links: {links}"
    needed = {"constraints.txt", "CHANGELOG.md", "CITATION.cff", "docs/index.md", "setup.py"}
    needed |= {"docs/figures/cat.jpg", "examples/colab.ipynb", "jaxsr/ops/resize.py"}
    assert needed <= members.keys(), f"the sdist misses {sorted(needed - members.keys())}"
    excess = [n for n in members if n.startswith("tests/") or "__pycache__" in n]
    assert not excess, f"the sdist has {excess}"


def _restore_with_shipped_weights() -> None:
    """The command that needs nothing but a picture."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        photo, out = Path(folder) / "photo.png", Path(folder) / "out"
        Image.new("RGB", (16, 12), "gray").save(photo)
        command = [sys.executable, "-m", "jaxsr.restore", str(photo), "--out", str(out)]
        subprocess.run([*command, "--platform", "cpu"], capture_output=True, check=True)
        with Image.open(out / "photo.png") as restored:
            assert restored.size == (64, 48)


if __name__ == "__main__":
    main()
