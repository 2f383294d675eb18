"""Each command of the pages stands on a line of its own, and has the options that it names."""

import re
import shlex
from pathlib import Path

import pytest

from jaxsr.__main__ import COMMANDS
from jaxsr.runtime.completion import completion_script
from jaxsr.training.find_task import TASKS, find_options

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))
    if "python -m jaxsr." in page.read_text()
)
SCRIPT = completion_script(COMMANDS, {task: find_options(task).Config for task in TASKS})
OPTIONS = {
    command.strip(): {*words.split(), "--help", "--version", "--quiet", "--schema"}
    for command, words in re.findall(r'^    "([^"]+)"\*\) words="(--[^"]*)"', SCRIPT, re.M)
}


def commands(page: Path) -> list[str]:
    """Returns the lines of the page's shell blocks, continued lines as one."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)
    texts = [text.replace("\\\n", " ") for language, text in fenced if language in ("", "sh")]
    lines = [line for text in texts for line in text.splitlines()]
    return [line for line in lines if re.match(r"jaxsr\.|.*python -m jaxsr\.", line)]


def options_of(words: list[str]) -> set[str]:
    """Returns the options of the command that begins with these words; of your own task, none."""
    names = [name for name in (" ".join(words[:2]), words[0]) if name in OPTIONS]
    own = len(words) > 1 and ":" in words[1]
    return OPTIONS[names[0]] if names and not own else set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_code_fits_the_column(page):
    """A longer line is cut or torn on the site, where docs/static/site.css sets the size."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```$", page.read_text(), re.M | re.S)
    long = [line for block in blocks for line in block.splitlines() if len(line) > 98]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_has_a_line_of_its_own_and_its_options(page):
    for line in commands(page):
        assert not line.startswith("jaxsr."), f"the line before it is torn: {line}"
        words = shlex.split(line, comments=True)
        starts = [place for place, word in enumerate(words) if word.startswith("jaxsr.")]
        for start in starts:
            before = words[start - 3] if start >= 3 else "&&"
            assert before in ("&&", ";", "|") or "=" in before, f"two commands in a line: {line}"
            command = [words[start].removeprefix("jaxsr."), *words[start + 1 :]]
            assert command[0] in COMMANDS, line
            named = {word.partition("=")[0] for word in command if word.startswith("--")}
            known = options_of(command)
            unknown = {name for name in named - known if name.replace("--no-", "--") not in known}
            assert not known or not unknown, f"{unknown}: {line}"
