"""`python -m jaxsr.restore`: files in, files out, what went wrong at the end."""

import logging
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from jaxsr.data.sources import Found, find_sources
from jaxsr.errors import FileAccessError, InputError
from jaxsr.restoration.batch import BatchRestorer
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pictures import picture_size
from jaxsr.restoration.progress import Progress
from jaxsr.restoration.session import make_restorer, model_of

BAD_FILES = 1
_LARGE = 32_000_000
"""Pixels above which pictures are decoded one ahead instead of two."""


def run(config: RestoreConfig) -> int:
    """Does what the command was asked; returns its exit status.

    Raises:
      ValueError, FileNotFoundError, OSError: nothing could start.
    """
    began = time.perf_counter()
    signal.signal(signal.SIGTERM, _interrupt)
    if not config.inputs and not config.benchmark:
        raise InputError("nothing to restore: name pictures, videos, folders or globs")
    found = find_sources(config.inputs, out=config.out)
    if config.inputs and not found.sources:
        told = "; ".join(f"{name}: {reason}" for name, reason in found.problems)
        raise InputError(
            f"no pictures found ({told or f'{found.ignored} files have other endings'}); "
            "name pictures, videos, folders or globs"
        )
    # The size limit is --max-pixels, checked from the header; Pillow's would stop at its own.
    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module="PIL")
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # its reasons are reported anyway
    model = model_of(config)
    _say(f"model: {model.name}, {'RGB' if model.channels == 3 else 'luma'} ×{model.scale}")
    _prepare(config)
    if config.benchmark:
        from jaxsr.restoration.throughput import benchmark

        return benchmark(model, config)
    _claim_folder(config.out)
    _tell_of_tiling(model, config)
    status = _restore(model, config, found, began)
    if config.truth is not None:
        from jaxsr.restoration.quality_report import write_report

        write_report(config, found.sources, model)
    return status


def _restore(model: RestorationModel, config: RestoreConfig, found: Found, began: float) -> int:
    pictures = [source for source in found.sources if not source.is_video]
    videos = [source for source in found.sources if source.is_video]
    sizes = [size for source in pictures if (size := picture_size(source.path))]
    failed = list(found.problems)
    restored = skipped = programs = 0
    progress = Progress(sum(height * width for height, width in sizes))
    try:
        if pictures:
            restorer, engine, _ = make_restorer(
                model, config, sizes=set(sizes), progress=progress.add
            )
            threads = 1 if any(h * w > _LARGE for h, w in sizes) else 2
            outcome = BatchRestorer(restorer, config).run(pictures, threads=threads)
            failed += outcome.failed
            restored, skipped = len(outcome.restored), len(outcome.skipped)
            programs = len(engine.programs)
    finally:
        progress.close()
    done, spent = progress.pixels / 1e6, progress.seconds
    if videos:
        from jaxsr.restoration.video import restore_videos

        outcome = restore_videos(videos, model, config)
        restored += len(outcome.restored)
        skipped += len(outcome.skipped)
        failed += outcome.failed
    rate = f", {done:.1f} MP in {spent:.1f} s ({done / spent:.2f} MP/s)" if done else ""
    compiled = f", {programs} programs" if config.engine == "jax" and programs else ""
    all_s = time.perf_counter() - began
    _say(f"restored {restored} to {config.out}{rate}{compiled}; {all_s:.1f} s in all")
    if skipped:
        _say(f"left alone: {skipped} results that were there already; --overwrite replaces them")
    if found.ignored:
        _say(
            f"passed over: {found.ignored} files in folders that are no pictures or videos by name"
        )
    if failed:
        print(f"not restored: {len(failed)}", file=sys.stderr)
        for name, reason in failed:
            print(f"  {name}: {reason}", file=sys.stderr)
    return BAD_FILES if failed else 0


def _tell_of_tiling(model: RestorationModel, config: RestoreConfig) -> None:
    reach = model.reach
    if reach.margin is not None:
        return
    cause = f"this network has no exact tiles ({reach.cause})"
    if config.tiling == "approximate":
        _say(f"note: {cause}; as asked, larger pictures are cut, which changes the result")
    else:
        _say(
            f"note: {cause}; pictures are treated whole, and every new size is compiled. "
            "--tiling approximate cuts them, which changes the result"
        )


def _prepare(config: RestoreConfig) -> None:
    """Everything global that the run changes in JAX, in one place."""
    if config.engine == "torch":
        return
    import jax

    from jaxsr.interop.mesh import select_platform
    from jaxsr.runtime.cli import cache_folder

    logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)
    select_platform(config.platform, simulated_devices=config.mesh)
    cache = config.compile_cache or cache_folder() / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(cache))


def _claim_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".jaxsr.partial"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileAccessError(
            f"cannot write to {out}: {error.strerror or error}; choose another --out"
        ) from error


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)
