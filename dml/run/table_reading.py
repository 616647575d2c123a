"""The reading of a data set's table: counts are checked, then a fold is applied."""

from dml.data.image_files.limits import limit_list_bytes
from dml.data.table import ImageTable, hold_out_classes, list_training_classes, load
from dml.run.building import build
from dml.run.settings import DatasetSettings


def read_table(dataset: DatasetSettings, max_list_bytes: int, *, needs_fold: bool = True) -> ImageTable:
    """Read and check a data set, and make the fold of the configuration the validation split.

    Args:
        dataset: settings of the data set.
        max_list_bytes: largest size of a file that lists images.
        needs_fold: whether fewer training classes than folds are an error; a test does without a validation split.

    Raises:
        InputError: if the data set has a fault.
    """
    with limit_list_bytes(max_list_bytes):
        images = load(
            build(dataset.reader),
            dataset.root,
            name=dataset.name,
            counts=dataset.counts,
            disjoint=dataset.disjoint,
            verify=dataset.verify,
        )
        if dataset.folds is not None and (needs_fold or len(list_training_classes(images)) >= dataset.folds):
            images = hold_out_classes(images, folds=dataset.folds, fold=dataset.fold)
        return images
