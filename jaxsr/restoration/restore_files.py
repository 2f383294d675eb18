"""`python -m jaxsr.restore`: files in, files out, failures listed at the end."""

import contextlib
import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from PIL import Image

from jaxsr.data.picture_limits import limit_opencv
from jaxsr.data.result_folder import clear_half_written, result_folder
from jaxsr.data.sources import Inputs, Source, check_folder, find_sources
from jaxsr.errors import InputError, counted, printable
from jaxsr.restoration.batch import BatchRestorer, finished_result, named_result
from jaxsr.restoration.config import RestoreConfig, included_enlargers
from jaxsr.restoration.made_by import MadeBy
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pictures import picture_size
from jaxsr.restoration.progress import Progress, short
from jaxsr.restoration.restorer import configured_model, make_restorer, make_tiler
from jaxsr.restoration.shipped import choose_for_files
from jaxsr.restoration.tiling import APPROXIMATE_MARGIN, LARGEST_EXACT_MARGIN
from jaxsr.runtime.activity import fitted, set_status
from jaxsr.runtime.exit_status import ExitStatus
from jaxsr.runtime.setup import setup_compute

_SKIPPED = "left alone: {} of this model and options; --overwrite replaces them"
_LARGE = 32_000_000
"""Pixels above which images are decoded one ahead instead of two."""


def run(config: RestoreConfig) -> int:
    """Restores the files that a configuration names; returns the exit status.

    Raises:
      UserError: the run could not start.
    """
    began = time.perf_counter()
    if not config.inputs and not config.benchmark:
        raise InputError("nothing to restore: name images, videos, folders or globs")
    inputs = find_inputs(config)
    if config.truth is not None:
        from jaxsr.restoration.quality_report import check_report

        check_report(config, inputs.sources)
    set_status("loading the model")
    made_by = MadeBy(config, [configured_model(config, word) for word in _words(config)])
    if config.inputs and not config.benchmark:
        results = [(source, finished_result(source, config)) for source in inputs.sources]
        finished = [(source, result) for source, result in results if result is not None]
        made_by.check(finished)
        done = {result for _, result in finished}  # two sources may have one result
        if len(done) == len(results) and config.truth is None:
            lacks = {str(s.path): lack for s, result in finished if (lack := made_by.lack(result))}
            print(_SKIPPED.format(counted(len(results), "result")))
            return _print_failures(inputs.notes(), [*inputs.problems, *lacks.items()])
    groups = group_sources(config, inputs)
    works = [(configured_model(config, word), sources) for word, sources in groups.items()]
    for model, sources in works:
        colours = "RGB" if model.channels == 3 else "luma"
        which = f" for {len(sources)} of {len(inputs.sources)} files" if len(works) > 1 else ""
        print(f"model: {printable(model.name)}{which}, {colours} ×{model.scale}", flush=True)
    model = works[0][0]
    if config.chooses and not config.benchmark:
        clean, photo = _words(config)
        line = (
            f"weights are chosen per file: {photo} for JPEG artefacts, {clean} otherwise; --model "
            f"{clean} or {photo} takes one for all"
        )
        print(fitted(line, sys.stdout), flush=True)
    set_status(f"starting {config.engine}")
    setup_compute(config)
    set_status("measuring how far the network sees")
    if config.benchmark:
        from jaxsr.restoration.throughput import benchmark

        return benchmark(model, config)
    with ExitStack() as stack:
        check_folder(config.out)
        clear_half_written(config.out, (named_result(each, config) for each in inputs.sources))
        if config.truth is not None:
            from jaxsr.restoration.quality_report import RESULTS, report_folder, write_report

            option = "--out" if config.report is None else "--report"
            stack.enter_context(result_folder(report_folder(config), RESULTS, option=option))
        elif config.report is not None:
            check_folder(config.report, "--report")
        _print_tiling(model, config)
        status, results = _restore(works, config, inputs, began, made_by)
        if config.truth is not None and not write_report(config, inputs.sources, results):
            status = ExitStatus.FAILED
    return status


def _words(config: RestoreConfig) -> tuple[str, ...]:
    """The words for all models that files of this command may go through."""
    return included_enlargers(config.scale) if config.chooses else ("",)


def find_inputs(config: RestoreConfig) -> Inputs:
    """The files that the configuration names.

    Raises:
      InputError: there are no inputs.
    """
    inputs = find_sources(
        config.inputs, out=config.out, suffix=config.suffix, result_folders=("report",)
    )
    if config.inputs and not inputs.sources:
        raise InputError(
            f"no images found ({inputs.why_empty()}); name images, videos, folders or globs"
        )
    if config.overwrite:
        _keep_other_sources(inputs, config)
    return inputs


def _keep_other_sources(inputs: Inputs, config: RestoreConfig) -> None:
    """Removes sources whose results would replace other sources: `a.bmp` beside `a.png`."""
    by_place = {source.path.resolve(): source for source in inputs.sources}
    for source in [*inputs.sources]:
        other = by_place.get(named_result(source, config).resolve(), source)
        if other is not source:
            inputs.sources.remove(source)
            reason = f"the result would replace the source {other.path}; use --suffix or --out"
            inputs.problems.append((str(source.path), reason))


