from typing import Any

import faiss
import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.retrieval.kmeans_clusters import estimate_time, kmeans
from dml.runtime.errors import InputError


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.integers(-3, 3).map(float)),
    st.data(),
)
@examples(60)
def test_a_cluster_for_each_row_duplicates_together(rows: Any, data: Any) -> None:
    clusters = data.draw(st.integers(1, len(rows)))
    assignment = kmeans(rows, clusters)
    assert assignment.shape == (len(rows),)
    assert assignment.dtype == torch.int64
    assert assignment.min() >= 0
    assert assignment.max() < clusters
    for row in np.unique(rows, axis=0):
        assert len(set(assignment[torch.from_numpy((rows == row).all(axis=1))].tolist())) == 1


def test_converged_every_row_is_at_its_nearest_mean() -> None:
    """Means over all 3,000 rows, 750 a cluster: FAISS's default would have drawn 256."""
    rows = np.random.default_rng(0).normal(size=(3000, 2)) * [1.0, 4.0]
    assignment = kmeans(rows, 4, iterations=300).numpy()
    means = np.array([rows[assignment == c].mean(axis=0) for c in range(4)])
    distances = ((rows[:, None] - means[None]) ** 2).sum(axis=2)
    assert np.array_equal(distances.argmin(axis=1), assignment)


def test_the_seed_decides() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 16))
    first = kmeans(rows, 60, seed=3)
    assert torch.equal(first, kmeans(rows, 60, seed=3))
    assert torch.equal(first, kmeans(torch.from_numpy(rows), 60, seed=3))
    assert not torch.equal(first, kmeans(rows, 60, seed=4))


def test_as_many_clusters_as_rows_leaves_each_alone() -> None:
    assert sorted(kmeans(np.arange(9.0)[:, None], 9).tolist()) == list(range(9))


def test_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    kmeans(np.random.default_rng(0).normal(size=(30, 4)), 20)
    output = capfd.readouterr()
    assert output.out + output.err == ""


@pytest.mark.parametrize(("count", "clusters"), [(614, 115), (2000, 8)])
def test_the_number_of_threads_changes_nothing(count: int, clusters: int) -> None:
    rows, threads = np.random.default_rng(0).normal(size=(count, 64)), faiss.omp_get_max_threads()
    expected = kmeans(rows, clusters)
    try:
        for number in (1, 2, 3):
            faiss.omp_set_num_threads(number)
            assert torch.equal(kmeans(rows, clusters), expected)
    finally:
        faiss.omp_set_num_threads(threads)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"clusters": 0}, {"clusters": 2, "iterations": 0}),
        {"clusters": 2, "embeddings": np.full((4, 2), np.nan)},
    ],
)
def test_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        kmeans(**({"embeddings": np.ones((4, 2))} | arguments))


@pytest.mark.parametrize(("cores", "expected"), [(1, "about 2,100 s on 1 core"), (4, "about 525 s on 4 cores")])
def test_the_time_of_a_clustering_falls_with_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: str
) -> None:
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: cores)
    assert estimate_time(4 * 10**12).startswith(expected)
    assert estimate_time(1) == ""
