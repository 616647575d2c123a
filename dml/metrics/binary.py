from torch import Tensor


def recall_at_k(relevant: Tensor, k: int) -> Tensor:
    """1 if any of the k nearest is relevant (hit rate). (Q, K) bool, nearest first -> (Q,) float

    A ranking shorter than k counts as a whole. A query without positives scores 0: leave it out of the mean.
    """
    return relevant[:, :k].any(dim=1).float()
