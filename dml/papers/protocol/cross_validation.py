"""What the protocol compares: losses with the same search, on the same folds of the training classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from dml.data.table import TEST_SPLITS
from dml.ops.configuration.overrides import check_set_elsewhere, key_of
from dml.ops.errors import InputError
from dml.papers.experiments import compose, identify
from dml.papers.plans import PlannedRun, check_data, find_input_paths
from dml.papers.protocol.search_spaces import RATES, Proposal, SearchedRange
from dml.papers.tables.paper_tables import Training
from dml.run import builders
from dml.run.evaluators import find_ball

EXPERIMENT = "protocol/base"
SEARCHED = ("evaluation.split=val", "evaluation.report=null")
"""Overrides of the trainings of a search, which look at no test class."""
TESTED = ("evaluation.split=null", "evaluation.report={neighbors: 1, map: false, seed: 0}")
"""Overrides of the trainings that are tested, which store the metrics of each query."""


@dataclass(frozen=True)
class Method:
    """A loss whose values are searched.

    Args:
        loss: name of the loss in conf/loss.
        ranges: keys of the configuration whose values are searched, and their ranges.
    """

    loss: str
    ranges: tuple[SearchedRange, ...]


@dataclass(frozen=True)
class CrossValidation:
    """The setting that all methods share.

    Args:
        dataset: name of the data set in conf/dataset.
        folds: number of parts of the training classes; each of them is the validation classes of one training.
        trials: number of configurations that are tried of each loss.
        seeds: number of seeds of the tested models.
        rates: smallest and largest learning rate of the searches.
        overrides: overrides of every training.
    """

    dataset: str
    folds: int
    trials: int
    seeds: int = 1
    rates: tuple[float, float] = RATES
    overrides: tuple[str, ...] = ()

    def list_trainings(self, method: Method, proposal: Proposal, extra: Sequence[str] = ()) -> list[Training]:
        """List the trainings of a method with proposed values, one for each fold.

        Args:
            method: loss that is trained.
            proposal: values of the searched keys.
            extra: overrides of these trainings alone.
        """
        chosen = (f"dataset={self.dataset}", f"loss={method.loss}", *self.overrides)
        values = tuple(f"{key}={value}" for key, value in proposal.items())
        return [
            Training(EXPERIMENT, (*chosen, *values, f"dataset.folds={self.folds}", f"dataset.fold={fold}", *extra))
            for fold in range(self.folds)
        ]

    def identify(self) -> str:
        """Return a hash of what every training has in common, which changes with the values of conf/."""
        config = compose(self.list_trainings(Method("rll", ()), {})[0])
        return identify(OmegaConf.masked_copy(config, [str(key) for key in config if key != "loss"]))


def check_overrides(setting: CrossValidation, methods: Sequence[Method]) -> None:
    """Make sure that no override of every training replaces, or is replaced by, what the protocol itself sets.

    Raises:
        InputError: if one does.
    """
    setters = {"dataset": "dataset=...", "loss": "losses=...", "seed": "seeds=...", "experiment": "the protocol"}
    setters |= dict.fromkeys(map(key_of, (*SEARCHED, *TESTED)), "the protocol")
    setters |= dict.fromkeys(("dataset.folds", "dataset.fold"), "the protocol")
    setters |= {searched.key: f"the search of {method.loss}" for method in methods for searched in method.ranges}
    choices = {"dataset", "loss"}  # whose values may be set
    check_set_elsewhere(setting.overrides, setters, below=setters.keys() - choices)


def check_cross_validation(setting: CrossValidation, methods: Sequence[Method], data: Path | None) -> None:
    """Make sure, before any training, that the data has test classes and folds, and that ensembles can be made.

    Args:
        setting: data set, folds, seeds and overrides that the trainings of all losses share.
        methods: losses that are compared.
        data: folder that holds the folders of the data sets; None if the user gave none.

    Raises:
        InputError: if there are fewer than two folds, the data set can't be read or has no test classes, or a loss's
            embeddings aren't compared by cosine.
    """
    if setting.folds < 2:
        raise InputError(f"folds={setting.folds}: a cross-validation has 2 folds or more")
    firsts = [PlannedRun(setting.list_trainings(method, {})[0], 0, Path()) for method in methods]
    check_data("dml protocol", firsts, data)
    for method, run in zip(methods, firsts, strict=True):
        config = compose(run.training)
        if find_ball(config) or config.recurrent:
            raise InputError(
                f"losses={method.loss}: its embeddings aren't compared by cosine, as those that an ensemble joins are"
            )
    config = compose(firsts[0].training)
    for key, path in find_input_paths(config, data or Path()).items():
        OmegaConf.update(config, key, str(path))
    if not len(builders.build_table(config).rows(*TEST_SPLITS)):
        raise InputError(f"dataset={setting.dataset}: no class is held out for a test")
