"""Prints how many images a second one core reads and transforms for training, beside torchvision's usual way.

python scripts/bench_loading.py    # one minute

Files are 500 x 375 JPEGs of quality 90, parts of two photographs. The usual way is torchvision's ImageFolder with its
transforms of PIL images up to ToTensor; here an item is read as the training loader reads it, from the file and from a
cache where the transform has one. All in one process with one thread, in turns, in CPU time, batched.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image
from sklearn.datasets import load_sample_image
from torch.utils.data import default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

from dml.data.cache import CacheFolder
from dml.data.cache_build import build_cache
from dml.data.dataset import ImageDataset, collate
from dml.data.prepare import check_images
from dml.data.table import ImageTable
from dml.run.config_folders import CONF

IMAGES, WIDTH, HEIGHT = 128, 500, 375
BATCH, ROUNDS = 32, 12


def usual(*steps: Any) -> Any:
    """torchvision's pipeline of PIL images."""
    return transforms.Compose([*steps, transforms.RandomHorizontalFlip(), transforms.ToTensor()])


WARP = transforms.Resize((256, 256))
USUAL = {
    "rll": usual(WARP, transforms.RandomResizedCrop(224, scale=(0.5, 1.0))),
    "rll_plain": usual(WARP, transforms.RandomCrop(224)),
    "nra": usual(transforms.Resize(255, max_size=256), transforms.RandomCrop(224, pad_if_needed=True, fill=128)),
    "happier_sop": usual(transforms.Resize(256), transforms.RandomResizedCrop(224, (0.16, 1.0), (0.75, 1.33))),
    "happier_inat": usual(transforms.RandomResizedCrop(224, scale=(0.16, 1.0), ratio=(0.75, 1.33))),
}
"""For each choice of transform what one would write without this framework."""


def photographs(folder: Path) -> ImageTable:
    """Writes the files, all of one class, as ImageFolder wants them."""
    rng = np.random.default_rng(0)
    whole = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    (folder / "class").mkdir(parents=True)
    paths = [str(folder / "class" / f"{i:03d}.jpg") for i in range(IMAGES)]
    for path in paths:
        width = int(rng.integers(400, 560))
        height = width * HEIGHT // WIDTH
        left, top = int(rng.integers(640 - width)), int(rng.integers(427 - height))
        part = whole[rng.integers(2)].crop((left, top, left + width, top + height))
        part.resize((WIDTH, HEIGHT)).save(path, quality=90)
    labels = np.zeros((IMAGES, 1), dtype=np.int64)
    return ImageTable(np.array(paths), labels, np.full(IMAGES, "train"), ("class",))


def rates(ways: Sequence[Callable[[int], Any]]) -> list[list[float]]:
    """Images a second of each way in each round; a way makes the batch that begins at an image."""
    measured: list[list[float]] = [[] for _ in ways]
    for number in range(-1, ROUNDS):  # the first is a warm-up
        for way, seconds in zip(ways, measured, strict=True):
            started = process_time()
            way(number % (IMAGES // BATCH) * BATCH)
            if number >= 0:
                seconds.append(BATCH / (process_time() - started))
    return measured


def usual_way(folder: Path, transform: Any) -> Callable[[int], Any]:
    """ImageFolder's batches."""
    images = ImageFolder(str(folder), transform)
    return lambda first: default_collate([images[first + i] for i in range(BATCH)])


def own_way(images: ImageDataset) -> Callable[[int], Any]:
    """The training stream's batches."""
    return lambda first: collate([images[first + i, (0, 0, first, i)] for i in range(BATCH)])


def main() -> None:
    """Measures each transform and prints the table."""
    torch.set_num_threads(1)
    print("images a second of one core      usual    from files         from a cache")
    with tempfile.TemporaryDirectory() as name, initialize_config_dir(str(CONF), version_base="1.3"):
        files = Path(name) / "images"
        table = photographs(files)
        folder = CacheFolder(Path(name), name)
        checked = check_images(table, folder, processes=1, advance=lambda _: None)
        for choice, transform in USUAL.items():
            pipeline = instantiate(compose("train", overrides=[f"transform={choice}"]).transform.train)
            ways = [usual_way(files, transform), own_way(ImageDataset(table, pipeline))]
            if pipeline.resize:
                build_cache(folder, pipeline.resize, checked, processes=1, advance=lambda _: None)
                ways.append(own_way(ImageDataset(table, pipeline, cache=folder.find(table, pipeline.resize))))
            reference, *others = rates(ways)
            cells = [
                f"{median(rate):9,.0f} ({median(a / b for a, b in zip(rate, reference, strict=True)):4.1f}x)"
                for rate in others
            ]
            print(f"{choice:28}{median(reference):10,.0f}{'   '.join(cells)}")


if __name__ == "__main__":
    main()
