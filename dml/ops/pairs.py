from torch import Tensor


def finest(labels: Tensor) -> Tensor:
    """Return the labels of the finest level, column 0. (B,) or (B, L) -> (B,)

    >>> import torch
    >>> finest(torch.tensor([[3, 0], [4, 0]])).tolist()
    [3, 4]
    """
    return labels if labels.ndim == 1 else labels[:, 0]


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Tell which pairs of a batch are positive and which are negative; the diagonal is in neither mask.

    >>> import torch
    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives[0].tolist(), negatives[0].tolist()
    ([False, True, False], [False, False, True])

    Args:
        labels: (B,) labels of the batch.

    Returns:
        The masks of positive pairs (B, B) bool and of negative pairs (B, B) bool.
    """
    same = labels[:, None] == labels[None, :]
    positives = same.clone()
    positives.fill_diagonal_(False)
    return positives, ~same
