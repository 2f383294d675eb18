# pyright: reportUnknownMemberType=false
"""Facts that all processes of a job must share, compared before the first step.

Processes that differ would wait for one another without end, or train on a mixture. They exchange
short texts through the coordination service that `jax.distributed` starts, so nothing is computed
and meshes may differ. In a process that is not part of a job, every function here does nothing.
"""

import hashlib
import itertools
import json
import os
import platform
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax

from jaxsr.interop.errors import InputError, UserError
from jaxsr.interop.lost_process import lost_process_error

_LONGEST_WAIT_MS = 7 * 24 * 3600 * 1000
"""A process may check its data for hours; one that died is noticed by JAX's heartbeats."""
_MOST_COMPARED = 100_000
_MOST_NAMED = 3
_exchanges = itertools.count()
_all_know = threading.Event()
"""Set while a failure of this process is one that all processes of the job know of."""
_one_left = threading.Event()
"""Set when a process of the job has ended by a signal."""
_FAREWELL_MS = 5_000
_watched = itertools.count()
_LOOK_S = 1.0
_AGAIN = "Start all processes again, with --resume where the run has a checkpoint"

Facts = Mapping[str, Mapping[str, Any]]
"""Values by name, in groups: `{"options": {"batch": 16}}`. Values are JSON."""


def check_alike(facts: Facts) -> None:
    """Compares the facts of all processes.

    Args:
      facts: of this process; every process has the same groups.

    Raises:
      InputError: a process differs; every process gets the same message, which names the process
        and the difference.
    """
    if not jax.distributed.is_initialized():
        return
    digests = {group: _digest(values) for group, values in facts.items()}
    answers = _exchange({"host": platform.node(), "digests": digests})
    for group, values in facts.items():
        job_digests = [str(answer["digests"].get(group)) for answer in answers]
        if len(set(job_digests)) > 1:
            listed = dict(sorted(values.items())[:_MOST_COMPARED])
            tables = _exchange(listed)
            raise InputError(_difference(group, [a["host"] for a in answers], job_digests, tables))


@contextmanager
def fail_together(at_end: Callable[[], None] = lambda: None) -> Generator[None]:
    """Ends every process of the job where the block fails in one of them.

    Args:
      at_end: called in a job after the block, before the others know that it succeeded here. A
        signal would from then on have to end all processes.

    Raises:
      InputError: the block failed in another process; the message is that of its error.
    """
    _all_know.set()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if jax.distributed.is_initialized():
            is_interrupt = isinstance(error, KeyboardInterrupt)
            failure = "interrupted" if is_interrupt else _text(error)
            _publish({"host": platform.node(), "failure": failure, "leaves": is_interrupt})
            if is_interrupt:
                _wait_until_all_know()
        raise
    if jax.distributed.is_initialized():
        at_end()
        _exchange({"host": platform.node(), "failure": None})
    _all_know.clear()


@contextmanager
def ending_with_others() -> Generator[None]:
    """Ends this process where the block fails in another one of the job, and the others likewise.

    They would wait for its part of a step or of a checkpoint, and where process 0 leaves, JAX
    aborts those that wait.
    """
    if not jax.distributed.is_initialized():
        yield
        return
    watcher = _Watcher()
    watcher.start()
    try:
        yield
    except Exception as error:
        if lost_process_error(error) is None:  # the others see for themselves that one was lost
            watcher.tell(error)
        raise
    finally:
        watcher.stop()


