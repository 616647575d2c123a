"""The losses of the leaderboard, and what is searched and trained for each of them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dml.ops.configuration.overrides import key_of
from dml.ops.errors import InputError, suggest
from dml.ops.filesystem.plain_text import parse_yaml
from dml.papers.tables.paper_tables import REFERENCE, Training
from dml.run.config_folders import quote

Overrides = tuple[str, ...]

SEARCHED_KIND = "heads"
"""The kind of training that the search compares."""


@dataclass(frozen=True)
class TrainingKind:
    """What learns in the tested runs, and for how long.

    Args:
        title: heading on the page.
        column: name of the kind in the columns of the summary in README.md.
        overrides: overrides of the experiment.
    """

    title: str
    column: str
    overrides: Overrides


@dataclass(frozen=True)
class Contest:
    """A loss on a data set.

    Args:
        loss: name of the loss in conf/loss.
        dataset: name of the data set on the page.
        training: the training of the heads with the loss as it is configured.
        rates: overrides of the first half of the search, one for each learning rate.
        values: overrides of the second half, one for each value of the loss's main parameter; empty if it has none.
        kinds: the kinds of training that are tested, by their names.
        chosen: the overrides that an earlier search chose; None: they are searched.
    """

    loss: str
    dataset: str
    training: Training
    rates: tuple[Overrides, ...]
    values: tuple[Overrides, ...]
    kinds: Mapping[str, TrainingKind]
    chosen: Overrides | None = None


@dataclass(frozen=True)
class Leaderboard:
    """All contests, the kinds of training in their order on the page, and a paragraph on how they are run."""

    setting: str
    kinds: Mapping[str, TrainingKind]
    contests: tuple[Contest, ...]

    def find_training(self, dataset: str, kind: str, loss: str, overrides: Iterable[str]) -> Training:
        """Return the training of a result.

        Args:
            dataset: name of the data set.
            kind: name of the kind of training.
            loss: name of the loss.
            overrides: overrides that the search chose.

        Raises:
            InputError: if the leaderboard has no such contest.
        """
        contest = self._find_contest(dataset, kind, loss)
        return contest.training.extended((*overrides, *contest.kinds[kind].overrides))

    def select_effective(self, dataset: str, kind: str, loss: str, overrides: Iterable[str]) -> list[str]:
        """Return those of the overrides that the search chose which the kind of training leaves as they are.

        Raises:
            InputError: if the leaderboard has no such contest.
        """
        replaced = {key_of(override) for override in self._find_contest(dataset, kind, loss).kinds[kind].overrides}
        return [override for override in overrides if key_of(override) not in replaced]

    def _find_contest(self, dataset: str, kind: str, loss: str) -> Contest:
        for contest in self.contests:
            if (contest.dataset, contest.loss) == (dataset, loss) and kind in contest.kinds:
                return contest
        raise InputError(f"{loss} on {dataset}, {kind}: a result of a contest that the leaderboard doesn't have")


def read_leaderboard(roots: Mapping[str, Path], path: Path = REFERENCE / "leaderboard.yaml") -> Leaderboard:
    """Read the contests from a file; the head of leaderboard.yaml describes its entries.

    Args:
        roots: {name of a data set: its ``dataset.root``}, for those that aren't embedded.
        path: leaderboard.yaml, or a file like it.
    """
    content: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    kinds = {
        name: TrainingKind(entry["title"], entry["column"], tuple(entry["overrides"]))
        for name, entry in content["kinds"].items()
    }
    rates = tuple((rate,) for rate in content["rates"])
    contests = []
    for dataset, experiment in content["datasets"].items():
        root = (f"dataset.root={quote(roots[dataset])}",) if dataset in roots else ()
        for loss, parameters in content["losses"].items():
            values = tuple((f"{key}={value}",) for key, numbers in parameters.items() for value in numbers)
            training = Training(experiment, (f"loss={loss}", *root))
            contests.append(Contest(loss, dataset, training, rates, values, kinds))
    return Leaderboard(content["setting"].strip(), kinds, tuple(contests))


def require_known(name: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that the leaderboard doesn't have, such as the ``loss`` "rl".

    Raises:
        InputError: if the value isn't one of the known ones; it names the nearest.
    """
    if value not in known:
        raise InputError(f"{name} {value}: not on the leaderboard{suggest(value, known)}")


def select_contests(board: Leaderboard, datasets: list[str] | None, losses: list[str] | None) -> list[Contest]:
    """Select the contests of some data sets and losses; None selects all.

    Raises:
        InputError: if the leaderboard has no such data set or loss.
    """
    for name, chosen, known in (
        ("dataset", datasets, {contest.dataset for contest in board.contests}),
        ("loss", losses, {contest.loss for contest in board.contests}),
    ):
        for value in chosen or ():
            require_known(name, value, known)
    return [
        contest
        for contest in board.contests
        if (datasets is None or contest.dataset in datasets) and (losses is None or contest.loss in losses)
    ]
