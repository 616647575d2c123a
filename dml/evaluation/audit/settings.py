"""The thresholds of a data audit."""

from dataclasses import dataclass, fields

from dml.runtime.errors import InputError

SHARES = ("copy_cosine", "mixed", "divided")
"""The thresholds that lie between 0 and 1."""


@dataclass(frozen=True)
class AuditSettings:
    """The thresholds of a data audit; conf/audit.yaml explains each of them.

    Args:
        components: number of principal components that embeddings are compared by.
        neighbors: number of nearest neighbors by which copies are looked for and classes are compared.
        images_per_class: number of nearest images of each class that decide how likely the class is.
        temperature: cosine similarity by which one class has to be closer to be e times as likely.
        copy_bits: largest number of different bits, of 256, between the perceptual hashes of copies.
        copy_cosine: smallest cosine similarity of copies.
        mixed: smallest mixing of two classes that are worth merging, 1 for classes that can't be told apart.
        divided: smallest distance of the two halves of a class that is worth splitting, 1 for that of other classes.
        smallest_class: number of images below which a class is too small.
        smallest_side: number of pixels below which the shorter side of an image is odd.
        largest_ratio: ratio of the sides above which an image is odd.
        smallest_contrast: standard deviation of the gray values, 0 to 255, below which an image is of one color.
        isolation: number of robust standard deviations by which an odd image is farther from its neighbors than usual.

    Raises:
        InputError: if a threshold can't be used.
    """

    components: int = 320
    neighbors: int = 10
    images_per_class: int = 3
    temperature: float = 0.07
    copy_bits: int = 30
    copy_cosine: float = 0.3
    mixed: float = 0.6
    divided: float = 0.75
    smallest_class: int = 3
    smallest_side: int = 32
    largest_ratio: float = 4.0
    smallest_contrast: float = 4.0
    isolation: float = 4.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in SHARES and not 0 <= value <= 1:
                raise InputError(f"audit.{field.name}={value}: a number from 0 to 1")
            if field.name in ("components", "neighbors", "images_per_class", "temperature") and not value > 0:
                raise InputError(f"audit.{field.name}={value}: a number above 0")
