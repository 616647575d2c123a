"""What losses that compare the images of a class need of a batch."""

from torch import nn

from dml.ops.errors import InputError


def check_pairs(loss: nn.Module, images_per_class: int) -> None:
    """Make sure that a loss which compares images of one class gets at least two of each class.

    >>> from dml.losses.csl import CSLLoss
    >>> check_pairs(CSLLoss(num_classes=3, embedding_dim=2), images_per_class=1)

    Args:
        loss: a loss; one whose class, or that of a part of it, has ``needs_positives = True`` compares images.
        images_per_class: number of images of each class in a batch.

    Raises:
        InputError: if there is one image of each class.
    """
    if images_per_class < 2 and any(getattr(part, "needs_positives", False) for part in loss.modules()):
        raise InputError(
            f"sampler.images_per_class={images_per_class}: {type(loss).__name__} compares images of one class and "
            "needs at least 2"
        )
