"""examples/launch: each file does what it says, against stand-ins for its launcher."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

from jaxsr.training.cli_options import parse_command_line

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "examples" / "launch"
JOBSETS = sorted(LAUNCH.glob("jobset_*.yaml"))


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """`stand_in(name, script)`: a program that is found before the launcher's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name, script):
        path = folder / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    return write


def accepted(words):
    """The configuration that `jaxsr.train` makes of a command line, its last part."""
    start = words.index("jaxsr.train") + 1
    family, _, config = parse_command_line([*words[start:], "--steps", "1000"])
    assert family == "fast-srgan"
    assert config.resume
    assert config.save_every == 200
    assert config.batch == 24 * config.devices
    return config


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.s*")), ids=lambda path: path.name)
def test_shell_files_parse(path):
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize("path", JOBSETS, ids=lambda path: path.stem)
def test_jobsets_are_whole(path):
    content = yaml.safe_load(path.read_text())
    assert (content["apiVersion"], content["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert content["spec"]["failurePolicy"]["maxRestarts"] > 0
    (job,) = content["spec"]["replicatedJobs"]
    job_spec = job["template"]["spec"]
    pods = job_spec["parallelism"]
    assert job_spec["completions"] == pods
    # A pod that fails must fail its job, or the JobSet would not start all of them again.
    assert (job_spec["completionMode"], job_spec["backoffLimit"]) == ("Indexed", 0)
    pod = job_spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    (devices,) = container["resources"]["limits"].values()
    assert accepted(container["command"]).devices == pods * devices
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert environment["JAXSR_SAY_STOPPED"] == "1"
    if "tpu" in path.stem:
        rows, columns = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
        assert int(rows) * int(columns) == pods * devices
    else:
        name, network = content["metadata"]["name"], content["spec"]["network"]["subdomain"]
        host, port = environment["JAXSR_COORDINATOR"].split(":")
        assert host == f"{name}-{job['name']}-0-0.{network}"
        assert int(port) == container["ports"][0]["containerPort"]
        assert int(environment["JAXSR_PROCESSES"]) == pods


def test_skypilot_describes_the_job_to_every_machine(tmp_path):
    content = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    gpus = int(content["resources"]["accelerators"].split(":")[1])
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nenv | grep ^JAXSR_\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.9\n10.0.0.8\n10.0.0.6",
        "SKYPILOT_NODE_RANK": "2",
        "SKYPILOT_NUM_NODES": str(content["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus),
    }
    words = subprocess.run(
        ["bash", "-euc", content["run"]],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    described = {word for word in words if word.startswith("JAXSR_")}
    assert described == {
        "JAXSR_COORDINATOR=10.0.0.7:1234",
        "JAXSR_PROCESSES=4",
        "JAXSR_PROCESS=2",
        "JAXSR_SAY_STOPPED=1",
    }
    assert accepted(words).devices == content["num_nodes"] * gpus


GCLOUD = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  *" describe "*) test -e {ready} && echo READY ;;
  *" create "*) touch {ready} ;;
  *" delete "*) rm -f {ready} ;;
  *jaxsr.train*)
    test -e {stopped} && exit {status}
    touch {stopped}
    exit 75 ;;
esac
"""


@pytest.mark.parametrize("status", [0, 2])
def test_a_tpu_slice_is_made_and_started_again(stand_in, tmp_path, status):
    names = {name: tmp_path / name for name in ("log", "ready", "stopped")}
    stand_in("gcloud", GCLOUD.format(**names, status=status))
    stand_in("sleep", "#!/bin/sh\n")
    settings = {"PROJECT": "p", "ZONE": "z", "DATA": "gs://b/photos", "RUN": "gs://r"}
    done = subprocess.run(
        ["bash", LAUNCH / "tpu_slice.sh"], env=os.environ | settings, check=False, timeout=60
    )
    assert done.returncode == status
    calls = names["log"].read_text()
    verbs = re.findall(r"^compute tpus tpu-vm (\w+)", calls, re.MULTILINE)
    end = ["delete"] if status == 0 else []
    made = ["describe", "delete", "create", "ssh", "ssh", "ssh", "ssh"]
    assert verbs == [*made, "describe", "ssh", *end]
    assert "--only-dir photos b /tmp/data" in calls
    assert "--only-dir . r /tmp/run" in calls
    assert calls.count("--worker=all") == 5
    command = re.search(r"JAXSR_SAY_STOPPED=1 (.*?--resume)", calls, re.DOTALL)
    assert command is not None
    assert accepted(command[1].replace("\\\n", " ").split()).devices == 32


SRUN = """#!{python}
import os, signal, subprocess, sys
words = [word for word in sys.argv[1:]]
while words[0].startswith("--"):
    words.pop(0)
count = int(os.environ["SLURM_NTASKS"])
step = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1"}}
tasks = [
    subprocess.Popen(
        words,
        env=os.environ | step | {{"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)}},
    )
    for index in range(count)
]
signal.signal(signal.SIGTERM, lambda number, _: [task.send_signal(number) for task in tasks])
sys.exit(max(task.wait() for task in tasks))
"""
PYTHON = """#!/bin/sh
exec {python} "$@" --platform cpu --steps 40 --batch 8 --crop 32 --model.width 8 --model.depth 1 \\
  --dtype float32 --save-every 5 --validate-every 40 --validation-px 64 --log-every 5 \\
  --no-tensorboard --adversarial-share 0
"""


@pytest.mark.slow
def test_four_slurm_tasks_are_stopped_requeued_and_resumed(stand_in, tmp_path):
    """SLURM's part is played by a script that starts four tasks with its variables."""
    out, requeued = tmp_path / "run", tmp_path / "requeued"
    stand_in("srun", SRUN.format(python=sys.executable))
    stand_in("scontrol", f'#!/bin/sh\necho "$@" > {requeued}\n')
    python = stand_in("small-python", PYTHON.format(python=sys.executable))
    environment = os.environ | {
        "PYTHON": str(python), "PYTHONPATH": str(ROOT), "DATA": str(tmp_path / "photos"),
        "RUN": str(out), "SLURM_NTASKS": "4", "SLURM_JOB_ID": str(os.getpid()),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    _photos(tmp_path / "photos")

    def start():
        return subprocess.Popen(["bash", LAUNCH / "slurm.sbatch"], cwd=ROOT, env=environment)

    job = start()
    until = time.monotonic() + 400
    while _last_step(out) < 10 and job.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=200) == 75
    assert requeued.read_text().split() == ["requeue", environment["SLURM_JOB_ID"]]
    stopped_at = _last_step(out)
    assert 10 <= stopped_at < 40
    assert start().wait(timeout=400) == 0
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert steps[-1] == 40


def _photos(folder):
    import numpy as np
    from PIL import Image

    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (8, 96, 96, 3), np.uint8)
    for index, image in enumerate(noise):
        Image.fromarray(image).save(folder / f"{index}.png")


def _last_step(out):
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "containers").glob("*.Dockerfile")), ids=lambda path: path.stem
)
def test_containers_install_extras_that_exist(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[([\w,-]+)\]'", path.read_text())
    assert {*extras.split(",")} <= project["optional-dependencies"].keys()
    assert path.stem in extras.split(",")
