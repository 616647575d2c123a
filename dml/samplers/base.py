from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.ops.errors import InputError

Ints = NDArray[np.int64]


class EpochSampler:
    """What all batch samplers share: how many batches an epoch has, and which epoch `iter()` gives."""

    def __init__(self, batches_per_epoch: int) -> None:
        self._batches_per_epoch = batches_per_epoch
        self._epoch = 0

    def __len__(self) -> int:
        return self._batches_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that `iter()` gives; before the first call it is 0."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: must be 0 or more")
        self._epoch = epoch


@runtime_checkable
class LearnsFromEmbeddings(Protocol):
    """A sampler that chooses rows by their embeddings, computed before the training and maybe again during it."""

    wanted_neighbors: int
    """The nearest rows of each row that it asks for; 0 if it needs none."""

    def learn(self, embeddings: NDArray[np.float32], neighbors: Ints) -> None:
        """(N, D) of unit length, and each row's nearest rows (N, K) nearest first; used from the next `iter()` on."""


def finest(labels: ArrayLike) -> NDArray[Any]:
    """(N,) or (N, L) -> (N,), column 0

    Raises InputError for no labels, another shape or type.
    """
    array = np.asarray(labels)
    if array.size == 0:
        raise InputError("sampler: no labels, the training split is empty")
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"sampler: labels of shape {array.shape}, {array.dtype}: must be (N,) or (N, L) integers")
    return array if array.ndim == 1 else array[:, 0]


def check_whole(name: str, value: object, least: int) -> None:
    """Raises InputError, which names the sampler's setting, unless the value is a whole number of `least` or more."""
    if not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"sampler.{name}={value}: must be a whole number, {least} or more")
