"""ImageNet's usual augmentation of a batch, on the device and on the host.

    python examples/imagenet_augment/augment.py
    python examples/imagenet_augment/augment.py --aot v5e:1x1

A random crop resized to 224², mirrored half of the time, brightness, contrast and saturation
jittered by up to 0.4, a box erased a quarter of the time, mean and deviation removed. The pictures
are cuts of photos that scikit-image and scikit-learn ship.
"""

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsr import ops

SIDE = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICY = (
    ops.RandomResizedCrop(size=SIDE),
    ops.RandomFlip(),
    ops.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
    ops.RandomErasing(probability=0.25),
)
Batch = Callable[[], Any]


@jax.jit
def on_device(key: jax.Array, images: jax.Array) -> jax.Array:
    """uint8 (N, H, W, 3) to the network's float32 (N, 224, 224, 3)."""
    changed = ops.augment(key, images, POLICY).images.astype(jnp.float32) / 255
    return (changed - jnp.array(MEAN)) / jnp.array(DEVIATION)


def pictures(count: int, side: int = 256) -> np.ndarray:
    """Cuts of photos, at places of one seed."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    photos = [data.astronaut(), data.chelsea(), data.coffee(), *load_sample_images().images]
    rng, cuts = np.random.default_rng(0), []
    for k in range(count):
        photo = photos[k % len(photos)]
        row, column = (int(rng.integers(extent - side + 1)) for extent in photo.shape[:2])
        cuts.append(photo[row : row + side, column : column + side])
    return np.stack(cuts)


def with_jaxsr(images: np.ndarray) -> Batch:
    """One program for the whole batch; the pictures come from the host each time."""
    keys = iter(range(1 << 30))
    return lambda: on_device(jax.random.key(next(keys)), images).block_until_ready()


def with_grain(images: np.ndarray, change: Callable[[np.ndarray], Any]) -> Batch:
    """A host pipeline of Grain: every picture changed in a thread, then stacked."""
    import grain

    dataset = grain.MapDataset.source(list(images)).repeat().map(change)
    threads = os.cpu_count() or 1
    # A longer buffer would fill while other contenders have their turn.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    batches = iter(dataset.to_iter_dataset(options).batch(len(images)))
    return lambda: next(batches)


def with_torchvision(images: np.ndarray) -> Batch:
    """Grain and torchvision's transforms of tensors."""
    import torch

    from jaxsr.models.build import import_library

    import_library("torchvision")
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.4, 0.4, 0.4),
            v2.RandomErasing(0.25),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, DEVIATION),
        ]
    )
    torch.set_num_threads(1)  # Grain's threads share the cores
    return with_grain(images, lambda x: change(torch.from_numpy(x).permute(2, 0, 1)).numpy())


def with_albumentations(images: np.ndarray) -> Batch:
    """Grain and albumentations, which calls OpenCV."""
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)  # Grain's threads share the cores
    change = A.Compose(
        [
            A.RandomResizedCrop((SIDE, SIDE)),
            A.HorizontalFlip(),
            A.ColorJitter(0.4, 0.4, 0.4, hue=0),
            A.Erasing(p=0.25),
            A.Normalize(MEAN, DEVIATION),
        ]
    )
    return with_grain(images, lambda x: change(image=x)["image"])


def with_kornia(images: np.ndarray) -> Batch:
    """kornia, which takes a batch of float32 tensors at once."""
    import torch
    from kornia import augmentation as K

    torch.set_num_threads(os.cpu_count() or 1)
    change = K.AugmentationSequential(
        K.RandomResizedCrop((SIDE, SIDE)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4),
        K.RandomErasing(p=0.25),
        K.Normalize(torch.tensor(MEAN), torch.tensor(DEVIATION)),
    )
    planes = torch.from_numpy(images).permute(0, 3, 1, 2)
    return lambda: change(planes.float() / 255)


CONTENDERS = {
    "jaxsr": with_jaxsr,
    "Grain + albumentations": with_albumentations,
    "Grain + torchvision": with_torchvision,
    "kornia": with_kornia,
}


def rates(contenders: list[str], count: int, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """Pictures a second of each, in every round."""
    images = pictures(count)
    for name in contenders:
        try:
            batch = CONTENDERS[name](images)
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        batch()  # compiles, or starts threads
        seconds: list[float] = []
        for _ in range(rounds):
            start = time.perf_counter()
            batch()
            seconds.append(time.perf_counter() - start)
        yield name, sorted(count / s for s in seconds)


def forecast(topology: str, count: int) -> dict[str, float]:
    """Bytes that one device's program needs and moves, and the highest rate that memory allows."""
    from jax.sharding import SingleDeviceSharding

    from jaxsr.interop.aot.topology import load_topology
    from jaxsr.interop.aot.traffic import main_memory_bytes

    target = load_topology(topology)
    sharding = SingleDeviceSharding(target.devices[0])
    key = jax.eval_shape(lambda: jax.random.key(0))
    program = on_device.lower(
        jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=sharding),
        jax.ShapeDtypeStruct((count, 256, 256, 3), "uint8", sharding=sharding),
    ).compile()
    memory = program.memory_analysis()
    moved = main_memory_bytes(program.as_text())
    return {
        "most_pictures_per_s": count / (moved / target.device.memory_bytes_per_s),
        "arguments_mb": memory.argument_size_in_bytes / 1e6,
        "results_mb": memory.output_size_in_bytes / 1e6,
        "temporaries_mb": memory.temp_size_in_bytes / 1e6,
        "moved_mb": moved / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256, help="pictures")
    parser.add_argument("--rounds", type=int, default=7, help="timed batches of each contender")
    parser.add_argument("--only", choices=CONTENDERS, help="one contender")
    parser.add_argument("--aot", metavar="TOPOLOGY", help="compile for a TPU instead, as v5e:1x1")
    options = parser.parse_args()
    if options.aot:
        for name, figure in forecast(options.aot, options.batch).items():
            print(f"{name:20} {figure:10.1f}")
        return
    ops.keep_freed_memory()
    names = [options.only] if options.only else list(CONTENDERS)
    for name, each in rates(names, options.batch, options.rounds):
        middle = statistics.median(each)
        print(f"{name:24} {middle:7.0f} pictures a second ({each[0]:.0f} to {each[-1]:.0f})")


if __name__ == "__main__":
    main()
