"""Runs the checks of `jaxsr.doctor` and prints what they find."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

from jaxsr.doctor.adapter import check_adapter
from jaxsr.doctor.arithmetic import check_arithmetic
from jaxsr.doctor.checks import Check, Finding, run_checks
from jaxsr.doctor.compiler import check_compiler, check_product_fusion
from jaxsr.doctor.cpu_kernels import check_cpu_kernels
from jaxsr.doctor.devices import check_devices
from jaxsr.doctor.installation import check_installation
from jaxsr.doctor.models import check_models
from jaxsr.doctor.storage import check_storage
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.options import ComputeOptions, Platform
from jaxsr.runtime.setup import setup_compute

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Checks libraries, devices, the compiler, arithmetic and models on this machine."""

    platform: Platform = "auto"
    """What to check; auto takes TPU, then CUDA, then CPU, as the other commands do."""
    json: bool = False
    """Print one JSON object instead of lines."""


def diagnose(config: DoctorConfig) -> int:
    """Runs every check and prints its findings; returns the exit status."""
    findings: list[tuple[str, Finding]] = []
    section = None
    for name, finding in run_checks(_checks(config)):
        findings.append((name, finding))
        if config.json:
            continue
        if name != section:
            print(f"\n{name}" if section else name)
            section = name
        _print(finding)
    failures = sum(finding.status == "fail" for _, finding in findings)
    if config.json:
        listed = [{"section": name, **dataclasses.asdict(finding)} for name, finding in findings]
        print(json.dumps({"healthy": not failures, "findings": listed}, indent=2))
    else:
        print(f"\n{failures} of {len(findings)} checks failed" if failures else "\nall is well")
    return ExitStatus.FAILED if failures else ExitStatus.OK


def _print(finding: Finding) -> None:
    print(f"  {_MARKS[finding.status]}  {finding.subject}: {finding.detail}", flush=True)
    if finding.advice is not None:
        print(f"        → {finding.advice}", flush=True)


def _checks(config: DoctorConfig) -> dict[str, Check]:
    usable = True

    def devices() -> Iterator[Finding]:
        nonlocal usable
        for finding in check_devices(config.platform):
            # Only the first finding says whether the platform starts at all.
            if finding.subject == f"platform {config.platform}" and finding.status == "fail":
                usable = False
            yield finding

    # What does not start in a process of its own would hang or fail in this one.
    def platform() -> Platform:
        return config.platform if usable else "cpu"

    def compiler() -> Iterator[Finding]:
        # Before this process takes the device, which its children would wait for.
        yield from check_compiler(platform())
        if platform() == "cpu":
            yield from check_product_fusion()
        setup_compute(ComputeOptions(platform=platform()))

    return {
        "installation": check_installation,
        "devices": devices,
        "compiler": compiler,
        "arithmetic": check_arithmetic,
        "CPU kernels": check_cpu_kernels,
        "torch in JAX": check_adapter,
        "models": check_models,
        "storage": check_storage,
    }
