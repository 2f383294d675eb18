"""A run's configuration leaves and comes back whole, and what is wrong with a file is one line."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import pytest

from jaxsr import train
from jaxsr.errors import InputError
from jaxsr.field_values import checked, from_values
from jaxsr.interop.bounded_read import CONFIGURATION
from jaxsr.interop.sealed_json import seal
from jaxsr.models.named_code import check_run_names
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.config_file import NOT_INHERITED, read_config, summarize, to_json
from jaxsr.training.find_task import TASKS, find_options, find_task
from jaxsr.training.mshnet import MSHNetTask
from jaxsr.training.presets import span
from jaxsr.training.span import SpanTask
from jaxsr.training.task_config import TaskConfig

PRESETS = {
    f"{name} {preset}": (name, config)
    for name in ("fast-srgan", "span", "mshnet", "super-resolution", "detection")
    for preset, config in find_task(name).presets.items()
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_comes_back_equal(preset, tmp_path):
    family, config = PRESETS[preset]
    config = dataclasses.replace(config, data=Path("some/photos"), out=Path("run"), resume=True)
    (tmp_path / "config.json").write_text(json.dumps(to_json(family, config)))
    file = read_config(tmp_path)
    assert file.family == family
    restored = file.run_config(type(config))
    assert restored == dataclasses.replace(config, out=None, resume=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not the configuration of a run"),
        ("[]", "is not the configuration of a run"),
        ('{"family": "span"}', "KeyError: 'options'"),
        ('{"family": "span", "options": 3}', "is not the configuration of a run"),
        (f'{{"family": "span", "options": {"1" * 5000}}}', "is not the configuration of a run"),
        ("[" * 100_000, "is not the configuration of a run"),
        (" " * (CONFIGURATION + 1), "has more than"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_config(path)
    with pytest.raises(FileNotFoundError, match="no configuration at"):
        read_config(tmp_path / "other.json")


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
def test_many_names_are_read_in_seconds(suffix, tmp_path):
    """A search for names that come twice was quadratic: a minute for as many."""
    count = 60_000 if suffix == "json" else 12_000
    names = [f"a{number}" for number in range(count)]
    form = {"json": '"{}": 1,\n', "yaml": "{}: 1\n", "toml": "{} = 1\n"}[suffix]
    text = "".join(map(form.format, names))
    start = {"json": '{"family": "span", "options": {', "yaml": "", "toml": "family = 'span'\n"}
    end = {"json": '"z": 1}}', "yaml": "family: span\n", "toml": ""}[suffix]
    path = tmp_path / f"many.{suffix}"
    path.write_text(start[suffix] + text + end)
    began = time.process_time()
    assert names[-1] in read_config(path).options
    assert time.process_time() - began < 10
    path.write_text(start[suffix] + text + form.format("a7") + end)
    with pytest.raises(ValueError, match=r"a7|overwrite"):
        read_config(path)


@pytest.mark.parametrize("start", ["", "["])
@pytest.mark.parametrize("part", ["a", '"a b"', "'c'"])
def test_a_key_of_many_parts_is_refused(part, start, tmp_path):
    """TOML's reader takes the square of their number, in memory too."""
    path = tmp_path / "deep.toml"
    path.write_text(start + " . ".join([part] * 10_000) + "]" * bool(start) + " = 1" * (not start))
    with pytest.raises(ValueError, match="a key of more than 50 parts"):
        read_config(path)
    path.write_text("family = 'span'\n" + ".".join(["a"] * 40) + " = 1\n")
    assert read_config(path).options["a"]["a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 3}, "there is no option width of this task"),
        ({"model": {"size": 3}}, r"there is no option model\.size of this task"),
        ({"lr": "fast"}, 'lr must be a number, got "fast"; correct the file'),
        ({"steps": True}, "steps must be a whole number or null, got true"),
        ({"lr": False}, "lr must be a number, got false"),
        ({"milestones": 5}, "milestones must be a list of numbers, got 5"),
        ({"milestones": ["a"]}, r'milestones must be a list of numbers, got \["a"\]'),
        ({"betas": [0.9]}, r"betas must be a list of 2 numbers, got \[0\.9\]"),
        ({"low_jpeg": 40}, "low_jpeg must be a list of 2 whole numbers or null, got 40"),
        ({"logger": "wandb"}, 'logger must be a list of texts, got "wandb"'),
        ({"data": 5}, "data must be a path or null, got 5"),
        ({"model": {"scale": 3}}, r"model\.scale must be one of 1, 2, 4, got 3"),
        ({"model": 5}, "model must be a mapping of options, got 5"),
        ({"eps": float("inf")}, "eps must be finite, got inf"),
        ({"dampening": float("-inf")}, "dampening must be finite, got -inf"),
        ({"mixup": float("inf")}, "mixup must be finite, got inf"),
        ({"save_every": 10**400}, "save_every must be at most 2,147,483,647, got 1000"),
        ({"lr": -1.0}, r"lr must be above 0, got -1\.0"),
        ({"mesh": "2x4"}, "mesh '2x4' is neither"),
    ],
)
def test_wrong_options_are_refused(change, message, tmp_path):
    content = to_json("span", span.QUICK)
    content["options"] |= change
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path).run_config(span.SpanRun)


