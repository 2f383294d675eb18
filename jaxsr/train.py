"""`python -m jaxsr.train [FAMILY] [--preset NAME] [OPTIONS]`: trains a model family.

Without options it trains a small Fast-SRGAN on photos that come with the installation.
"""

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsr.errors import FileAccessError, InputError
from jaxsr.runtime.cli import cache_folder, parse_options, run_command, run_program

RUNS = Path("runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _train(arguments))


def _train(arguments: list[str]) -> int | None:
    from jaxsr.training.task import load_family

    family_name, arguments = _take_family(arguments)
    family = load_family(family_name)
    config = parse(family, family_name, arguments)
    if config.aot is not None:
        from jaxsr.training.aot import run

        return run(family, config)
    host, hosts = _prepare_jax(config)
    out = _choose_out(config, family_name, hosts)
    # The task checks its data before anything is computed.
    task = family.build(config)
    if host == 0:
        _claim(out, config, family_name)
    from jaxsr.training.loop import train

    train(task, out)
    return None


def parse(family: Any, name: str, arguments: Sequence[str]) -> Any:
    """The run's configuration: the preset's values, changed by the options given."""
    preset, rest = _take_option(list(arguments), "--preset")
    if preset is None:
        has_data = any(_is_option(a, "--data") for a in rest)
        preset = family.default_preset(has_data=has_data)
    if preset not in family.PRESET_RUNS:
        raise InputError(f"no preset {preset!r}; there are {', '.join(family.PRESET_RUNS)}")
    default = family.PRESET_RUNS[preset]
    # The preset's length gives way to the one asked for, whichever of the two it is in.
    asked = [n for n in ("steps", "epochs") if any(_is_option(a, f"--{n}") for a in rest)]
    if len(asked) == 1:
        default = _with_length(default, asked[0])
    return parse_options(
        family.CONFIG,
        rest,
        default=default,
        prog=f"python -m jaxsr.train {name}",
        description=(
            f"Trains {name}. Defaults are those of --preset {preset}; "
            f"presets: {', '.join(family.PRESET_RUNS)}."
        ),
    )


def _is_option(argument: str, name: str) -> bool:
    return argument == name or argument.startswith(name + "=")


def _with_length(default: Any, kind: str) -> Any:
    """The default run with its length in the other unit; the number itself is given."""
    if getattr(default, kind) is not None:
        return default
    other = "epochs" if kind == "steps" else "steps"
    placeholder = default.steps or default.epochs
    return dataclasses.replace(default, **{kind: placeholder, other: None})


def _take_family(arguments: list[str]) -> tuple[str, list[str]]:
    from jaxsr.training.task import FAMILIES

    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return next(iter(FAMILIES)), arguments


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Takes `name VALUE` or `name=VALUE` out of the arguments: it decides the others' defaults."""
    for index, argument in enumerate(arguments):
        if argument.startswith(name + "="):
            return argument[len(name) + 1 :], arguments[:index] + arguments[index + 1 :]
        if argument == name:
            if index + 1 == len(arguments):
                raise InputError(f"{name} needs a value")
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
    return None, arguments


def _choose_out(config: Any, family: str, hosts: int) -> Path:
    if config.out is not None:
        return config.out
    if hosts > 1:
        raise InputError(f"a run of {hosts} processes needs --out, a folder that all of them see")
    if config.resume:
        newest = max(RUNS.glob(f"{family}-*"), default=None, key=lambda p: p.name)
        if newest is None:
            raise InputError(f"--resume found no run of {family} in {RUNS}/; name one with --out")
        return newest
    return RUNS / f"{family}-{time.strftime('%Y%m%d-%H%M%S')}"


def _prepare_jax(config: Any) -> tuple[int, int]:
    """Everything global that a run changes in JAX; gives this process's number and their count."""
    import jax

    from jaxsr.interop.distributed import start_if_asked
    from jaxsr.interop.mesh import make_mesh, select_platform

    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    hosts = start_if_asked("cpu" if config.engine == "torch" else config.platform)
    select_platform(
        "cpu" if config.engine == "torch" else config.platform,
        simulated_devices=config.mesh_shape.devices // hosts,
    )
    if config.matmul_precision != "default":
        jax.config.update("jax_default_matmul_precision", config.matmul_precision)
    cache = config.compile_cache or cache_folder() / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    if config.engine == "jax":
        make_mesh(config.mesh_shape)  # too few devices is said before the data is read
    if not jax.distributed.is_initialized():
        return 0, 1
    return jax.process_index(), jax.process_count()


def _claim(out: Path, config: Any, family: str) -> None:
    """Makes the run folder this run's: refuses another run's, writes the configuration."""
    from jaxsr.interop.weights import write_whole

    saved = out / "config.json"
    described = _as_json(config)
    if saved.exists():
        before = json.loads(saved.read_text())
        if before["family"] != family:
            raise InputError(
                f"{out} holds a run of {before['family']}, not of {family}; choose another --out"
            )
        if not config.resume:
            raise InputError(
                f"{out} already holds a run; add --resume to go on with it, or choose another --out"
            )
        changed = _differences(before["model"], described.get("model"))
        if changed:
            raise InputError(
                f"{out} was trained with another model ({changed}); use the same options, "
                "or choose another --out"
            )
    elif config.resume and config.out is not None and out.exists() and any(out.iterdir()):
        raise InputError(f"--resume found no run in {out}; leave --resume out, or name its folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        content = {"family": family, "model": described.get("model"), "options": described}
        write_whole(saved, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise FileAccessError(
            f"cannot write to {out}: {error.strerror or error}; choose another --out"
        ) from error


def _as_json(config: Any) -> dict[str, Any]:
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def _differences(before: Any, now: Any) -> str:
    before, now = before or {}, now or {}
    names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
    return ", ".join(f"{n}={before.get(n)} then, {now.get(n)} now" for n in names)


if __name__ == "__main__":
    run_program(main, "train")
