"""Print how much slower than a bare loop `embed` is, and what a search by one image takes.

python scripts/bench_embedding.py                     # photographs of 640 x 480 pixels, made of noise
python scripts/bench_embedding.py /data/photographs   # images of your own
python scripts/bench_embedding.py /data/photographs 64   # so many of them

The bare loop decodes and transforms each image and calls the network with batches of 64, and nothing else. Everything
runs in one process, in turns; ratios are the medians of the rounds.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median

import faiss
import numpy as np
import torch
from hydra import compose, initialize_config_dir
from measuring import time_in_turns
from omegaconf import OmegaConf
from PIL import Image

import dml
from dml.data.images import ImageFile
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_inputs import list_source
from dml.inference.model_settings import ModelSettings
from dml.run.config_folders import CONF

IMAGES, BATCH, ROUNDS, QUERIES = 768, 64, 5, 50


def make_model(*overrides: str) -> ImageEmbedder:
    """Make the network that overrides choose, by default the default one, with random weights."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=["transform=imagenet", *overrides])
    parts = {name: OmegaConf.to_container(config[name], resolve=True) for name in ("model", "transform", "data")}
    settings = ModelSettings(parts, name="random")
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


def print_embedding(model: ImageEmbedder, paths: list[str]) -> None:
    """Print images a second, and the ratio to the bare loop of the same round."""
    functions = {
        "bare loop": lambda: embed_bare(model, paths),
        "embed": lambda: model.embed(paths, batch_size=BATCH),
        "embed, one worker": lambda: model.embed(paths, batch_size=BATCH, num_workers=1),
    }
    time_in_turns(functions, 1)
    seconds = time_in_turns(functions, ROUNDS)
    for name, times in seconds.items():
        ratio = median(bare / measured for bare, measured in zip(seconds["bare loop"], times, strict=True))
        print(f"{name:18} {len(paths) / median(times):8.1f} images/s  {ratio:.3f} x bare")


def print_search(model: ImageEmbedder, paths: list[str]) -> None:
    """Print the milliseconds of a search by one image, and of its parts."""
    index = dml.Index.build(model, paths)
    pixels = model.preprocess(paths[0])[None]
    vector = model.embed_batch(pixels)
    exact = faiss.IndexFlatIP(model.dimension)
    exact.add(model.embed(paths, batch_size=BATCH))
    functions = {
        "search by an image": lambda: index.search(paths[0], k=10),
        "reading and transforming it": lambda: model.preprocess(ImageFile(paths[0], model.settings.limits)),
        "the network alone": lambda: model.embed_batch(pixels),
        "search by a vector": lambda: index.search(vector, k=10),
        "FAISS alone": lambda: exact.search(vector, 10),
    }
    for name, times in time_in_turns(functions, QUERIES).items():
        print(f"{name:28} {1000 * median(times):8.2f} ms, fastest {1000 * min(times):.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) < 2:
            write_photographs(Path(folder))
        paths, _ = list_source(sys.argv[1] if len(sys.argv) > 1 else folder)
        paths = paths[: int(sys.argv[2]) if len(sys.argv) > 2 else IMAGES]
        model = make_model("transform.size=112")
        print_embedding(model, paths)
        print_search(model, paths)
