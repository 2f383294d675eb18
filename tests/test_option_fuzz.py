"""Every option of every command with values that nobody foresaw: exit 2 and one line, no traceback.

The commands parse and check their options, and stop where their work would begin.
"""

import dataclasses
import os
from importlib import import_module
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxsr.training.find_task import TASKS, find_options

COMMANDS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    # Command: module, configuration, where the work begins, and what the command needs.
    "restore": (
        "jaxsr.restoration.config:RestoreConfig", "jaxsr.restoration.restore_files:run",
        "jaxsr.restoration.ahead_tiles:run", ("picture.png",),
    ),
    "detect": (
        "jaxsr.detection.config:DetectConfig", "jaxsr.detection.detect_files:run",
        "jaxsr.detection.ahead_batches:run", ("picture.png", "--model", "w", "--out", "o"),
    ),
    "evaluate": (
        "jaxsr.detection.config:EvaluateConfig", "jaxsr.data.infrared:open_split",
        "jaxsr.data.infrared:open_split", ("data", "--model", "w", "--out", "o"),
    ),
    "generate": (
        "jaxsr.generation.config:GenerateConfig", "jaxsr.generation.generate_prompts:run",
        "jaxsr.generation.ahead_run:run", ("prompt", "--model", "m"),
    ),
    "check": (
        "jaxsr.comparison.check_options:CheckConfig", "jaxsr.comparison.check_command:run",
        "jaxsr.comparison.ahead_check:run", ("--model", "torch.nn:ReLU"),
    ),
    "export": (
        "jaxsr.comparison.export_options:ExportConfig", "jaxsr.comparison.exporting:run",
        "jaxsr.comparison.exporting:run", ("--model", "torch.nn:ReLU", "--out", "a.stablehlo"),
    ),
    "doctor": (
        "jaxsr.doctor:DoctorConfig", "jaxsr.doctor.diagnose:diagnose",
        "jaxsr.doctor.diagnose:diagnose", (),
    ),
    "compare ops": (
        "jaxsr.comparison.ops_options:OpsOptions", "jaxsr.comparison.ops_command:configure_jax",
        "jaxsr.comparison.ops_command:configure_jax", (),
    ),
}  # fmt: skip


class Started(Exception):
    """The options were accepted."""


def named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def option_names(kind: Any, prefix: str = "--") -> list[str]:
    names = []
    for field in dataclasses.fields(kind):
        value = field.default
        if dataclasses.is_dataclass(field.type):
            names += option_names(field.type, f"{prefix}{field.name.replace('_', '-')}.")
        else:
            names.append(prefix + field.name.replace("_", "-"))
            if isinstance(value, bool):
                names.append(f"{prefix}no-{field.name.replace('_', '-')}")
    return names


NUMBERS = ("0", "-1", "1", "nan", "inf", "-inf", "1e999", "9" * 30, "-" + "9" * 30, "9" * 5000,
           "2.5", "0x10", "1_000", "٣", "1e-320", str(2**31), str(2**63), str(2**64))  # fmt: skip
WORDS = ("", " ", "-", "--", "=", "\x00", "\n", "a\nb", "é", "\udcff", "x" * 5000, "None", "True",
         "{}", "[]", "null", "[" * 3000, "../..", "/dev/null", "a,b", "data=2", "data=0,fsdp=-1",
         "data=" + "9" * 30, "1280x720", "0x0", "9" * 20 + "x1", "cpu", "jax", "torch", "5:2",
         "v5e:2x4", "v5e:0x0", "v9z:1x1", '{"a": 1}', "1" * 5000)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(NUMBERS + WORDS),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


def check(main: Any, arguments: list[str], capsys: Any) -> None:
    try:
        status = main(arguments)
    except Started:
        return
    error = capsys.readouterr().err
    assert status in (0, 2), (arguments, status, error)
    if status == 2:
        lines = error.strip("\n").split("\n")
        assert len(lines) == 1 and lines[0].startswith("jaxsr: "), (arguments, error)


def command_lines(names: list[str], needed: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    name = st.sampled_from(names)
    option = st.one_of(
        st.tuples(name, VALUES).map(list),
        st.tuples(name, VALUES).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
        st.tuples(name, VALUES, VALUES).map(list),
        name.map(lambda word: [word]),
        VALUES.map(lambda word: [word]),
    )
    lists = st.lists(option, min_size=1, max_size=4)
    start = st.sampled_from([needed, needed, needed, ()])
    return st.tuples(start, lists).map(lambda both: [*both[0], *chain(*both[1])])


def without_work(monkeypatch: Any, *places: str) -> None:
    def started(*_: object, **__: object) -> None:
        raise Started

    for place in places:
        module, _, name = place.partition(":")
        monkeypatch.setattr(import_module(module), name, started)


FUZZ = settings(
    max_examples=int(os.environ.get("JAXSR_FUZZ_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_refused_in_one_line(command, monkeypatch, capsys, tmp_path):
    configuration, work, aot, needed = COMMANDS[command]
    without_work(monkeypatch, work, aot)
    monkeypatch.chdir(tmp_path)
    word, *first = command.split()
    main = import_module(f"jaxsr.{word}").main

    @FUZZ
    @given(line=command_lines(option_names(named(configuration)), needed))
    def fuzz(line):
        check(main, [*first, *line], capsys)

    fuzz()


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", TASKS)
def test_options_of_training(family, monkeypatch, capsys, tmp_path):
    without_work(monkeypatch, "jaxsr.training.start:start", "jaxsr.training.ahead_steps:run")
    monkeypatch.chdir(tmp_path)
    main = import_module("jaxsr.train").main
    names = [*option_names(find_options(family).Config), "--preset", "--config"]

    @FUZZ
    @given(line=command_lines(names, ()))
    def fuzz(line):
        check(main, [family, *line], capsys)

    fuzz()


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["trace", "engines", "traces"])
def test_options_of_comparisons(what, monkeypatch, capsys, tmp_path):
    kinds = {"trace": "TraceOptions", "engines": "EnginesOptions", "traces": "TracesOptions"}
    kind = named(f"jaxsr.comparison.commands:{kinds[what]}")
    place = "jaxsr.comparison.trace_file:load_trace"
    without_work(monkeypatch, place if what == "traces" else "jaxsr.comparison.commands:_prepare")
    monkeypatch.chdir(tmp_path)
    main = import_module("jaxsr.compare").main
    needed = ("a", "b") if what == "traces" else ("--model", "span")

    @FUZZ
    @given(line=command_lines(option_names(kind), needed))
    def fuzz(line):
        check(main, [what, *line], capsys)

    fuzz()
