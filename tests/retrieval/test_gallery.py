from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.retrieval import gallery
from dml.retrieval.gallery import Gallery, k_nearest


def unit(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(rows, size)).astype(np.float32)), dim=1)


@pytest.mark.parametrize("items", [1, 2, 5, 17, 1025])
@pytest.mark.parametrize("queries", [1, 2, 33])
def test_distances_are_negative_dot_products(items: int, queries: int) -> None:
    rows, some = unit(items, 96), unit(queries, 96, seed=1)
    expected = -(some.double() @ rows.double().T)
    torch.testing.assert_close(Gallery(rows).distances(some).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("queries", [1, 2, 3, 40])
def test_copies_tie_wherever_they_stand(queries: int) -> None:
    rows = unit(1025, 96)
    rows[[7, 500, 1024]] = rows[3].clone()
    rows[20] = rows[900].clone()
    rows[31:34] = torch.tensor([0.0, -0.0, 0.0])[:, None]
    rows[40] = rows[41].flip(0)  # the same numbers, but no copy
    distances = Gallery(rows).distances(unit(queries, 96, seed=1))
    for copies in ([3, 7, 500, 1024], [20, 900], [31, 32, 33]):
        assert (distances[:, copies] == distances[:, copies[:1]]).all()
    assert sorted(np.flatnonzero(Gallery(rows).repeated)) == [3, 7, 20, 31, 32, 33, 500, 900, 1024]


def test_a_query_is_infinitely_far_from_itself_alone() -> None:
    rows = unit(9, 4)
    rows[8] = rows[2]
    distances = Gallery(rows).distances(rows[[2, 5]], torch.tensor([[2], [5]]))
    assert torch.equal(distances == torch.inf, torch.eye(9, dtype=torch.bool)[[2, 5]])
    assert distances[0, 8] == pytest.approx(-1)


def test_products_on_a_gpu_leave_what_training_asked_for() -> None:
    """No GPU here: only the switch is tried."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with gallery.precise_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_inputs_stay_as_they_were() -> None:
    rows, some = unit(6, 4), unit(3, 4, seed=1)
    rows[4] = rows[1]
    before = rows.clone(), some.clone()
    Gallery(rows).distances(some, torch.tensor([[0], [1], [2]]))
    assert torch.equal(rows, before[0])
    assert torch.equal(some, before[1])


TIED = st.sampled_from([-1.0, -0.5, -0.0, 0.0, 0.5, np.inf])


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 20)), elements=TIED),
    st.data(),
    st.integers(1, 4),
)
@examples(150)
def test_agrees_with_sorting_pairs_of_distance_and_item(distances: Any, data: Any, rows_at_once: int) -> None:
    k = data.draw(st.integers(1, distances.shape[1]))
    before = distances.copy()
    values, items = k_nearest(torch.from_numpy(distances), k, rows_at_once)
    for row, own_values, own_items in zip(distances.tolist(), values.tolist(), items.tolist(), strict=True):
        expected = sorted((value, item) for item, value in enumerate(row))[:k]
        assert list(zip(own_values, own_items, strict=True)) == expected
    assert before.tobytes() == distances.tobytes()
    assert not torch.signbit(values[values == 0]).any()


def test_only_rows_with_a_tie_over_the_end_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    distances = torch.rand(64, 500, generator=torch.Generator().manual_seed(0))
    limit = distances[5].sort().values[9]
    distances[5, 400] = limit  # a tenth and an eleventh
    distances[7, [3, 4]] = -1.0  # a tie within the ten
    rows = []
    sort = torch.Tensor.sort

    def counted(own: torch.Tensor, **settings: Any) -> Any:
        if own.shape[1] == 500:
            rows.append(len(own))
        return sort(own, **settings)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    values, items = k_nearest(distances, 10, rows_at_once=64)
    assert rows == [1]
    expected, order = torch.sort(distances, dim=1, stable=True)
    assert torch.equal(values, expected[:, :10])
    assert torch.equal(items, order[:, :10])
