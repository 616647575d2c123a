import torch
from hypothesis import given
from hypothesis import strategies as st

from dml.ops.pairs import finest, pair_masks


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_masks_equal_a_loop(labels: list[int]) -> None:
    positives, negatives = pair_masks(torch.tensor(labels))
    pairs = [[(i, j) for j in range(len(labels))] for i in range(len(labels))]
    assert positives.tolist() == [[i != j and labels[i] == labels[j] for i, j in row] for row in pairs]
    assert negatives.tolist() == [[labels[i] != labels[j] for i, j in row] for row in pairs]
    assert positives.dtype == negatives.dtype == torch.bool


def test_masks_share_no_memory_with_each_other() -> None:
    positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    before = negatives.clone()
    positives.fill_(True)
    assert torch.equal(negatives, before)


def test_finest_is_column_0() -> None:
    labels = torch.tensor([[3, 1, 0], [4, 1, 0]])
    assert finest(labels).tolist() == [3, 4]
    assert finest(labels[:, 0]).tolist() == [3, 4]
    assert finest(labels[:, :1]).tolist() == [3, 4]
