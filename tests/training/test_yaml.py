"""YAML of configuration files: numbers, texts and truth values of version 1.2."""

import math

import pytest

from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.config_file import read_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("1_000", 1000),
        ("0x1F", 31),
        ("-3", -3),
        ("1:30", "1:30"),
        ("5e-4", 5e-4),
        (".5", 0.5),
        ("2.", 2.0),
        ("-.inf", -math.inf),
        ("'010'", "010"),
        ("true", True),
        ("off", "off"),
    ],
)
def test_numbers_are_those_of_yaml_1_2(text, value, tmp_path):
    (tmp_path / "a.yaml").write_text(f"family: span\nlr: {text}")
    read = read_config(tmp_path / "a.yaml").options["lr"]
    assert read == value and type(read) is type(value)


def test_on_and_off_are_truth_values_where_the_option_is_one(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("family: span\nlane_folding: off\ntensorboard: Yes")
    config = parse_command_line(["span", "--config", str(path)])[2]
    assert config.lane_folding == "off"
    assert config.tensorboard
