"""The devices that JAX finds, the one that `auto` selects, and their memory."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from jaxsr.data.processors import available_cpus
from jaxsr.doctor.checks import Finding
from jaxsr.interop.annotations import JsonObject
from jaxsr.interop.install import install_extra
from jaxsr.runtime.xla_flags import without_ynn_flag

# A TPU takes up to half a minute to start; beyond this another process uses it.
_TIMEOUT_S = 120

_PROBE = """
import json, logging
logging.disable(logging.CRITICAL)
import jax
if {platform!r} != "auto":
    jax.config.update("jax_platforms", {platform!r})
devices = jax.devices()
first = devices[0]
memory = None
try:
    memory = (first.memory_stats() or {{}}).get("bytes_limit")
except Exception:
    pass
print(json.dumps([first.platform, len(devices), first.device_kind, memory]))
"""


def probe(platform: str) -> tuple[JsonObject | None, str]:
    """Starts JAX on a platform in a process of its own: one that hangs cannot hang the diagnosis.

    Returns:
      Platform, count, kind and memory of its devices, or None; and why not.
    """
    try:
        command = [sys.executable, "-P", "-c", _PROBE.format(platform=platform)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_TIMEOUT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1][:300] if lines else f"exit status {done.returncode}"
    backend, count, kind, memory = json.loads(done.stdout.strip().splitlines()[-1])
    name = {"gpu": "cuda"}.get(backend, backend)
    return {"platform": name, "count": count, "kind": kind, "memory": memory}, ""


def check_devices(platform: str) -> Iterator[Finding]:
    """Devices that JAX starts on, and hardware that it does not see."""
    device, why = probe(platform)
    if device is None:
        yield Finding(f"platform {platform}", "fail", _shortened(why), _advice(platform, why))
        return
    memory = f", {device['memory'] / 2**30:.1f} GiB each" if device["memory"] else ""
    detail = f"{device['count']} × {device['kind']} ({device['platform']}){memory}"
    yield Finding("devices", "ok", detail)
    if platform == "auto":
        yield Finding("platform auto", "ok", f"takes {device['platform']}")
        yield from _overlooked(device["platform"])
    yield from _variables(device["platform"])
    yield _host_memory()


def _shortened(why: str) -> str:
    """Returns the first sentence of JAX's error, without its type and its general advice."""
    return re.sub(r"^\w+Error: (Unable to initialize backend '\w+': )?|\. .*| \(set .*", "", why)


def _advice(platform: str, why: str) -> str:
    from jaxsr.interop.plugin_start import has_tpu

    if platform == "tpu" and not has_tpu():
        return "this machine shows no TPU (/dev/accel0, /dev/vfio/0): use --platform cpu or auto"
    if "no answer" in why:
        return (
            "another process may use the device (on a TPU: lsof /dev/accel* /dev/vfio/*), or on a "
            "pod slice the other hosts have not been started: run the command on all of them"
        )
    if "lockfile" in why or "already in use" in why:
        return (
            "another process uses the TPU: end it (lsof /dev/accel* /dev/vfio/* names it); "
            "if there is none, remove /tmp/libtpu_lockfile"
        )
    if platform in ("tpu", "cuda"):
        return f"{install_extra(platform)} on a machine that has one, or use --platform cpu"
    return f"JAX itself does not start: {install_extra(None)}"


def _overlooked(backend: str) -> Iterator[Finding]:
    """Accelerators that the machine has and JAX did not take."""
    from jaxsr.interop.plugin_start import has_tpu

    if has_tpu() and backend != "tpu":
        detail = "the machine has one, JAX does not use it"
        yield Finding("TPU", "fail", detail, install_extra("tpu"))
    if os.path.exists("/dev/nvidia0") and backend not in ("cuda", "tpu"):
        advice = f"{install_extra('cuda')}, and a driver for CUDA 13 (nvidia-smi shows its version)"
        yield Finding("CUDA", "fail", "the machine has an NVIDIA GPU, JAX does not use it", advice)


def _variables(backend: str) -> Iterator[Finding]:
    """Environment variables that change JAX's behaviour."""
    if forced := os.environ.get("JAX_PLATFORMS"):
        detail = f"is set to {forced!r}: auto sees nothing else"
        yield Finding("JAX_PLATFORMS", "note", detail, "unset it")
    if flags := without_ynn_flag(os.environ.get("XLA_FLAGS", "")):
        yield Finding("XLA_FLAGS", "note", f"is set: {flags}", "unset it if results surprise you")
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    if backend == "cuda" and os.environ.get(name, "").lower() == "false":
        detail = "is false: memory grows piece by piece, which is slower and fragments"
        yield Finding(name, "note", detail, "unset it unless another program shares the GPU")


def _host_memory() -> Finding:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    detail = f"{available_cpus()} CPU cores, {free:.1f} GiB of memory free"
    if free < 2:
        return Finding("host", "note", detail, "little memory: lower --cache-gb and --resident-gb")
    return Finding("host", "ok", detail)
