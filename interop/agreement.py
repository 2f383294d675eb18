# pyright: reportUnknownMemberType=false
"""Facts that all processes of a job must share, compared before the first step.

Processes that differ would wait for one another without end, or train on a mixture. They exchange
short texts through the coordination service that `jax.distributed` starts, so nothing is computed
and meshes may differ. In a process that is not part of a job, every function here does nothing.
"""

import hashlib
import itertools
import json
import platform
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax

from jaxsr.interop.errors import InputError, UserError

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
            text = str(error) if isinstance(error, UserError | OSError) else repr(error)
            is_interrupt = isinstance(error, KeyboardInterrupt)
            failure = "interrupted" if is_interrupt else " ".join(text.split())
            _publish({"host": platform.node(), "failure": failure, "leaves": is_interrupt})
            if is_interrupt:
                _wait_until_all_know()
        raise
    if jax.distributed.is_initialized():
        at_end()
        _exchange({"host": platform.node(), "failure": None})
    _all_know.clear()


def ends_alone() -> bool:
    """Whether this process ends without JAX's farewell to the others.

    They do not know of its failure, or one was interrupted and has left.
    """
    return jax.distributed.is_initialized() and (_one_left.is_set() or not _all_know.is_set())


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