def test_yaml_that_holds_itself_or_copies_is_refused(tmp_path):
    for text in ("family: span\nmilestones: &a [*a]\n", "family: span\na: &b [1]\nc: [*b, *b]\n"):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"write the value for \*[ab]"):
            read_config(tmp_path / "mine.yaml")


@pytest.mark.parametrize("value", ["!!bool abc", "!!int x", "!!timestamp abc"])
def test_a_yaml_tag_that_does_not_suit_its_value_is_refused(tmp_path, value):
    (tmp_path / "mine.yaml").write_text(f"family: span\nbatch: {value}\n")
    with pytest.raises(InputError, match=r"mine\.yaml is not the configuration of a run"):
        read_config(tmp_path / "mine.yaml")


def test_the_summary_names_the_preset_and_what_differs():
    presets = SpanTask.presets
    for name, config in presets.items():
        assert summarize(config, presets) == f"options: preset {name}; config.json lists all"
    model = dataclasses.replace(span.QUICK.model, width=20)
    config = dataclasses.replace(span.QUICK, batch=2, model=model, out=Path("runs/a"))
    said = summarize(config, presets)
    assert said == "options: preset quick  batch=2  model.width=20; config.json lists all"
    many = dataclasses.replace(span.QUICK, **{n: 8 for n in ("steps", "batch", "crop", "seed")})
    many = dataclasses.replace(many, lr=0.5, log_every=3, save_every=5, validate_every=9, ema=0.5)
    assert max(map(len, summarize(many, presets).splitlines())) <= 100


def test_a_run_starts_from_the_configuration_of_another(tmp_path):
    config = dataclasses.replace(span.QUICK, lr=5e-4, out=Path("elsewhere"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json("span", config)))
    expected = dataclasses.replace(config, out=None, batch=8)
    for arguments in (["--config", str(path), "--batch", "8"], ["span", f"--config={tmp_path}"]):
        name, task, parsed = parse_command_line(arguments)
        assert (name, task) == ("span", SpanTask)
        assert parsed == dataclasses.replace(expected, batch=8 if "--batch" in arguments else 16)
    assert parse_command_line(["--config", str(path), "--epochs", "2"])[2].steps is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "quick"], "each give the defaults"),
        (["mshnet"], "configures a run of span, not of mshnet"),
        (["--lr", "0"], "lr must be above 0"),
    ],
)
def test_options_that_contradict_the_file_are_refused(arguments, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_json("span", span.QUICK)))
    with pytest.raises(ValueError, match=message):
        parse_command_line([*arguments, "--config", str(tmp_path)])


