from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dml.metrics.binary import recall_at_k


@given(hnp.arrays(np.bool_, st.tuples(st.integers(0, 6), st.integers(1, 9))), st.integers(1, 12))
def test_recall_at_k_is_one_where_a_hit_is_among_the_first_k(relevant: Any, k: int) -> None:
    expected = [1.0 if any(row[j] for j in range(min(k, len(row)))) else 0.0 for row in relevant]
    recall = recall_at_k(torch.from_numpy(relevant), k)
    assert recall.tolist() == expected
    assert recall.dtype == torch.float32


def test_recall_at_k_never_falls_with_k() -> None:
    relevant = torch.from_numpy(np.random.default_rng(0).random((50, 10)) < 0.2)
    values = torch.stack([recall_at_k(relevant, k) for k in range(1, 11)])
    assert (values.diff(dim=0) >= 0).all()
