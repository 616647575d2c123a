"""A model of two convolutions with random weights, and photographs of noise, for tests of a model in use.

It is also a plugin, for those that ask for its fixtures. PYTEST_DONT_REWRITE: they import it before they ask for it,
which pytest would warn of; it asserts nothing.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dml.inference.image_embedder import ImageEmbedder
from dml.inference.model_settings import ModelSettings

SETTINGS = ModelSettings(
    config={
        "model": {
            "_target_": "dml.models.embedding.EmbeddingModel",
            "backbone": {"_target_": "dml.models.small_cnn.small_cnn"},
            "taps": {"H": "pool2"},
            "head": {"H": {"_target_": "dml.models.heads.PoolHead", "_partial_": True}},
            "heads": ["H"],
            "embed_dim": 8,
            "image_size": 28,
        },
        "transform": {"test": {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": 28}},
        "data": {"eval_batch_size": 4},
        "dataset": {"name": "squares"},
    },
    name="small_cnn",
)


def make_model(seed: int = 0) -> ImageEmbedder:
    torch.manual_seed(seed)
    return ImageEmbedder(SETTINGS.build_model(), SETTINGS)


def write_photos(folder: Path, count: int) -> Path:
    """Write photographs, the first half below cats/ and the second below dogs/ -> the folder."""
    generator = np.random.default_rng(0)
    for number in range(count):
        image = folder / ("cats" if number < count // 2 else "dogs") / f"{number:02}.png"
        image.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(image)
    return folder


@pytest.fixture(scope="module")
def model() -> ImageEmbedder:
    return make_model()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 12)
