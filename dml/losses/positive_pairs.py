"""What losses that compare the images of a class need of a batch."""

from torch import nn

from dml.losses.compose import AtLevel, has_trait
from dml.losses.memory import CrossBatchMemory
from dml.ops.errors import InputError


def check_pairs(loss: nn.Module, images_per_class: int, classes_per_batch: int = 2) -> None:
    """Make sure that a loss which compares images gets at least two of each class, and at least two classes.

    >>> from dml.losses.csl import CSLLoss
    >>> check_pairs(CSLLoss(num_classes=3, embedding_dim=2), images_per_class=1)

    Args:
        loss: a loss; one whose class, or that of a part of it, has ``needs_positives = True`` compares images. At a
            coarser level (`AtLevel`) a class has images of several finest classes, so that needs no second image.
        images_per_class: number of images of each class in a batch.
        classes_per_batch: number of classes in a batch.

    Raises:
        InputError: if there is one image of each class, or one class, whose images are all positives of each other.
    """
    if images_per_class < 2 and _compares_images(loss):
        raise InputError(
            f"sampler.images_per_class={images_per_class}: {type(loss).__name__} compares images of one class and "
            "needs at least 2"
        )
    if classes_per_batch < 2 and _compares_images(loss) and not isinstance(loss, CrossBatchMemory):
        raise InputError(
            f"sampler.classes_per_batch={classes_per_batch}: {type(loss).__name__} compares images of different "
            "classes too and needs at least 2"
        )


def _compares_images(loss: nn.Module) -> bool:
    if has_trait(loss, "needs_positives"):
        return True
    return not isinstance(loss, AtLevel) and any(map(_compares_images, loss.children()))