class _Watcher(threading.Thread):
    """Looks every second whether another process of the job has failed."""

    def __init__(self) -> None:
        from jax._src import distributed

        super().__init__(name="jaxsr-watcher", daemon=True)
        self._client: Any = distributed.global_state.client
        self._keys = f"jaxsr/failures/{next(_watched)}"
        self._process = distributed.global_state.process_id
        self._processes = distributed.global_state.num_processes
        self._is_over = threading.Event()

    def run(self) -> None:
        with suppress(Exception):  # of JAX, whose types are private: the job is over
            while not self._is_over.wait(_LOOK_S):
                if not (failures := self._failures()):
                    continue
                if self._is_over.wait(_LOOK_S):  # this one failed as well
                    return
                self._publish("")
                process, failure = next((p, f) for p, f in failures.items() if f)
                line = f"jaxsr: process {process} {failure}; this one ends. {_AGAIN}"
                print(line, file=sys.stderr, flush=True)
                if self._process == 0:  # JAX aborts processes that it leaves behind
                    time.sleep(_FAREWELL_MS / 1000)
                os._exit(1)

    def tell(self, error: Exception) -> None:
        """Publishes the error, and waits a few seconds until the others have ended."""
        self._is_over.set()
        with suppress(Exception):
            self._publish(f"on {platform.node()} failed: {_text(error)}")
            end = time.monotonic() + _FAREWELL_MS / 1000
            while len(failures := self._failures()) < self._processes and time.monotonic() < end:
                time.sleep(0.1)
            if len(failures) == self._processes and all(failures.values()):
                _all_know.set()  # each fails by itself, and takes part in JAX's farewell

    def stop(self) -> None:
        self._is_over.set()
        self.join(_FAREWELL_MS / 1000)  # JAX may not be shut down while it asks

    def _publish(self, failure: str) -> None:
        self._client.key_value_set(f"{self._keys}/{self._process}", failure)

    def _failures(self) -> dict[str, str]:
        """By process, why it failed; "" for one that ends because of another."""
        answers = self._client.key_value_dir_get(f"{self._keys}/")
        return {key.rpartition("/")[2]: failure for key, failure in answers}


def ends_alone() -> bool:
    """Whether this process ends without JAX's farewell to the others.

    They do not know of its failure, or one was interrupted and has left.
    """
    return jax.distributed.is_initialized() and (_one_left.is_set() or not _all_know.is_set())


def _text(error: BaseException) -> str:
    text = str(error) if isinstance(error, UserError | OSError) else repr(error)
    return " ".join(text.split())


def _wait_until_all_know() -> None:
    """Waits for the others a few seconds: without process 0, JAX aborts those who still listen."""
    from jax._src import distributed

    client: Any = distributed.global_state.client
    with suppress(Exception):  # of JAX, whose types are private: one is late, or has gone
        client.wait_at_barrier("jaxsr/all know", _FAREWELL_MS)


def _publish(value: Mapping[str, Any]) -> str:
    from jax._src import distributed

    prefix = f"jaxsr/{next(_exchanges)}"
    packed = zlib.compress(json.dumps(value).encode())
    distributed.global_state.client.key_value_set_bytes(  # pyright: ignore[reportOptionalMemberAccess]
        f"{prefix}/{distributed.global_state.process_id}", packed
    )
    return prefix


def _exchange(value: Mapping[str, Any]) -> list[Any]:
    """The values of all processes in their order.

    Raises:
      InputError: one of them published a failure instead.
    """
    from jax._src import distributed

    state, prefix = distributed.global_state, _publish(value)
    answers: list[Any] = []
    for process in range(state.num_processes):
        packed = state.client.blocking_key_value_get_bytes(  # pyright: ignore[reportOptionalMemberAccess]
            f"{prefix}/{process}", _LONGEST_WAIT_MS
        )
        answers.append(json.loads(zlib.decompress(packed)))
    if any(answer.get("leaves") for answer in answers):
        _one_left.set()
        _wait_until_all_know()
    for process, answer in enumerate(answers):
        if answer.get("failure"):
            raise InputError(f"process {process} on {answer['host']} failed: {answer['failure']}")
    return answers


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _difference(
    group: str,
    hosts: Sequence[str],
    digests: Sequence[str],
    tables: Sequence[Mapping[str, Any]],
) -> str:
    """Which processes differ from the majority, and in which facts."""
    usual = Counter(digests).most_common(1)[0][0]
    reference = digests.index(usual)
    parts: list[str] = []
    for process, (host, digest, table) in enumerate(zip(hosts, digests, tables, strict=True)):
        if digest == usual:
            continue
        names = sorted({*table, *tables[reference]})
        changed = [n for n in names if table.get(n) != tables[reference].get(n)]
        values = [
            f"{n} {_shown(table, n)}, not {_shown(tables[reference], n)}"
            for n in changed[:_MOST_NAMED]
        ]
        more = len(changed) - _MOST_NAMED
        extra = f" and {more} more" if more > 0 else ""
        listed = "; ".join(values) or f"{len(table)} entries, not {len(tables[reference])}"
        parts.append(f"process {process} on {host} has {listed}{extra}")
    return (
        f"the {group} of this job's processes differ: {' | '.join(parts)} (as process {reference} "
        f"on {hosts[reference]}); start every process with the same command, data and versions"
    )


def _shown(table: Mapping[str, Any], name: str) -> str:
    return str(table[name]) if name in table else "absent"
