"""The schema of options accepts what `--config` accepts, by the judgement of jsonschema."""

import copy
import json
import random

import jsonschema
import pytest

from jaxsr.errors import InputError
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.config_file import NOT_INHERITED, ConfigFile, to_json
from jaxsr.training.find_task import TASKS, find_task


def _validator(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        parse_command_line([*arguments, "--schema"])
    assert stop.value.code == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("family", TASKS)
def test_every_preset_is_valid(family, capsys):
    validator = _validator(capsys, family)
    for config in find_task(family).presets.values():
        options = to_json(family, config)["options"]
        options = {name: value for name, value in options.items() if name not in NOT_INHERITED}
        validator.validate({"family": family, **options})


def test_mistakes_are_seen(capsys):
    validator = _validator(capsys, "span")
    content = {
        "family": "span", "preset": "quick", "batch": 32, "lr": 5e-4, "mesh": 4, "ema": 0.99,
        "milestones": [10, 0.5], "data": "some/photos", "model": {"width": 20},
    }  # fmt: skip
    validator.validate(content)
    for change in (
        {"lrr": 1}, {"lr": "fast"}, {"schedule": "cosin"}, {"batch": 1.5}, {"milestones": 3},
        {"family": "mshnet"}, {"preset": "huge"}, {"model": {"layers": 3}},
        {"model": {"width": 10**6}},
    ):  # fmt: skip
        assert not validator.is_valid(content | change), change
    assert "Peak learning rate" in json.dumps(validator.schema)


VALUES = (
    None, True, 0, 1, -1, 2**31, 2**70, 1.5, 3.0, float("inf"), "", "x", "a\0b", [], [1], [1, 2],
    ["a"], [None], [[1]], {}, {"a": 1}, {"width": 5}, [True], [1.5, float("nan")],
)  # fmt: skip


def _groups(options):
    """The options, and the groups of options among them."""
    yield options
    for value in options.values():
        if isinstance(value, dict):
            yield from _groups(value)


@pytest.mark.parametrize("family", TASKS)
def test_what_the_schema_refuses_is_one_line_of_the_parser(family, capsys):
    draw = random.Random(family)
    validator, task = _validator(capsys, family), find_task(family)
    presets = [to_json(family, config)["options"] for config in task.presets.values()]
    taken = 0
    for _ in range(200):
        options = copy.deepcopy(draw.choice(presets))
        options = {name: value for name, value in options.items() if name not in NOT_INHERITED}
        group = draw.choice(list(_groups(options)))
        name = draw.choice([*group, "further"])
        group[name] = copy.deepcopy(draw.choice(VALUES))
        is_valid = validator.is_valid({"family": family, **options})
        try:
            ConfigFile(family=family, options=options).run_config(task.Config)
        except InputError as error:
            text = str(error)
            assert text.isprintable() and len(text) < 400
            assert name in text or not is_valid or "correct the file" not in text
            assert not (is_valid and "correct the file" in text), (name, group[name])
        else:
            assert is_valid, (name, group[name])
            taken += 1
    assert taken > 5
