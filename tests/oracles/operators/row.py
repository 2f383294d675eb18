"""The row of one operator in one dtype, once all its samples are judged."""

from collections import Counter
from typing import Any

from tests.oracles.operators.judge import judge


def run_pair(name: str, dtype: str) -> dict[str, Any]:
    """The row of one operator in one dtype, computed in this process."""
    counts: Counter[str] = Counter()
    gradients = x64 = 0
    reasons: Counter[str] = Counter()
    for verdict in judge(name, dtype):
        counts[verdict.status] += 1
        gradients += verdict.gradient
        x64 += verdict.x64
        if verdict.status in ("refused", "wrong"):
            reasons[f"{verdict.status}: {verdict.reason}"] += 1
    return {
        "operator": name,
        "dtype": dtype,
        "status": _status(counts),
        "samples": sum(counts.values()),
        **{status.replace(" ", "_"): counts[status] for status in _COUNTED},
        "gradients": gradients,
        "x64": x64,
        "reasons": dict(reasons.most_common(3)),
    }


_COUNTED = ("right", "refused", "wrong", "torch fails")


def _status(counts: Counter[str]) -> str:
    if counts["wrong"]:
        return "wrong"
    if counts["refused"]:
        return "partly refused" if counts["right"] else "refused"
    return "right" if counts["right"] else "no sample"