YAML = """
family: span
batch: 32
lr: 5e-4
mesh: 4
milestones: [10, 0.5]
data: some/photos
model: {width: 20}
"""
TOML = """
family = "span"
batch = 32
lr = 5e-4
mesh = 4
milestones = [10, 0.5]
data = "some/photos"
[model]
width = 20
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML)])
def test_a_file_written_by_hand_changes_a_preset(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    chosen = SpanTask.presets[SpanTask.default_presets[True]]
    changed = dataclasses.replace(
        chosen, batch=8, lr=5e-4, mesh="4", milestones=(10, 0.5), data=Path("some/photos"),
        model=dataclasses.replace(chosen.model, width=20),
    )  # fmt: skip
    assert parse_command_line(["--config", str(path), "--batch", "8"])[2] == changed
    path.write_text(
        text.replace("family", 'preset = "quick"\nfamily')
        if name == "a.toml"
        else f"preset: quick\n{text}"
    )
    config = parse_command_line(["span", "--config", str(path)])[2]
    assert config.steps == span.QUICK.steps and config.batch == 32


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "lr: 0.1", "KeyError: 'family'"),
        ("a.yaml", "- lr", "it holds a list"),
        ("a.yaml", "family: span\nlr: [", "ValueError: while parsing"),
        ("a.yaml", "family: span\nlr: 1\nlr: 2", "'lr' appears twice"),
        (
            "a.yaml",
            "family: span\nlr: !!python/name:os.system ''",
            "ValueError: could not determine",
        ),
        ("a.yaml", "family: span\nlr: fast", 'lr must be a number, got "fast"'),
        ("a.yaml", "family: span\nwidth: 3", "there is no option width"),
        ("a.yaml", "family: span\nbatchs: 3", r"batchs of this task \(did you mean batch\?\)"),
        ("a.yaml", "# nothing yet", "it is empty"),
        ("a.yaml", "family: span\n1: 2", "the name 1 is not a text; write it in quotes"),
        ("a.yaml", "family: span\nmodel: {true: 2}", "the name True is not a text"),
        ("a.yaml", "family: span\nnetwork_args: [{~: {}}]", "the name None is not a text"),
        ("a.yaml", "family: span\nvalidation_px: 1", "validation_px=1 must be at least 4 with"),
        ("a.yaml", "family: span\npreset: huge", "no preset 'huge'; there are"),
        ("a.toml", "family = span", "TOMLDecodeError"),
        ("a.yaml", "family: span\nbranch_from: runs/a", "add --branch-from to the command line"),
        ("a.toml", "family = 'span'\nout = 5", "a.toml has out=5, which each start names by"),
        ("a.yaml", "family: span\ncompile_cache: gift", "add --compile-cache to the command line"),
        ("a.yaml", "family: span\nscratch: gift", "add --scratch to the command line"),
        ("a.yaml", "family: span\naot: v5e:1x1", "add --aot to the command line"),
        ("a.yaml", "family: span\naot_json: gift", "add --aot-json to the command line"),
        (
            "a.json",
            '{"family": "span", "options": {"resume": true}}',
            "add --resume to the command",
        ),
        ("a.json", '{"family": "span", "options": {"lr": 1, "lr": 2}}', "'lr' appears twice"),
        ("a.toml", "family = 'span'\nlr = 1\nlr = 2", "TOMLDecodeError"),
    ],
)
def test_mistakes_in_files_written_by_hand_are_one_line(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as error:
        parse_command_line(["--config", str(tmp_path / name)])
    assert "\n" not in str(error.value)


def test_a_run_of_an_older_version_is_only_branched_from(tmp_path):
    content = to_json("span", span.QUICK)
    (tmp_path / "config.json").write_text(json.dumps(content))  # without digest, as 0.2.0 wrote it
    with pytest.raises(InputError, match=f"has no digest.* --branch-from {tmp_path} --out NEW"):
        parse_command_line(["--resume", "--out", str(tmp_path)])
    branch = ["--branch-from", str(tmp_path), "--out", str(tmp_path / "new")]
    _, _, config = parse_command_line(branch)
    assert config.batch == span.QUICK.batch and config.branch_from == tmp_path


@pytest.mark.parametrize(
    ("words", "preset", "line"),
    [
        (["--data", "photos"], "quick", ""),
        (
            ["span", "--data", "photos"],
            "restore",
            "preset restore, because of --data; --preset quick",
        ),
        (["span", "--data=photos", "--preset", "quick"], "quick", ""),
        (["span"], "quick", ""),
    ],
)
def test_a_preset_changes_with_a_line_alone(capsys, words, preset, line):
    _, task, config = parse_command_line(words)
    assert dataclasses.replace(task.presets[preset], data=config.data) == config
    said = capsys.readouterr().out
    assert said.startswith(line) and bool(said) == bool(line)


def parsed(tmp_path, text, *words) -> Any:
    (tmp_path / "mine.yaml").write_text(text)
    return parse_command_line(["--config", str(tmp_path / "mine.yaml"), *words])[2]


def test_a_length_in_steps_replaces_that_of_a_preset_in_epochs(tmp_path):
    default = MSHNetTask.presets[MSHNetTask.default_presets[False]]
    assert default.steps is None
    config = parsed(tmp_path, "family: mshnet\nsteps: 1e3\n")
    assert (config.steps, config.epochs) == (1000, None)
    config = parsed(tmp_path, "family: span\nepochs: 2\n")
    assert (config.steps, config.epochs) == (None, 2.0)


def test_names_of_optax_and_of_the_hub_are_not_code(tmp_path):
    text = "family: span\noptimizer: optax:lion\noptimizer_args: {b2: 0.9}\ninit: hf:org/a:b.pt\n"
    config = parsed(tmp_path, text)
    assert json.loads(config.optimizer_args) == {"b2": 0.9}
    assert str(config.init) == "hf:org/a:b.pt"
    for text in ("optimizer: evil:Rule", "network: hf:org", "logger: ['optax.evil:Rule']"):
        with pytest.raises(InputError, match="runs no code of its choice"):
            parsed(tmp_path, f"family: super-resolution\n{text}\n")


NETWORK = "family: super-resolution\nnetwork: {}\nnetwork_args: {}\n"


@pytest.mark.parametrize(
    ("network", "arguments"),
    [
        ("timm:resnet18", "{checkpoint_path: w.pth}"),
        ("timm:resnet18", """'{"pretrained": true}'"""),
        ("torchvision:resnet18", "{weights: DEFAULT}"),
        ("timm:hf-hub:org/net", "{}"),
        ("json:JSONDecoder", "{file: w.pth}"),
    ],
)
def test_files_give_networks_of_libraries_data_alone(network, arguments, tmp_path):
    text, named = NETWORK.format(network, arguments), ["--logger", network]
    message = r"may open a file or fetch|more than a network's name"
    with pytest.raises(InputError, match=rf"({message}).*give --network(-args)? in the command"):
        parsed(tmp_path, text, *named)
    config: Any = read_config(tmp_path / "mine.yaml").run_config(
        find_task("super-resolution").Config,
        base=find_task("super-resolution").presets["quick"],
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(seal(to_json("super-resolution", config)))
    for source in (["--resume", "--out"], ["--branch-from"], ["--config"]):
        with pytest.raises(InputError, match=message):
            parse_command_line(["super-resolution", *source, str(run), *named])
    own = ["--network", network, "--network-args", config.network_args]
    for source in (["--resume", "--out"], ["--branch-from"]):
        parse_command_line(["super-resolution", *source, str(run), *own])
    words = ["--network-args={}", "--network=timm:resnet18"]
    assert parsed(tmp_path, text, *words, *named).network_args == "{}"


def test_arguments_that_a_file_gives_the_users_own_network_are_free(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").touch()
    monkeypatch.chdir(tmp_path)
    text = NETWORK.format("my_nets:Net", "{weights_path: w.pth}")
    assert parsed(tmp_path, text, "--network", "my_nets:Net").network_args


@pytest.mark.parametrize(
    "name",
    ["evil-:T", "evil", "evil:", "evil-", "a b.evil:T", "evil:.T", "evil.py", "1/evil:T", "smp:T"],
)
@pytest.mark.parametrize("option", ["network", "logger", "loss"])
def test_names_that_are_not_seen_in_a_file_are_not_imported(name, option, tmp_path, monkeypatch):
    for module in ("evil", "evil-", "a b.evil", "1/evil", "smp", "plain_nets"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    for stem in ("evil", "evil-", "a b/evil", "1/evil", "smp"):
        place = tmp_path / f"{stem}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "plain_nets.py").write_text(
        "from torch import nn\ndef Net(): return nn.Conv2d(3, 3, 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = {"network": "plain_nets:Net", "scale": 1, "tensorboard": False, "check": False}
    options[option] = [name] if option == "logger" else f"l1=1,{name}" if option == "loss" else name
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"family": "super-resolution", "options": options}))
    words = [] if option == "network" else ["--network", "plain_nets:Net"]
    assert train.main(["--config", "c.json", "--out", "run", *words]) == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        '{"body": "evil:T"}',
        {"body": ["evil:T"]},
        {"evil:T": 1},
        '{"body": "evil\\u003aT"}',
        '\n\t {"body": "evil\\u003aT"}',
        '["evil\\u003aT"]',
    ],
)
def test_names_in_arguments_are_seen(arguments):
    with pytest.raises(InputError, match="names the code evil:T"):
        check_run_names(Path("run"), "span", {"network_args": arguments}, ["--network", "my:Net"])
    words = ['--network-args={"body": "evil:T"}']
    check_run_names(Path("run"), "span", {"network_args": arguments}, words)


@pytest.mark.parametrize(
    "text", ["preset: [a]", "preset: 5", "options: 5", "family: [a]", "family: null"]
)
def test_entries_of_another_type_are_refused(text, tmp_path):
    with pytest.raises(InputError, match="is not the configuration of a run"):
        parsed(tmp_path, text if text.startswith("family") else f"family: span\n{text}")


def test_a_field_without_default_is_not_to_be_left_out():
    @dataclasses.dataclass
    class Options:
        size: int
        rate: float = 1.0

    with pytest.raises(
        InputError, match=r'size must be a whole number, got "a"; correct the file$'
    ):
        from_values(Options, {"size": "a"})
    with pytest.raises(InputError, match=r"or leave the entry out to get its default$"):
        from_values(Options, {"size": 1, "rate": "a"})
    with pytest.raises(InputError, match="size is missing, and has no default"):
        from_values(Options, {"rate": 1.0})


class Point(NamedTuple):
    name: str
    place: tuple[int, ...]


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (list, [1, "a"], [1, "a"]),
        (tuple[Literal[1, 3], ...], [3.0, 1], (3, 1)),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, Any], {"a": [1]}, {"a": [1]}),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Point, ["a", [1, 2]], Point("a", (1, 2))),
    ],
)
def test_values_of_several_parts(kind, value, wanted):
    assert checked(kind, value, "x") == wanted


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (dict[str, int], {"a": "b"}, "x must be a mapping to whole numbers"),
        (dict[str, int], [1], "x must be a mapping to whole numbers"),
        (Point, ["a"], "x must be Point"),
        (Point, ["a", ["b"]], "x must be Point"),
    ],
)
def test_values_of_several_parts_that_do_not_fit(kind, value, message):
    with pytest.raises(InputError, match=message):
        checked(kind, value, "x")


def test_every_path_among_the_options_is_read_or_of_the_command():
    """A new one that a run writes to belongs to `OF_COMMAND`: a file may be a stranger's."""
    kinds = (TaskConfig, *(find_options(name).Config for name in TASKS))
    paths = {
        name
        for kind in kinds
        for name, declared in get_type_hints(kind).items()
        if Path in (declared, *get_args(declared))
    }
    assert paths - {*NOT_INHERITED} <= {"data", "val", "init", "perceptual_weights"}
