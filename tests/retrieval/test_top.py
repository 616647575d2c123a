from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.retrieval.gallery import k_nearest

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
