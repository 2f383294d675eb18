"""Options of a task that its run's `config.json` holds, and those that it refuses."""

import dataclasses
import enum

import pytest

from jaxsr.errors import InputError
from jaxsr.field_values import from_values
from jaxsr.training.config_file import check_json_options, flat_options, to_json
from jaxsr.training.task_config import TaskConfig


class Mode(enum.Enum):
    FAST = "f"


class WithMode(TaskConfig):
    mode: Mode = Mode.FAST
    modes: tuple[Mode, ...] = (Mode.FAST,)


def test_members_of_an_enum_are_read_back():
    options = to_json("own", WithMode())["options"]
    check_json_options(WithMode(), options)
    assert from_values(WithMode, options) == WithMode()


class SetOfNumbers(TaskConfig):
    parts: frozenset[int] = frozenset({1})


class NoneAsText(TaskConfig):
    label: str = None  # pyright: ignore[reportAssignmentType]


class NumbersAsNames(TaskConfig):
    weights: dict[int, float] = dataclasses.field(default_factory=lambda: {1: 2.0})


@pytest.mark.parametrize(
    ("config", "name"),
    [(SetOfNumbers(), "parts"), (NoneAsText(), "label"), (NumbersAsNames(), "weights")],
)
def test_options_that_no_resume_could_read_are_refused(config, name):
    options = to_json("own", config)["options"]
    with pytest.raises(InputError, match=f"{name} is .* config.json cannot hold"):
        check_json_options(config, options)
    assert flat_options(config)
