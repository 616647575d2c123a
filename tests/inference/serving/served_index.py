"""A small index behind a server: a plugin that the tests of the API and of the page ask for.

PYTEST_DONT_REWRITE: they import it before they ask for it, which pytest would warn of; it asserts nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from small_embedders import make_model, write_photos

from dml.data.images import ImageLimits
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.image_index import Index
from dml.inference.serving.image_search import ImageSearch
from dml.inference.serving.web_api import create_app, open_listener, running_server
from dml.metrics.verification import Calibration

HOSTS = ["127.0.0.1", "localhost"]
LIMITS = ImageLimits(max_image_bytes=200_000, max_pixels=1_000_000)
THRESHOLD = 0.9965
CALIBRATION = Calibration(40.0, -36.0, 0.05)
CALIBRATION_OF_INDEX = replace(CALIBRATION, prior=2 * 6 * 5 / (12 * 11))  # two labels of six images each


def build_index(folder: Path, count: int) -> Index:
    """Build an index of as many photographs below a folder, whose model has a threshold and probabilities."""
    embedder = make_model()
    metrics = {"threshold/similarity": THRESHOLD, "threshold/wanted_wrong_share": 0.05, "threshold/wrong_share": 0.06}
    metrics |= {f"threshold/calibration_{name}": value for name, value in asdict(CALIBRATION).items()}
    settings = replace(embedder.settings, metrics=metrics)
    return Index.build(ImageEmbedder(embedder.model, settings, device="cpu"), write_photos(folder, count))


@contextmanager
def served(search: ImageSearch) -> Iterator[str]:
    """Serve an index in the ``with`` body -> the address."""
    with open_listener("127.0.0.1", 0) as listener, running_server(create_app(search, HOSTS), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build_index(tmp_path_factory.mktemp("private"), 12)


@pytest.fixture(scope="module")
def address(index: Index) -> Iterator[str]:
    with served(ImageSearch(index, LIMITS)) as address:
        yield address
