"""Installed libraries against the versions that this distribution requires."""

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxsr.doctor.checks import Finding, judged
from jaxsr.interop.install import DISTRIBUTION, install_extra

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Purpose of each extra.
EXTRAS = {
    "tpu": "running on a TPU",
    "cuda": "running on a CUDA GPU",
    "aot": "compiling for TPUs ahead of time, without one (--aot)",
    "aot-gpu": "compiling for NVIDIA GPUs ahead of time, without one (--aot)",
    "generate": "generating text",
    "video": "restoring videos",
}


def check_installation() -> Iterator[Finding]:
    """Python, every dependency, and which extras are complete."""
    from packaging.requirements import Requirement

    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    try:
        parsed = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or []]
    except importlib.metadata.PackageNotFoundError:
        detail = "is not installed; jaxsr is imported from its folder alone"
        yield Finding(DISTRIBUTION, "fail", detail, install_extra(None))
        return
    optional = [r for r in parsed if r.marker is not None and not r.marker.evaluate({"extra": ""})]
    for requirement in parsed:
        if requirement in optional:
            continue
        version = _version(requirement.name)
        specifier = f"{requirement.name}{requirement.specifier}"
        good = version is not None and requirement.specifier.contains(version, prereleases=True)
        if version is None:
            detail = "is not installed"
        else:
            detail = version if good else f"{version} is installed, jaxsr needs {specifier}"
        yield judged(requirement.name, good, detail, f"pip install '{specifier}'")
    for extra, purpose in EXTRAS.items():
        needed = [r for r in optional if r.marker and r.marker.evaluate({"extra": extra})]
        missing = [r.name for r in needed if not _complete(r)]
        if missing:
            yield Finding(
                f"extra {extra}",
                "note",
                f"not installed ({', '.join(missing)}): needed for {purpose}",
                f"{install_extra(extra)}, if you want that",
            )
        elif needed:
            yield Finding(f"extra {extra}", "ok", f"installed, for {purpose}")


def _complete(requirement: "Requirement") -> bool:
    """Whether a requirement is there, with the plugin that an extra of its own brings."""
    plugins = {"tpu": ["libtpu"], "cuda13": ["jax-cuda13-plugin", "jax-cuda12-plugin"]}
    return _version(requirement.name) is not None and all(
        any(_version(name) is not None for name in plugins.get(extra, [requirement.name]))
        for extra in requirement.extras
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
