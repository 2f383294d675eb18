"""Child processes import what their parent can, and nothing from the current folder."""

import subprocess
import sys

from jaxsr.interop.isolated import isolated_command


def test_folders_of_the_parent_but_not_the_current_one(tmp_path, monkeypatch):
    here, libraries = tmp_path / "here", tmp_path / "a 'library'"
    for folder, text in ((here, "raise SystemExit(9)"), (libraries, "'found'")):
        folder.mkdir()
        (folder / "json.py").write_text(f"where = {text}" if folder == libraries else text)
    (here / "stranger.py").touch()
    monkeypatch.chdir(here)
    (tmp_path / "link").symlink_to(here)
    entries = ["", str(here), str(tmp_path / "link"), "relative", str(tmp_path / "absent")]
    monkeypatch.setattr(sys, "path", [*entries, str(libraries), *sys.path])
    code = """
import importlib.util, json, sys
assert importlib.util.find_spec("stranger") is None
print(json.where, sys.argv[1])"""
    command = [*isolated_command(code), "argument"]
    assert subprocess.check_output(command, text=True) == "found argument\n"
