"""Greedy tokens of every family of transformers by its own code, against transformers' `generate`.

A tiny random model of each configuration type continues two prompts of different lengths by 24
tokens: in a batch padded on the left, on a mesh of two devices, and from a cache that was saved
after 9 tokens. With `--out`, families whose rows are in the file are left out. The page
`docs/generate-families.md` is made from `benchmarks/results/generate_families.json`.
"""

import dataclasses
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import BoundedOptions
from benchmarks.harness.report import (
    RESULTS,
    Report,
    Row,
    finished,
    read_rows,
    run_benchmark,
)
from benchmarks.harness.tables import escaped, markdown
from jaxsr.errors import UserError, one_line
from jaxsr.interop.atomic_write import atomic_write
from jaxsr.models.libraries import import_transformers
from tests.oracles.messages import without_folders

TABLE = RESULTS.parents[1] / "docs" / "generate-families.md"
RECORD = RESULTS / "generate_families.json"
_NEW_TOKENS = 24
_SAVED_AFTER = 9


@dataclass(frozen=True, kw_only=True)
class Options(BoundedOptions):
    """Options of the run."""

    only: tuple[str, ...] = ()
    """Families to run. Default: all with a causal language model."""


def families() -> list[str]:
    """Configuration types with a causal language model."""
    from transformers.models.auto import modeling_auto

    return sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def compare_family(family: str) -> Row:
    """The row of one family, computed in this process."""
    import torch

    from jaxsr.generation.generate_loop import complete, continue_from
    from jaxsr.generation.jax_decoder import JaxDecoder
    from jaxsr.generation.options import SamplingOptions
    from jaxsr.generation.sharding import tensor_mesh
    from jaxsr.interop.mesh import select_platform
    from jaxsr.models.hugging_face.network import LibraryLM
    from jaxsr.runtime.setup import configure_jax
    from tests.oracles.language_models.tiny import PROMPTS, reference_tokens, tiny_model

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    configure_jax(None)
    select_platform("cpu", simulated_devices=2)
    try:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_model(family, Path(folder))
        reference = reference_tokens(model, new_tokens=_NEW_TOKENS)
    except Exception as error:
        return {"status": "not built", "reason": f"{type(error).__name__}: {one_line(error)}"}
    greedy = SamplingOptions(max_new_tokens=_NEW_TOKENS)
    begun = dataclasses.replace(greedy, max_new_tokens=_SAVED_AFTER)

    def tokens(run: Any) -> list[list[int]]:
        return [completion.tokens for completion in run.completions]

    try:
        network = LibraryLM(model).requires_grad_(False).eval()
        network.check_continues()
        engine = JaxDecoder(network)
        batch = tokens(complete(engine, PROMPTS, greedy, batch_size=2, padding="left"))
        two = JaxDecoder(network, mesh=tensor_mesh(2))
        on_mesh = tokens(complete(two, PROMPTS, greedy, batch_size=2))
        run = complete(engine, PROMPTS, begun, batch_size=2, keep_snapshots=True)
        resumed = tokens(continue_from(engine, run.snapshots[0], greedy))
    except UserError as error:
        return {"status": "refused", "reason": one_line(error)}
    checks = {"batch": batch, "mesh": on_mesh, "resumed": resumed}
    equal = {name: outputs == reference for name, outputs in checks.items()}
    wrong = [name for name, same in equal.items() if not same]
    return {
        "status": "differs" if wrong else "equal",
        "reason": f"other tokens: {', '.join(wrong)}" if wrong else "",
        "checks": equal,
    }


def _row(family: str, options: Options) -> Row:
    row = options.row_of_child(partial(compare_family, family))
    return {"family": family, **row, "reason": without_folders(row["reason"])[:300]}


def measure(options: Options) -> None:
    """Runs the families one after another, and counts their statuses."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import_transformers()  # children are forked from this process

    done = finished(options.out, ("family",), rerun=options.rerun)
    report = Report("generate_families", options, key=("family",))
    missing = [family for family in options.only or families() if (family,) not in done]
    report.add_all(_row(family, options) for family in missing)
    if options.out == RECORD:
        atomic_write(TABLE, render(read_rows(RECORD)).encode())


def render(rows: Sequence[Row]) -> str:
    """docs/generate-families.md."""
    counts = Counter(row["status"] for row in rows)
    equal = [f"`{row['family']}`" for row in rows if row["status"] == "equal"]
    lines = [
        "# Families of language models", "",
        "Greedy tokens by each family's own code against transformers' `generate`: two prompts of",
        f"different lengths, {_NEW_TOKENS} tokens each, in a batch, on a mesh of two devices, and "
        f"from a cache saved after {_SAVED_AFTER} tokens; tiny",
        "random models in float32. `python -m benchmarks.generate_families --out "
        "benchmarks/results/generate_families.json`",
        "makes this page.", "",
        ", ".join(f"{count} {status}" for status, count in counts.most_common()) + ".", "",
        "## Equal", "", ", ".join(equal) + ".", "", "## Not equal", "",
        "`not built`: no tiny model could be made, or transformers' own `generate` fails on it. "
        "Encoders and decoders of", "other models are in transformers' list as well.", "",
    ]  # fmt: skip
    different = [row for row in rows if row["status"] != "equal"]
    cells = [(f"`{r['family']}`", r["status"], escaped(r["reason"])) for r in different]
    lines += markdown(("family", "status", "cause"), cells)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_benchmark(measure, Options)
