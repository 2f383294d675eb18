"""`python -m jaxsr.restore … --aot v5e:2x4`: tiles of a network compiled ahead of time.

With images or `--benchmark` these are the programs that the same command runs on such devices, as
if no result existed yet; otherwise, one program of the largest tile.
"""

from collections.abc import Iterable, Iterator, Sequence

from jaxsr.data.sources import Source
from jaxsr.data.video import UnreadableVideo, video_size
from jaxsr.errors import one_line, printable
from jaxsr.restoration.around_tiles import around_tiles
from jaxsr.restoration.config import RestoreConfig
from jaxsr.restoration.models import RestorationModel
from jaxsr.restoration.pictures import picture_size
from jaxsr.restoration.restore_files import find_inputs, group_sources
from jaxsr.restoration.restorer import configured_model, make_tiler, tiles_at_once
from jaxsr.restoration.tiling import Size, WholePictureTooLarge
from jaxsr.runtime.aot import Compile, batches_of, compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead

Batch = tuple[int, Size]
"""Tiles on one device, and the shape of each."""


def run(config: RestoreConfig) -> int:
    """Runs the command with `--aot`; returns its exit status.

    Raises:
      InputError: no image among the inputs can be restored.
    """
    topology = prepare(config)
    devices, platform = len(topology.devices), topology.device.platform
    inputs = find_inputs(config)
    groups = {word: _sizes(files, config) for word, files in group_sources(config, inputs).items()}
    # The tiles of any image are chosen by the sizes of all.
    all_stills = [size for stills, _ in groups.values() for size in stills]
    programs: list[tuple[Compile, int]] = []
    for word, (stills, videos) in groups.items():
        model = configured_model(config, word)
        runs = [(stills, all_stills, devices if len(all_stills) == 1 else None)]
        runs += [([size], [size], None) for size in videos]
        if config.benchmark:
            runs = [([size], [size], devices) for size in config.sizes()]
        batches = {batch for run in runs for batch in _batches(model, config, platform, *run)}
        if not config.inputs and not config.benchmark:
            tiler = make_tiler(model, config, ())
            batches = {(tiles_at_once(config, tiler, platform), (tiler.side, tiler.side))}
        if batches:
            suffix = f", {model.name}" if len(groups) > 1 else ""
            around = around_tiles(model.value_range, ensemble=config.ensemble)
            folding = config.lane_folding
            runner = open_ahead(
                model.network, topology, config, around=around, lane_folding=folding
            )
            for rows, (height, width) in sorted(batches):
                sample, name = (model.channels, height, width), f"restore {width}x{height}{suffix}"
                program = batches_of(runner, topology, sample, name=name)
                programs.append((program, rows * devices))
    return compile_batches(programs, config, step=devices)


def _sizes(sources: Iterable[Source], config: RestoreConfig) -> tuple[list[Size], list[Size]]:
    """Sizes of the images, and of each video's frames; a line names unreadable files."""
    stills: list[Size] = []
    videos: list[Size] = []
    for source in sources:
        if source.is_video:
            try:
                videos.append(video_size(source.path, max_pixels=config.max_pixels)[0])
            except (UnreadableVideo, OSError) as error:
                print(f"left out: {printable(source.path)}: {one_line(error)}", flush=True)
        elif size := picture_size(source.path, max_pixels=config.max_pixels):
            stills.append(size)
        else:
            print(
                f"left out: {printable(source.path)}: not readable, or above --max-pixels",
                flush=True,
            )
    return stills, videos


def _batches(
    model: RestorationModel,
    config: RestoreConfig,
    platform: str,
    sizes: Iterable[Size],
    known: Sequence[Size],
    devices: int | None,
) -> Iterator[Batch]:
    """Batches in which images of these sizes are restored, by a tiler that knows `known`."""
    tiler = make_tiler(model, config, set(known), devices=devices)
    rows = tiles_at_once(config, tiler, platform)
    for size in sizes:
        try:
            plan = tiler.insist(size) if config.tiling == "off" else tiler.plan(size)
        except WholePictureTooLarge as error:
            print(f"left out: {one_line(error)}", flush=True)
            continue
        if plan.compiled:  # torch computes the others, on the host
            yield rows, plan.shape