def group_sources(config: RestoreConfig, inputs: Inputs) -> dict[str, list[Source]]:
    """The files by the word for the model that restores them, see `configured_model`.

    From now on `--max-pixels` alone limits images, for every reader in this process.
    """
    # The size limit is --max-pixels, checked from the header; Pillow's would stop at its own.
    Image.MAX_IMAGE_PIXELS = None
    limit_opencv(config.max_pixels)
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # its reasons are reported anyway
    if config.chooses and inputs.sources and not config.benchmark:
        enlargers = included_enlargers(config.scale)
        return choose_for_files(inputs.sources, enlargers, max_pixels=config.max_pixels)
    return {_words(config)[0]: inputs.sources}


def _restore(
    works: list[tuple[RestorationModel, list[Source]]],
    config: RestoreConfig,
    inputs: Inputs,
    began: float,
    made_by: MadeBy,
) -> tuple[int, dict[Path, tuple[Path, RestorationModel]]]:
    """Returns the exit status, and the result of each source with the model that made it."""
    pictures = [source for source in inputs.sources if not source.is_video]
    limit = config.max_pixels
    pending = [source for source in pictures if finished_result(source, config) is None]
    measured = {source.path: picture_size(source.path, max_pixels=limit) for source in pending}
    sizes = [size for size in measured.values() if size]
    progress = Progress(sum(height * width for height, width in sizes))

    def leave_out(source: Source) -> None:
        height, width = measured.get(source.path) or (0, 0)
        progress.leave_out(height * width)

    outcomes, programs, results = [], 0, {}
    claimed: dict[Path, Path] = {}
    with contextlib.closing(progress):
        for model, sources in works:
            stills = [source for source in sources if not source.is_video]
            if not stills:
                continue
            restorer, runner, _ = make_restorer(
                model,
                config,
                sizes=set(sizes),
                alone=len(sizes) == 1,
                progress=progress.add,
            )
            threads = 1 if any(h * w > _LARGE for h, w in sizes) else 2
            batch = BatchRestorer(restorer, config, made_by, left_out=leave_out, claimed=claimed)
            outcomes.append(batch.run(stills, threads=threads))
            done = (*outcomes[-1].restored, *outcomes[-1].skipped)
            results |= {source: (result, model) for source, result in done}
            programs += len(runner.programs)
    megapixels, spent = progress.pixels / 1e6, progress.seconds
    for model, sources in works:
        if videos := [source for source in sources if source.is_video]:
            from jaxsr.restoration.video import restore_videos

            outcomes.append(restore_videos(videos, model, config, made_by, claimed))
    failed = [*inputs.problems, *(failure for outcome in outcomes for failure in outcome.failed)]
    restored = sum(len(outcome.restored) for outcome in outcomes)
    skipped = sum(len(outcome.skipped) for outcome in outcomes)
    figures = [f"{short(megapixels)} MP at {short(megapixels / spent)} MP/s"] if megapixels else []
    if config.engine == "jax" and programs:
        figures.append(counted(programs, "program"))
    all_s = time.perf_counter() - began
    line = f"restored {counted(restored, 'file')} to {printable(config.out)} in {all_s:.1f} s"
    print(fitted(line + (f" ({', '.join(figures)})" if figures else ""), sys.stdout))
    if skipped:
        print(_SKIPPED.format(counted(skipped, "result")))
    remarks = [remark for outcome in outcomes for remark in outcome.remarks]
    lines = [f"note: {printable(name)}: {printable(remark)}" for name, remark in remarks]
    return _print_failures(lines + inputs.notes(), failed), results


def _print_failures(notes: list[str], failed: list[tuple[str, str]]) -> int:
    """Lists files that were not restored; returns the exit status."""
    for line in notes:
        print(printable(line))
    if failed:
        print(f"not restored: {len(failed)}", file=sys.stderr)
        for name, reason in failed:
            print(f"  {printable(name)}: {printable(reason)}", file=sys.stderr)
    return ExitStatus.FAILED if failed else ExitStatus.OK


def _print_tiling(model: RestorationModel, config: RestoreConfig) -> None:
    """Says so where tiles would change the result, cost much, or are not as asked for."""
    reach, tiler = model.reach, make_tiler(model, config, ())
    if tiler.note:
        print(f"note: {tiler.note}", flush=True)
    changed = f"cuts them with {APPROXIMATE_MARGIN} pixels of overlap, which changes the result"
    if reach.margin is None:
        if config.tiling == "approximate":
            changed = changed.replace("cuts them", "larger images are cut")
            print(
                f"note: this network has no exact tiles ({printable(reach.cause)}); {changed}",
                flush=True,
            )
        else:
            print(
                f"note: this network has no exact tiles ({reach.cause}); images are treated "
                f"whole, and every new size is compiled. --tiling approximate {changed}",
                flush=True,
            )
    elif tiler.margin > LARGEST_EXACT_MARGIN and config.tiling == "auto":
        inner = tiler.side - 2 * tiler.margin
        print(
            f"note: exact tiles of this network overlap by {tiler.margin} pixels on each side: "
            f"{(tiler.side / inner) ** 2:.1f} times the work where an image is cut, and "
            f"{tiler.tile_bytes((tiler.side, tiler.side)) / 2**30:.1f} GiB for each tile. "
            f"--tiling approximate {changed}",
            flush=True,
        )
