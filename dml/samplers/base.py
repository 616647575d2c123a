from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dml.runtime.errors import InputError, check_whole

Ints = NDArray[np.int64]

AUTO = "auto"
AUTO_CLASSES = 20
"""Number of classes in a batch with ``classes_per_batch`` "auto", if so many classes can be drawn."""


class EpochSampler(ABC):
    """Base class of the batch samplers: holds the number of batches an epoch and the current epoch.

    Labels are integers (N,) or (N, L), whose column 0, the finest level, holds the classes. An attribute
    ``classes_per_batch`` is a number also if the argument is "auto".

    Without `set_epoch` the first loop over the sampler gives epoch 0, the next one epoch 1, and so on, as a
    plain ``DataLoader`` needs it. An epoch counts from its first batch on, also if the loop leaves it early.
    """

    def __init__(self, batches_per_epoch: int) -> None:
        self._batches_per_epoch = batches_per_epoch
        self._epoch = 0
        self._begun: int | None = 0

    def __len__(self) -> int:
        return self._batches_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches each loop gives from now on; the first epoch is 0."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: must be 0 or more")
        self._epoch, self._begun = epoch, None

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._epoch if self._begun is None else self._begun
        return self._begin(epoch, self._iterate_epoch(epoch))

    def _begin(self, epoch: int, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        """Count an epoch at its first batch, as a loader with workers makes an iterator that it never uses."""
        if self._begun is not None:
            self._epoch, self._begun = epoch, epoch + 1
        yield from batches

    @abstractmethod
    def _iterate_epoch(self, epoch: int) -> Iterator[list[int]]:
        """Iterate over the batches of an epoch, each a list of rows."""


def check_settings(**settings: object) -> None:
    """Check that settings of a sampler are whole numbers from 1 on, but its seed from 0; None stands for a default."""
    for name, value in settings.items():
        if value is not None:
            check_whole(f"sampler.{name}", value, least=0 if name == "seed" else 1)


def take_finest_labels(labels: ArrayLike) -> NDArray[Any]:
    """Return the labels of the finest level, column 0. (N,) or (N, L) -> (N,)

    >>> take_finest_labels([[3, 0], [4, 0]]).tolist()
    [3, 4]
    """
    array = np.asarray(labels)
    if not array.size or array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"sampler: labels of shape {array.shape}, {array.dtype}: must be (N,) or (N, L) integers")
    return array if array.ndim == 1 else array[:, 0]


def number_classes(labels: ArrayLike) -> tuple[Ints, Ints]:
    """Number the finest classes of labels (N,) or (N, L) from 0 in rising order -> (N,), their sizes (C,)."""
    _, classes, sizes = np.unique(take_finest_labels(labels), return_inverse=True, return_counts=True)
    return classes, sizes


def choose_classes_per_batch(setting: int | str, sizes: Ints, drawable: int, images_per_class: int) -> int:
    """Return the number of classes in a batch; "auto" takes `AUTO_CLASSES`, or all that can be drawn if they are fewer.

    Of the classes of ``sizes`` (classes,) images, ``drawable`` fill a batch at most.
    """
    check_settings(classes_per_batch=None if setting == AUTO else setting)
    needed = 2 if setting == AUTO else int(setting)
    if needed > drawable:
        which = "" if drawable == len(sizes) else f" with images_per_class={images_per_class} images"
        remedies = [f"sampler.classes_per_batch={drawable}"] if drawable >= 2 else []
        if len(sizes) >= needed and (smaller := int(np.sort(sizes)[-needed])) < images_per_class and smaller >= 2:
            remedies.append(f"sampler.images_per_class={smaller}")
        raise InputError(
            f"sampler.classes_per_batch={setting}: the training split has only {drawable} "
            f"{'class' if drawable == 1 else 'classes'}{which}; "
            + (f"{' or '.join(remedies)} would do" if remedies else "a batch needs images of 2 classes or more")
        )
    return max(1, min(AUTO_CLASSES, drawable)) if setting == AUTO else needed
