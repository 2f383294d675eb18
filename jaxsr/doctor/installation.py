"""Installed libraries against the versions that this distribution requires."""

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator

from jaxsr.doctor.checks import Finding

DISTRIBUTION = "jaxsr-torchax"
# What each extra is for.
EXTRAS = {
    "tpu": "running on a TPU",
    "cuda": "running on a CUDA GPU",
    "aot": "compiling for TPUs ahead of time, without one (--aot)",
    "generate": "generating text",
    "video": "restoring videos",
}


def check_installation() -> Iterator[Finding]:
    """Python, every dependency, and which extras are complete."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            DISTRIBUTION,
            "fail",
            "is not installed; jaxsr is imported from its folder alone",
            "pip install -e . in the checkout",
        )
        return
    yield from _dependencies(requirements)
    yield from _extras(requirements)


def _dependencies(requirements: list[str]) -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        specifier = f"{requirement.name}{requirement.specifier}"
        if version is None:
            yield Finding(
                requirement.name, "fail", "is not installed", f"pip install '{specifier}'"
            )
        elif not requirement.specifier.contains(version, prereleases=True):
            yield Finding(
                requirement.name,
                "fail",
                f"{version} is installed, jaxsr needs {specifier}",
                f"pip install '{specifier}'",
            )
        else:
            yield Finding(requirement.name, "ok", version)


def _extras(requirements: list[str]) -> Iterator[Finding]:
    from packaging.requirements import Requirement

    parsed = [Requirement(text) for text in requirements]
    for extra, purpose in EXTRAS.items():
        needed = [
            r
            for r in parsed
            if r.marker is not None
            and r.marker.evaluate({"extra": extra})
            and not r.marker.evaluate({"extra": ""})
        ]
        missing = [r.name for r in needed if not _complete(r)]
        if missing:
            yield Finding(
                f"extra {extra}",
                "note",
                f"not installed ({', '.join(missing)}): needed for {purpose}",
                f"pip install -e '.[{extra}]', if you want that",
            )
        elif needed:
            yield Finding(f"extra {extra}", "ok", f"complete: {purpose}")


def _complete(requirement) -> bool:
    """Whether a requirement is there, with the plugin that an extra of its own brings."""
    plugins = {"tpu": ["libtpu"], "cuda13": ["jax-cuda13-plugin", "jax-cuda12-plugin"]}
    if _version(requirement.name) is None:
        return False
    return all(
        any(_version(name) is not None for name in plugins.get(extra, [requirement.name]))
        for extra in requirement.extras
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
