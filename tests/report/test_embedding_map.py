import numpy as np
import pytest

from dml.report.embedding_map import embedding_map
from dml.report.pictures import choose_queries
from dml.runtime.errors import InputError


def clusters(sizes: tuple[int, ...] = (20, 20, 20)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(8)[labels] + 0.05 * rng.normal(size=(len(labels), 8)), labels


def test_neighbors_stay_neighbors() -> None:
    embeddings, labels = clusters()
    places = embedding_map(embeddings).astype(np.float64)
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(60, np.inf))
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_places_are_a_function_of_the_input() -> None:
    embeddings, _ = clusters()
    places = embedding_map(embeddings)
    assert np.array_equal(places, embedding_map(embeddings))
    assert np.array_equal(places, embedding_map(4 * embeddings))  # the length doesn't count
    assert places.dtype == np.float32


def test_a_sample_by_seed() -> None:
    embeddings, _ = clusters()
    for seed in (0, 1):
        drawn = ~np.isnan(embedding_map(embeddings, points=12, seed=seed)).any(axis=1)
        assert np.array_equal(np.flatnonzero(drawn), choose_queries(60, 12, seed))


@pytest.mark.parametrize("rows", [np.zeros((9, 4)), np.ones((40, 4)), np.eye(5), np.arange(6.0)[:, None] - 2])
def test_whatever_is_embedded_has_a_place(rows: np.ndarray) -> None:
    assert np.isfinite(embedding_map(rows)).all()


def test_too_few_for_a_map() -> None:
    assert np.isnan(embedding_map(np.eye(4))).all()
    with pytest.raises(InputError, match="points = 4"):
        embedding_map(np.eye(8), points=4)
    with pytest.raises(InputError, match="1 of 5 embeddings"):
        embedding_map(np.where(np.eye(5) * np.arange(5) > 3, np.nan, 1.0))
