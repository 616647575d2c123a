"""Print how many images a second one core reads and transforms for training, beside torchvision's pipeline.

python scripts/bench_loading.py    # one minute

The files are JPEGs of 500 x 375 pixels and quality 90, cut from two photographs. torchvision's pipeline is its
ImageFolder with its transforms of PIL images up to ToTensor. "Decoder" is libjpeg-turbo, called by simplejpeg, on the
bytes of the whole image, and nothing else. This project's items are read as in training: from the file, and from a
cache where the transform has one. All run in one process with one thread, in turns; the rates are images in batches for
each second of CPU time, in brackets beside those of torchvision's pipeline.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import simplejpeg
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from photographs import write_photographs
from torch.utils.data import default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

from dml.data.dataset import ImageDataset, collate
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.cache_build import build_cache
from dml.data.prepared.verification import check_images
from dml.data.table import ImageTable
from dml.run.config_folders import CONF

IMAGES = 128
BATCH, ROUNDS = 32, 12


def torchvision_pipeline(*steps: Any) -> Any:
    """Make torchvision's pipeline of PIL images."""
    return transforms.Compose([*steps, transforms.RandomHorizontalFlip(), transforms.ToTensor()])


WARP = transforms.Resize((256, 256))
USUAL = {
    "rll": torchvision_pipeline(WARP, transforms.RandomResizedCrop(224, scale=(0.5, 1.0))),
    "rll_plain": torchvision_pipeline(WARP, transforms.RandomCrop(224)),
    "nra": torchvision_pipeline(
        transforms.Resize(255, max_size=256), transforms.RandomCrop(224, pad_if_needed=True, fill=128)
    ),
    "happier_sop": torchvision_pipeline(
        transforms.Resize(256), transforms.RandomResizedCrop(224, (0.16, 1.0), (0.75, 1.33))
    ),
    "happier_inat": torchvision_pipeline(transforms.RandomResizedCrop(224, scale=(0.16, 1.0), ratio=(0.75, 1.33))),
}
"""For each choice of transform the pipeline that one would write without this framework."""


def write_table(folder: Path) -> ImageTable:
    """Write photographs of one class in the layout of ImageFolder, and return their table."""
    files = [folder / "class" / f"{i:03d}.jpg" for i in range(IMAGES)]
    write_photographs(files)
    labels = np.zeros((IMAGES, 1), dtype=np.int64)
    return ImageTable(np.array([str(file) for file in files]), labels, np.full(IMAGES, "train"), ("class",))


def measure_rates(ways: Sequence[Callable[[int], Any]]) -> list[list[float]]:
    """Measure images per second in each round of each way; a way makes the batch that begins at an image's index."""
    measured: list[list[float]] = [[] for _ in ways]
    for number in range(-1, ROUNDS):  # the first is a warm-up
        for way, seconds in zip(ways, measured, strict=True):
            started = process_time()
            way(number % (IMAGES // BATCH) * BATCH)
            if number >= 0:
                seconds.append(BATCH / (process_time() - started))
    return measured


def torchvision_batches(folder: Path, transform: Any) -> Callable[[int], Any]:
    """Return a way that makes batches with ImageFolder."""
    images = ImageFolder(str(folder), transform)
    return lambda first: default_collate([images[first + i] for i in range(BATCH)])


def dataset_batches(images: ImageDataset) -> Callable[[int], Any]:
    """Return a way that makes batches as training does."""
    return lambda first: collate([images[first + i, (0, 0, first, i)] for i in range(BATCH)])


def main() -> None:
    """Measure each transform and print the table."""
    torch.set_num_threads(1)
    print("images a second of one core torchvision       decoder        from files      from a cache")
    with tempfile.TemporaryDirectory() as name, initialize_config_dir(str(CONF), version_base="1.3"):
        files = Path(name) / "images"
        table = write_table(files)
        folder = CacheFolder(Path(name), name)
        checked = check_images(table, folder, processes=1, advance=lambda _: None)
        contents = [Path(path).read_bytes() for path in table.paths]
        for choice, transform in USUAL.items():
            pipeline = instantiate(compose("train", overrides=[f"transform={choice}"]).transform.train)
            ways = [
                torchvision_batches(files, transform),
                lambda first: [simplejpeg.decode_jpeg(content) for content in contents[first : first + BATCH]],
                dataset_batches(ImageDataset(table, pipeline)),
            ]
            if pipeline.resize:
                build_cache(folder, pipeline.resize, checked, processes=1, advance=lambda _: None)
                ways.append(dataset_batches(ImageDataset(table, pipeline, cache=folder.find(table, pipeline.resize))))
            reference, *other_rates = measure_rates(ways)
            cells = [
                f"{median(rate):9,.0f} ({median(a / b for a, b in zip(rate, reference, strict=True)):4.1f}x)"
                for rate in other_rates
            ]
            print(f"{choice:28}{median(reference):10,.0f}{'   '.join(cells)}")


if __name__ == "__main__":
    main()
