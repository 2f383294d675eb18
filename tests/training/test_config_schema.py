"""The schema of options accepts what `--config` accepts, by the judgement of jsonschema."""

import json

import jsonschema
import pytest

from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.config_file import NOT_INHERITED, to_json
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
