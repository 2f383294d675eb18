"""`python -m jaxsr.detect … --aot v5e:2x4`: a detector's batches compiled ahead of time.

With inputs these are the programs that the same command runs on such devices; without, a full batch
of the side that the network was trained at.
"""

import dataclasses

import numpy as np

from jaxsr.data.batch_plan import Size, Together
from jaxsr.data.sources import Source
from jaxsr.data.video import UnreadableVideo, video_size
from jaxsr.detection.config import DetectConfig
from jaxsr.detection.detect_files import complain, find_inputs, measure
from jaxsr.detection.detector import Detector, form_of
from jaxsr.models.load import load_model
from jaxsr.runtime.aot import Compile, batches_of, compile_batches, prepare
from jaxsr.runtime.jax_runner import open_ahead


def run(config: DetectConfig) -> int:
    """Runs the command with `--aot`; returns its exit status.

    Raises:
      InputError: no input can be read.
    """
    topology = prepare(config)
    devices = len(topology.devices)
    batch = -(-config.batch // devices) * devices
    config = dataclasses.replace(config, mesh=str(devices), batch=batch)
    loaded = load_model(config.model, kind="detector", **config.loading())
    runner = open_ahead(loaded.network, topology, config, lane_folding=config.lane_folding)
    form = form_of(loaded, evaluate=config.size, base=config.base)
    detector = Detector(runner, form, batch=batch)

    def program(together: Together) -> Compile:
        height, width = together.canvas
        named = {"size_B2": ((2,), np.int32)} if together.mixed else {}
        sample, name = (form.channels, height, width), f"detect {width}x{height}"
        return batches_of(runner, topology, sample, name=name, **named)

    lists = _size_lists(config) if config.inputs else [[(form.base, form.base)] * batch]
    batches = {
        (together.canvas, together.rows, together.mixed): together
        for sizes in lists
        for together in detector.plan(sizes)
    }
    programs = [(program(batches[key]), batches[key].rows) for key in sorted(batches)]
    return compile_batches(programs, config, step=devices)


def _size_lists(config: DetectConfig) -> list[list[Size]]:
    """Sizes that the command plans together: those of all images, those of a video's batches."""
    sources = find_inputs(config).sources
    lists = [measure(source for source in sources if not source.is_video)[1]]
    for source in sources:
        if source.is_video:
            lists += _batches_of_frames(source, config.batch)
    return lists


def _batches_of_frames(source: Source, batch: int) -> list[list[Size]]:
    """A full batch of frames, and the last one where the file tells how many frames it has."""
    try:
        size, frames = video_size(source.path)
    except (UnreadableVideo, OSError) as error:
        complain(str(source.path), str(error))
        return []
    counts = {min(frames or batch, batch), frames % batch or batch}
    return [[size] * count for count in sorted(counts)]
