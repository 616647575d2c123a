"""Print how much slower than a bare loop `embed` is, and what a search by one image takes.

python scripts/bench_embedding.py                     # photographs of 640 x 480 pixels, made of the drawings
python scripts/bench_embedding.py /data/photographs   # images of your own

The bare loop decodes and transforms each image and calls the network with batches of 64, and nothing else. Everything
runs in one process, in turns; ratios are the medians of the rounds.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import faiss
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from PIL import Image

import dml
from dml.data.image_files.images import ImageFile
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import list_source
from dml.inference.model_settings import ModelSettings
from dml.run.config_folders import CONF

IMAGES, BATCH, ROUNDS, QUERIES = 768, 64, 5, 50


def make_model() -> ImageEmbedder:
    """Make the default network with random weights, for photographs of 112 pixels."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=["transform=imagenet", "transform.size=112"])
    parts = {name: OmegaConf.to_container(config[name], resolve=True) for name in ("model", "transform", "data")}
    settings = ModelSettings(parts, name="tf_efficientnet_lite0")
    torch.manual_seed(0)
    return ImageEmbedder(settings.build_model(), settings)


def write_photographs(folder: Path) -> None:
    """Write JPEG files with the detail of photographs: noise of several scales."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        layers = [
            Image.fromarray(rng.integers(0, 256, (size * 3, size * 4, 3), dtype=np.uint8)).resize((640, 480))
            for size in (4, 20, 80)
        ]
        picture = Image.blend(Image.blend(layers[0], layers[1], 0.4), layers[2], 0.2)
        picture.save(folder / f"{number:04}.jpg", quality=90)


def embed_bare(model: ImageEmbedder, paths: list[str]) -> None:
    """Decode, transform and embed the images, and nothing else."""
    for first in range(0, len(paths), BATCH):
        files = (ImageFile(path, model.settings.limits) for path in paths[first : first + BATCH])
        model.embed_batch(torch.stack([model.preprocess(file) for file in files]))


def time_in_turns(functions: dict[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Return the seconds of each call of each function; the functions take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            started = perf_counter()
            for _ in range(repeats):
                function()
            seconds[name].append((perf_counter() - started) / repeats)
    return seconds


def print_embedding(model: ImageEmbedder, paths: list[str]) -> None:
    """Print images a second, and the ratio to the bare loop of the same round."""
    functions: dict[str, Callable[[], object]] = {
        "bare loop": lambda: embed_bare(model, paths),
        "embed": lambda: model.embed(paths, batch_size=BATCH),
        "embed, one worker": lambda: model.embed(paths, batch_size=BATCH, num_workers=1),
    }
    for function in functions.values():
        function()
    seconds = time_in_turns(functions, ROUNDS)
    for name, times in seconds.items():
        ratios = [bare / measured for bare, measured in zip(seconds["bare loop"], times, strict=True)]
        print(
            f"{name:18} {len(paths) / statistics.median(times):8.1f} images/s  {statistics.median(ratios):.3f} x bare"
        )


def print_search(model: ImageEmbedder, paths: list[str]) -> None:
    """Print the milliseconds of a search by one image, and of its parts."""
    index = dml.Index.build(model, paths)
    pixels = model.preprocess(paths[0])[None]
    vector = model.embed_batch(pixels)
    exact = faiss.IndexFlatIP(model.dimension)
    exact.add(model.embed(paths, batch_size=BATCH))
    seconds = time_in_turns(
        {
            "search by an image": lambda: index.search(paths[0], k=10),
            "reading and transforming it": lambda: model.preprocess(ImageFile(paths[0], model.settings.limits)),
            "the network alone": lambda: model.embed_batch(pixels),
            "search by a vector": lambda: index.search(vector, k=10),
            "FAISS alone": lambda: exact.search(vector, 10),
        },
        QUERIES,
    )
    for name, times in seconds.items():
        print(f"{name:28} {1000 * statistics.median(times):8.2f} ms, fastest {1000 * min(times):.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) < 2:
            write_photographs(Path(folder))
        paths, _ = list_source(sys.argv[1] if len(sys.argv) > 1 else folder)
        model = make_model()
        print_embedding(model, paths[:IMAGES])
        print_search(model, paths[:IMAGES])
