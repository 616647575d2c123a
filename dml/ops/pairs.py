from torch import Tensor


def finest(labels: Tensor) -> Tensor:
    """labels (B,) or (B, L) -> (B,): level 0, the finest."""
    return labels if labels.ndim == 1 else labels[:, 0]


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """labels (B,) -> positives, negatives (B, B) bool; the diagonal is in neither."""
    same = labels[:, None] == labels[None, :]
    positives = same.clone()
    positives.fill_diagonal_(False)
    return positives, ~same
