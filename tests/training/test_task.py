"""A user's task from a file: trained by both engines, on a mesh, resumed, refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional as F

from jaxsr.data.processors import available_cpus
from jaxsr.errors import InputError
from jaxsr.interop.checkpoint import Checkpoints
from jaxsr.interop.weights import export_weights, read_metadata
from jaxsr.train import main
from jaxsr.training.cli_options import parse_command_line
from jaxsr.training.find_task import find_task
from jaxsr.training.metrics_logger import Records
from jaxsr.training.task_config import TaskConfig
from jaxsr.training.task_run import TaskRun
from tests.training.running import take_steps

TASKS = Path(__file__).with_name("user_tasks.py")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the tasks in `fit_task.py`."""
    shutil.copy(TASKS, tmp_path / "fit_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("fit_task", None)


def build(*arguments):
    _, task, config = parse_command_line(arguments)
    return task, config


def test_options_are_those_of_the_task(folder):
    _, config = build("fit_task:Fit", "--width", "7", "--lr", "0.5")
    assert (config.width, config.lr, config.batch, config.steps) == (7, 0.5, 8, 6)
    _, config = build("fit_task:Fit", "--epochs", "2")
    assert (config.steps, config.epochs) == (None, 2)


def test_help_names_the_options(folder, capsys):
    assert main(["fit_task:Fit", "--help"]) == 0
    text = capsys.readouterr().out
    assert (
        "--width INT" in text
        and "Width of the hidden layer." in text
        and "--on-bad-file" not in text
    )


@pytest.mark.parametrize("mesh", ["8", pytest.param("data=2,fsdp=4", marks=pytest.mark.slow)])
def test_the_same_steps_as_plain_torch(folder, mesh):
    """Dropout aside, on both engines and a mesh."""
    from fit_task import Fit  # type: ignore[import-not-found]

    class NoDropout(Fit):
        def network(self):
            network = super().network()
            network[1].p = 0.0
            return network

    losses = {}
    for options in ({}, {"mesh": mesh}, {"engine": "torch"}):
        metrics, weights = take_steps(NoDropout, Fit.Config(**options))
        losses[str(options)] = [m["network/loss"] for m in metrics], weights
        assert metrics[0]["network/rms"] == pytest.approx(metrics[0]["network/loss"] ** 0.5)

    torch.manual_seed(0)
    network = NoDropout(Fit.Config()).network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=0)
    task = TaskRun("t:Fit", NoDropout, Fit.Config())
    expected = []
    with task.batches(0, host=0, hosts=1) as batches:
        for _ in range(6):
            batch = {name: torch.from_numpy(array) for name, array in next(batches).items()}
            loss = F.mse_loss(network(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    for name, (values, weights) in losses.items():
        # float32 sums in another order, through six steps
        np.testing.assert_allclose(values, expected, rtol=1e-4, err_msg=name)
        for key, tensor in network.state_dict().items():
            np.testing.assert_allclose(weights[key], tensor.numpy(), atol=1e-4, err_msg=name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("task", ["PenalisedGan", "Forces"])
def test_losses_of_gradients_are_the_same_on_both_engines_and_a_mesh(folder, task):
    runs = {}
    for name, options in (("jax", []), ("mesh", ["--mesh", "4"]), ("torch", ["--engine", "torch"])):
        assert main([f"fit_task:{task}", "--out", name, "--log-every", "1", *options]) == 0
        records = map(json.loads, Path(f"{name}/metrics.jsonl").read_text().splitlines())
        runs[name] = [
            {
                k: v
                for k, v in r.items()
                if k.startswith(("generator", "critic", "network", "valid"))
            }
            for r in records
        ]
    assert any(k.endswith(("penalty", "validation/error")) for k in runs["torch"][-1])
    for name in ("jax", "mesh"):
        for actual, expected in zip(runs[name], runs["torch"], strict=True):
            assert actual == pytest.approx(expected, rel=2e-4, abs=1e-6)


def test_validation_figures_are_those_of_the_whole_data(folder):
    from fit_task import Fit  # type: ignore[import-not-found]

    from jaxsr.training.engines import make_engine
    from jaxsr.training.task_batches import validation_batches

    figures = []
    for options in ({"mesh": "4"}, {"engine": "torch"}):
        task = TaskRun("t:Fit", Fit, Fit.Config(**options))
        result = task.validate(make_engine(task).network("train"))
        figures.append(result.metrics)
        assert result.picture is not None and result.picture.shape == (4, 32, 3)
    assert task.held_out is not None
    batches = list(validation_batches(task.held_out, 13))
    x, y = (torch.from_numpy(batches[0][name]) for name in "xy")
    with torch.no_grad():
        network = task.objective.network.eval()
        error = (network(x) - y).abs()
        expected = {
            "loss": F.mse_loss(network(x), y).item(),
            "error": error.mean().item(),
            "ratio": (error.sum() / y.abs().sum()).item(),
        }
    for metrics in figures:
        assert {n: metrics[n] for n in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_a_stopped_run_goes_on_bit_for_bit(folder, engine):
    common = ["--engine", engine, "--ema", "0.5"]
    assert main(["fit_task:Fit", "--out", "whole", *common]) == 0
    assert main(["fit_task:Fit", "--out", "parts", "--steps", "3", *common]) == 0
    assert main(["--resume", "--out", "parts", "--steps", "6"]) == 2  # nobody names the code
    assert main(["fit_task.py:Fit", "--resume", "--out", "parts", "--steps", "6"]) == 0
    whole, parts = (load_file(Path(f"{n}/network.safetensors")) for n in ("whole", "parts"))
    assert "calls" not in whole  # as in torch's state dictionary
    records = [json.loads(line) for line in Path("parts/metrics.jsonl").read_text().splitlines()]
    assert max(record.get("network/calls", 0) for record in records) == 6
    for name, array in whole.items():
        np.testing.assert_array_equal(parts[name], array)
    assert json.loads(Path("parts/config.json").read_text())["family"] == "fit_task:Fit"
    assert Path("parts/network.best.safetensors").exists()
    assert list(Path("parts/validation").glob("*.png"))


def test_a_resume_with_other_code_or_variables_says_so(folder, monkeypatch, capsys, caplog):
    run = ["fit_task:Fit", "--out", "run", "--engine", "torch"]
    assert main([*run, "--steps", "3"]) == 0
    capsys.readouterr()
    assert main([*run, "--resume", "--steps", "4"]) == 0
    assert "resumed with other code" not in capsys.readouterr().err
    with Path("fit_task.py").open("a") as file:
        file.write("\n# edited\n")
    monkeypatch.setenv("JAXSR_CPU_KERNELS", "xla")
    monkeypatch.setenv("JAX_THREEFRY_PARTITIONABLE", "0")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    for name in ("JAX_LOG_COMPILES", "JAX_COMPILATION_CACHE_MAX_SIZE", "TF_VAR_of_terraform"):
        monkeypatch.setenv(name, "1")
    assert main([*run, "--resume", "--steps", "5"]) == 0
    said = capsys.readouterr().err
    assert "resumed with other code in fit_task: the run goes on as the code is now" in said
    assert "resumed with JAXSR_CPU_KERNELS='xla', before ''" in said
    assert "resumed with JAX_THREEFRY_PARTITIONABLE='0', before ''" in said
    assert "resumed with JAX_DISABLE_MOST_OPTIMIZATIONS='1', before ''" in said
    assert said.count("the results may differ") == 3
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=true")
    assert main([*run, "--resume", "--steps", "5"]) == 0
    said = capsys.readouterr().err
    assert "resumed with XLA_FLAGS='--xla_cpu_enable_fast_min_max=true', before ''" in said
    Path("run/metrics.jsonl").unlink()
    assert main([*run, "--resume", "--steps", "6"]) == 0
    assert "metrics.jsonl is gone: it has no line of the steps up to 5" in caplog.text


def test_a_resume_with_other_files_in_the_data_folder_says_so(folder, capsys):
    data = folder / "pictures"
    data.mkdir()
    (data / "a.png").write_bytes(b"a")
    run = ["fit_task:Fit", "--engine", "torch", "--data", "pictures", "--out", "pictures/runs/a"]
    assert main([*run, "--steps", "1"]) == 0
    assert main([*run, "--resume", "--steps", "2"]) == 0
    assert "resumed with other files" not in capsys.readouterr().err
    (data / "a.png").write_bytes(b"another")
    assert main([*run, "--resume", "--steps", "3"]) == 0
    assert "resumed with other files in --data (names and sizes): the" in capsys.readouterr().err


@pytest.mark.parametrize("piped", [False, True])
def test_a_bar_in_the_same_place_stands_for_the_lines_of_steps(
    tmp_path, monkeypatch, capsys, piped
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: not piped)
    records = Records(tmp_path, start_step=0, total_steps=1, batch=1)
    records.steps(1, "main", {1: {"one/lr": 0.5, "one/loss": 1.0, "two/loss": 2.0}})
    records.close()
    line = (tmp_path / "log.txt").read_text()
    assert line.startswith("step 1/1  one/loss 1  two/loss 2  ") and "one/lr 0.5" in line
    printed = capsys.readouterr()
    assert "1/1" in printed.err and (line if piped else "") == printed.out


@pytest.mark.parametrize("quiet", [False, True])
def test_lines_come_every_log_every_steps(folder, capsys, monkeypatch, quiet):
    monkeypatch.setenv("JAXSR_QUIET", str(int(quiet)))
    run = ["fit_task:Fit", "--engine", "torch", "--steps", "9", "--validate-every", "3"]
    assert main([*run, "--log-every", "4", "--out", "runs/mine"]) == 0
    lines = Path("runs/mine/log.txt").read_text().splitlines()
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    assert steps == ["4/9", "8/9", "9/9"]
    said = capsys.readouterr()
    assert said.out.splitlines() == ([] if quiet else lines) and not said.err


def test_a_resume_of_a_mistyped_folder_says_that_a_run_begins(folder, capsys):
    run = ["fit_task:Fit", "--engine", "torch", "--steps", "2"]
    assert main([*run, "--out", "runs/mine"]) == 0
    capsys.readouterr()
    assert main([*run, "--out", "runs/mne", "--resume"]) == 0
    said = capsys.readouterr().err
    assert "no run in runs/mne: a new one begins at step 0; runs has the runs mine" in said
    assert main(["--resume", "--out", "runs/men", "--steps", "3"]) == 2  # of which task?
    assert "found no run in runs/men; name its folder" in capsys.readouterr().err
    assert not Path("runs/men").exists()
    assert main([*run, "--out", "runs/mne", "--resume"]) == 0
    assert "begins at step 0" not in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_a_batch_beyond_the_memory_is_refused_at_once(folder, capsys, monkeypatch, engine):
    monkeypatch.setattr("jaxsr.interop.out_of_memory.free_memory_bytes", lambda: 2**12)
    assert main(["fit_task:Fit", "--batch", "4096", "--engine", engine]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "4096 items of Fit.train_data need at least" in line and "smaller --batch" in line


def test_crops_beyond_the_memory_are_refused_at_once(folder, capsys, monkeypatch):
    monkeypatch.setattr("jaxsr.interop.out_of_memory.free_memory_bytes", lambda: 2**20)
    assert main(["span", "--batch", "4096", "--crop", "32"]) == 2
    error = capsys.readouterr().err
    assert "4096 crops of 32 px need at least" in error and "smaller --batch" in error


def test_weights_whose_metric_is_nan_give_way_to_others(folder, capfd):
    Path("counting.py").write_text(
        "import torch\n"
        "from fit_task import Fit\n"
        "class Counting(Fit):\n"
        "    def network(self):\n"
        "        layers = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)\n"
        "        network = torch.nn.Sequential(*layers)\n"
        "        network.register_buffer('calls', torch.zeros(()), persistent=False)\n"
        "        return network\n"
        "    def metrics(self, network, batch):\n"
        "        steps = network[0].num_batches_tracked.float()\n"
        "        return {'error': torch.where(steps < 4, torch.nan, steps)}\n"
    )
    assert main(["counting:Counting", "--out", "run", "--validate-every", "2"]) == 0
    assert "'error' is NaN in the validation of step 2" in capfd.readouterr().err
    assert read_metadata(Path("run/network.best.safetensors"))["validation"]["error"] == 4
    with Checkpoints(Path("run/checkpoints"), metric="error", best="min") as checkpoints:
        assert checkpoints.best_step == 4


@pytest.mark.sample(28)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:Fit"], "cannot import nowhere"),
        (["fit_task:Missing"], "no class or function 'Missing'"),
        (["fit_task"], "a task of your own is module:Class, for instance fit_task:MyTask"),
        (["fit_task:Plain"], "fit_task:Plain is not a task; subclass jaxsr.Task"),
        (["fit_task:NoOptions"], "Config must be a subclass of jaxsr.TaskConfig"),
        (["fit_task:NoData"], "NoData does not define train_data"),
        (
            ["fit_task:NoNetwork"],
            "NoNetwork.network returned a int, not a torch module; return an object such as",
        ),
        (["fit_task:Lazy"], "Lazy: network is a LazyLinear, whose sizes are known after a first"),
        (["fit_task:Fails"], "Fails.network failed: OSError: no weights (fit_task.py:"),
        (["fit_task:Vector"], "returned a tensor of shape (8, 1), torch.float32; return one float"),
        (["fit_task:Nothing"], "Nothing.loss returned NoneType; return a scalar"),
        (["fit_task:Apart"], "Apart.loss depends on no parameter that is trained; compute it from"),
        (["fit_task:OneArgument"], "OneArgument.loss takes other arguments than (self, network, b"),
        (["fit_task:Biggest"], "Biggest.best must be 'max' or 'min', got 'biggest'"),
        (["fit_task:Counts"], "Counts.loss changes self.calls, which a compiled step does once"),
        (["fit_task:CountsInFile"], "CountsInFile.loss changes global fit_task.CALLS, which a"),
        (["fit_task:CountsInClass"], "CountsInClass.loss changes self.calls, which a compiled"),
        (["fit_task:AnnealsInObject"], "AnnealsInObject.loss changes self.anneal.temperature, whi"),
        (["fit_task:KeepsTuple"], "KeepsTuple.loss changes self.schedule['name'], which a"),
        (["fit_task:KeepsList"], "KeepsList.loss changes self.seen["),
        (
            ["fit_task:ArrayInMetadata"],
            "ArrayInMetadata.metadata cannot be exported, got {'mean': ",
        ),
        (["fit_task:WordInMetadata"], "WordInMetadata.metadata cannot be exported, got {'chan"),
        (["fit_task:NoFigures"], "NoFigures.metrics returned NoneType; return a dictionary"),
        (["fit_task:FlatPictures"], "FlatPictures.pictures returned shape (8, 1); return images"),
        (["fit_task:Infinite"], " at step 1; nothing to save before step 1. Look for NaN or a"),
        (["fit_task:NothingHeldOut"], "without an item; check --val"),
        (["fit_task:Fit", "--lr", "1e30"], " at step 2; the state of step 1 is saved. Lower --lr"),
        (["fit_task:Shapes"], "(the batch has x float32[8, 3], y float32[8, 1])"),
        (["fit_task:Names"], "'z' (the batch has x float32[8, 3], y float32[8, 1])"),
        (["fit_task:NotScalar"], "metrics returned 'error' of shape (8, 1); return scalars"),
        (
            ["fit_task:NoMetric"],
            "metric is 'iou', but validation gives calls, error, loss, ratio, r",
        ),
        (["fit_task:NoBlocks", "--remat"], "set remat_blocks"),
        (["fit_task:GanWithoutPhases"], "has the phases warmup, main; define phases"),
        (["fit_task:NoLength", "--epochs", "1"], "epochs=1 need data with a length"),
        (["fit_task:Fit", "--workers", "-1"], "workers must be at least 0, got -1"),
        (
            ["fit_task:Fit", "--workers", str(2 * available_cpus() + 1)],
            f"workers must be at most {2 * available_cpus()}, twice the processors",
        ),
        (["fit_task:Fit", "--wdth", "3"], "unknown option --wdth"),
        (["fit_task.py:NoMetric"], "metric is 'iou'"),
    ],
)
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_what_is_refused_is_one_line(folder, capsys, arguments, message, engine):
    assert main([*arguments, "--engine", engine]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("jaxsr: ") and message in lines[-1]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("CountsFromTheFirstLoss", "Loss.loss changes self.calls, which a compiled step does once"),
        ("CountsInTensor", "keeps a tensor in `CountsInTensor.scale`"),
        ("KeepsLoss", "KeepsLoss.loss changes self.average, which a compiled step does once"),
        ("MakesBuffer", "makes the buffer network.count, which no optimiser and no checkpoint"),
        ("NumpyNoise", "draws from numpy.random, and a compiled function would keep that one"),
    ],
)
def test_what_a_trace_would_keep_is_refused(folder, capsys, task, message):
    assert main([f"fit_task:{task}"]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_error_of_torchs_step_is_not_hidden_by_the_search_for_an_index(folder):
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        main(["fit_task:CallsBackward", "--engine", "torch"])


def test_options_without_a_type_are_refused():
    with pytest.raises(InputError, match=r"Config\.widht = 5 is not a known .* \(widht: int = 5\)"):

        class Config(TaskConfig):
            widht = 5


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_every_phase_is_tried_before_the_first_step(folder, capsys, engine):
    assert main(["fit_task:GanThatEndsLater", "--log-every", "1", "--engine", engine]) == 2
    lines = capsys.readouterr().err
    assert "'weight'" in lines and "step 1/" not in lines


def test_remat_finds_the_blocks(folder):
    task, config = build("fit_task:Fit", "--remat")
    assert TaskRun("fit_task:Fit", task, config).blocks == ["network.2.0", "network.2.1"]


def test_remat_finds_blocks_between_other_layers():
    from torch import nn

    from tests.training.user_tasks import Fit

    class Between(Fit):
        def network(self):
            blocks = (nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(2))
            network = nn.Sequential(nn.Linear(3, 5), *blocks, nn.Linear(5, 1))
            network.register_buffer("calls", torch.zeros(()))
            return network

    blocks = TaskRun("t:Between", Between, Between.Config(remat=True, engine="torch")).blocks
    assert blocks == ["network.1", "network.2"]


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(InputError, match="there are fast-srgan, span, mshnet"):
        find_task("nothing")


@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_several_networks_and_phases(folder, engine):
    assert main(["fit_task:Gan", "--out", "gan", "--engine", engine]) == 0
    records = [json.loads(line) for line in Path("gan/metrics.jsonl").read_text().splitlines()]
    phases = [record["phase"] for record in records if "phase" in record]
    assert phases == ["warmup"] * 2 + ["main"] * 4
    assert "critic/loss" in records[-2] and "validation/error" in records[-1]
    assert load_file("gan/generator.safetensors").keys() == {"weight", "bias"}


def test_other_runs_begin_with_its_configuration_or_weights(folder):
    assert main(["fit_task:Fit", "--out", "first", "--width", "4", "--engine", "torch"]) == 0
    assert main(["fit_task:Fit", "--config", "first", "--out", "second", "--steps", "2"]) == 0
    assert main(["fit_task:Fit", "--branch-from", "first", "--out", "third", "--steps", "8"]) == 0
    for out, steps in (("second", 2), ("third", 8)):
        options = json.loads(Path(f"{out}/config.json").read_text())["options"]
        assert (options["width"], options["steps"]) == (4, steps)


def test_tensor_needs_rules(folder, capsys):
    assert main(["fit_task:Fit", "--mesh", "tensor=2"]) == 2
    assert "set sharding_rules in the task, or use fsdp" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_under_the_command(folder):
    pytest.importorskip("grain", reason="the extra data is not installed")
    assert main(["fit_task:Fit", "--out", "alone"]) == 0
    command = [sys.executable, "-m", "jaxsr.train", "fit_task:Fit", "--out", "two", "--workers=2"]
    subprocess.run(command, check=True, capture_output=True)
    first, second = (load_file(f"{out}/network.safetensors") for out in ("alone", "two"))
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, atol=1e-6)  # another number of threads


def test_steps_before_damaged_data_are_saved(folder, capsys):
    assert main(["fit_task:Damaged", "--no-shuffle", "--out", "run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "item 31: 'x' holds NaN" in lines[-1]
    assert "the state of step 3 is saved" in lines
    assert Path("run/checkpoints/3").is_dir()


@pytest.mark.parametrize("engine", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_steps_before_damaged_validation_data_are_saved(folder, capsys, engine):
    words = ["fit_task:ShortHeldOut", "--engine", engine, "--out", "run", "--validate-every", "2"]
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "ShortHeldOut.validation_data says that it has 13 items, but ends" in lines[-1]
    assert "the state of step 2 is saved" in lines
    assert Path("run/checkpoints/2").is_dir()


@pytest.mark.parametrize("step", [2, 4, 6])
def test_a_resume_exports_the_weights_whose_export_failed(folder, monkeypatch, step):
    words = ["fit_task:Fit", "--validate-every", "2", "--lr", "0.3"]
    assert main([*words, "--out", "whole"]) == 0

    def failing(path, weights, *, metadata):
        if metadata["step"] == step:
            raise OSError(28, "No space left on device", str(path))
        export_weights(path, weights, metadata=metadata)

    with monkeypatch.context() as patch:
        patch.setattr("jaxsr.training.loop.export_weights", failing)
        assert main([*words, "--out", "run"]) != 0
    assert main(["fit_task:Fit", "--resume", "--out", "run"]) == 0
    for name in ("network.safetensors", "network.best.safetensors"):
        whole, run = (Path(out, name) for out in ("whole", "run"))
        np.testing.assert_equal(load_file(run), load_file(whole))
        whole, run = read_metadata(whole), read_metadata(run)
        assert (run["step"], run["validation"]) == (whole["step"], whole["validation"])
