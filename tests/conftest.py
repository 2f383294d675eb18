"""Every test sees 8 simulated CPU devices, so that mesh tests need no accelerator."""

import atexit
import gc
import hashlib
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# Most of the suite's time is XLA's. A run's processes, and the commands that tests start, share
# their compiled programs in a folder of the run's own.
if "XDG_CACHE_HOME" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="jaxsr-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
# Two processes on two cores: torch's second thread would spin on the other's core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests compare what commands print, which is not to depend on how long they take.
os.environ["JAXSR_ACTIVITY"] = "0"

import jax
import jaxtyping
import pytest

import jaxsr  # noqa: F401  # adds to XLA_FLAGS, which XLA reads when the first backend starts
from jaxsr.folders import cache_folder
from jaxsr.runtime.activity import QUIET
from jaxsr.runtime.setup import configure_jax
from tests.long_tests import LEAST_S, listed
from tests.type_checks import checked

# Set before the first backend is made; the suite is about arithmetic, not about accelerators,
# unless JAXSR_TEST_PLATFORM asks for the parity tests to run on one.
jax.config.update("jax_platforms", os.environ.get("JAXSR_TEST_PLATFORM", "cpu"))
jax.config.update("jax_num_cpu_devices", 8)
jax.devices()  # now, or a command under test would choose its own number
configure_jax(cache_folder() / "compiled")

# A background job of a shell ignores SIGINT, and nohup SIGHUP. Programs under test would inherit
# that; a handler, even an idle one, they do not.
for _signal in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, lambda *_: None)

# As commands do: full collections go through a million objects of torch and JAX that stay.
gc.set_threshold(100_000)

# Annotations, shapes and dtypes of arrays among them, are checked whenever a test calls a function.
jaxtyping.install_import_hook(
    ("jaxsr.data", "jaxsr.detection", "jaxsr.metrics", "jaxsr.ops", "jaxsr.restoration"),
    f"{checked.__module__}.checked",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the lists; of variants that `sample(n)` marks all but n are slow.

    Those that run have as many values of each parameter as they can; digests of names decide
    between equals.
    """
    variants = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            variants[item.nodeid.partition("[")[0]].append(item)
    for group in variants.values():
        (size,) = group[0].get_closest_marker("sample").args
        rest = sorted(group, key=lambda item: hashlib.sha256(item.name.encode()).digest())
        seen: set[tuple[str, int]] = set()
        for _ in range(min(size, len(rest))):
            chosen = max(rest, key=lambda item: len(_values(item) - seen))
            seen |= _values(chosen)
            rest.remove(chosen)
        for item in rest:
            item.add_marker("slow")
    for mark in LEAST_S:  # after the samples, or a variant as slow would take the place
        names = listed(mark)
        for item in items:
            if item.nodeid in names:
                item.add_marker(mark)


def _values(item: pytest.Item) -> set[tuple[str, int]]:
    """Parameters of a variant, each with its value's identity: variants share the objects."""
    callspec = getattr(item, "callspec", None)
    return {(name, id(value)) for name, value in callspec.params.items()} if callspec else set()


@pytest.fixture(scope="module", autouse=True)
def _free_programs() -> Iterator[None]:
    """Compiled programs end with their module: kept, they would take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    """`--quiet` silences the process, and so the tests after one that runs such a command."""
    before = {name: os.environ.get(name) for name in (QUIET, "TQDM_DISABLE")}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def registry_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registrations of lowerings in a test end with it."""
    from jaxsr.interop._core import registry

    registry.load()
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    yield
    registry.resolve.cache_clear()


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """For arguments that are wrong on purpose: the function's own error is what counts."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with Kodak, SIRST and the public checkpoint, never part of the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("JAXSR_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder}; set JAXSR_SHARED_DATA")
    return folder
