"""`python -m jaxsr.doctor`: checks this machine, and says what to do about what is wrong."""

import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxsr.doctor.checks import Finding
from jaxsr.runtime.cli import parse_options, run_command

FAILED = 1
"""Exit status where something does not work."""

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Options of the command."""

    platform: Literal["auto", "tpu", "cuda", "cpu"] = "auto"
    """What to check; auto takes TPU, then CUDA, then CPU, as the other commands do."""
    json: bool = False
    """Print one JSON object instead of lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0, or 1 where something fails."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    config = parse_options(
        DoctorConfig,
        arguments,
        prog="python -m jaxsr.doctor",
        description="Checks libraries, devices, arithmetic and models on this machine.",
    )
    return diagnose(config)


def diagnose(config: DoctorConfig) -> int:
    """Runs every check and prints what it finds; returns the exit status."""
    from jaxsr.doctor.checks import run_checks

    found: list[tuple[str, Finding]] = []
    section = None
    for name, finding in run_checks(_checks(config)):
        found.append((name, finding))
        if config.json:
            continue
        if name != section:
            print(f"\n{name}" if section else name)
            section = name
        _print(finding)
    failures = sum(finding.status == "fail" for _, finding in found)
    if config.json:
        listed = [{"section": name, **dataclasses.asdict(finding)} for name, finding in found]
        print(json.dumps({"healthy": not failures, "findings": listed}, indent=2))
    else:
        print(f"\n{failures} of {len(found)} checks failed" if failures else "\nall is well")
    return FAILED if failures else 0


def _print(finding: Finding) -> None:
    print(f"  {_MARKS[finding.status]}  {finding.subject}: {finding.detail}", flush=True)
    if finding.advice is not None:
        print(f"        → {finding.advice}", flush=True)


def _checks(config: DoctorConfig):
    from jaxsr.doctor.adapter import check_adapter
    from jaxsr.doctor.arithmetic import check_arithmetic
    from jaxsr.doctor.devices import check_devices
    from jaxsr.doctor.installation import check_installation
    from jaxsr.doctor.models import check_models
    from jaxsr.doctor.storage import check_storage

    usable = True

    def devices():
        nonlocal usable
        for finding in check_devices(config.platform):
            # Only the first finding says whether the platform starts at all.
            if finding.subject == f"platform {config.platform}" and finding.status == "fail":
                usable = False
            yield finding
        # What does not start in a process of its own would hang or fail in this one.
        _start(config.platform if usable else "cpu")

    return {
        "installation": check_installation,
        "devices": devices,
        "arithmetic": check_arithmetic,
        "torch in JAX": check_adapter,
        "models": check_models,
        "storage": check_storage,
    }


def _start(platform: str) -> None:
    """Everything global that the diagnosis changes in JAX."""
    from jaxsr.interop.mesh import select_platform

    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    select_platform(platform)
