"""Runs the checks of `jaxsr.doctor` and prints their findings."""

import dataclasses
import json
from collections.abc import Iterator

from jaxsr.doctor import DoctorConfig
from jaxsr.doctor.adapter import check_adapter
from jaxsr.doctor.arithmetic import check_arithmetic
from jaxsr.doctor.checks import Check, Finding, run_checks
from jaxsr.doctor.compiler import check_compiler
from jaxsr.doctor.cpu_kernels import check_cpu_kernels
from jaxsr.doctor.devices import check_devices
from jaxsr.doctor.installation import check_installation
from jaxsr.doctor.models import check_models
from jaxsr.doctor.storage import check_storage
from jaxsr.errors import counted
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.options import ComputeOptions, Platform
from jaxsr.runtime.setup import setup_compute

_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def diagnose(config: DoctorConfig) -> int:
    """Runs every check and prints its findings; returns the exit status."""
    sections: dict[str, list[Finding]] = {}
    for name, finding in run_checks(_checks(config)):
        if not config.json and name not in sections:
            _print_right(sections, config)
            print(name, flush=True)
        sections.setdefault(name, []).append(finding)
        if not config.json and (config.verbose or _is_news(finding)):
            _print(finding)
    listed = [(name, finding) for name, findings in sections.items() for finding in findings]
    failures = sum(finding.status == "fail" for _, finding in listed)
    if config.json:
        described = [{"section": name, **dataclasses.asdict(finding)} for name, finding in listed]
        print(json.dumps({"healthy": not failures, "findings": described}, indent=2))
        return ExitStatus.FAILED if failures else ExitStatus.OK
    _print_right(sections, config)
    more = "" if config.verbose else "; --verbose prints every check"
    verdict = f"{failures} of {len(listed)} checks failed" if failures else "all is well"
    print(f"\n{verdict}{more}")
    return ExitStatus.FAILED if failures else ExitStatus.OK


def _is_news(finding: Finding) -> bool:
    return finding.status != "ok" and not finding.is_detail


def _print_right(sections: dict[str, list[Finding]], config: DoctorConfig) -> None:
    """Number of checks of the last section that passed, if they are not listed."""
    findings = list(sections.values())[-1] if sections else []
    right = [finding for finding in findings if not _is_news(finding)]
    if config.verbose or not right:
        return
    # A section that sums itself up does so first.
    text = right[0].detail if right[0].is_summary else counted(len(right), "check")
    print(f"  {_MARKS['ok']}  {text}", flush=True)


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

    # A platform that fails in a process of its own would hang or fail in this one.
    def platform() -> Platform:
        return config.platform if usable else "cpu"

    def compiler() -> Iterator[Finding]:
        # Before this process takes the device, which its children would wait for.
        yield from check_compiler(platform())
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
