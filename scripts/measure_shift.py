"""Measures what class splits of growing distance cost on emoji, over three seeds; it calls dml shift for the splits.

python scripts/measure_shift.py /tmp/shift --raw    features before any training, on both sides of all levels
python scripts/measure_shift.py /tmp/shift          losses that train the heads alone (frozen=true), levels 0, 2 and 5

docs/shift.md has the means. The splits are drawn once, with seed 0; the seeds are those of the trainings. Finished
runs are not repeated. It takes about fifteen minutes on two cores.
"""

from dml.run.settings import ShiftSettings, read_settings
from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import argparse
import json
import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from dml.commands.checked_images import build_backbone_network
from dml.data.class_splits import apply_class_splits, read_class_splits
from dml.data.table import ImageTable
from dml.evaluation.evaluator import Evaluator
from dml.report.provenance import describe_measurement, describe_vector, describe_weights, join_facts, merge_facts
from dml.report.statistics import PER_QUERY, ClassSums, sum_by_class, sum_runs_by_class
from dml.run.builders import build_table
from dml.run.config_folders import CONF
from dml.run.prepare_job import make_cache_folder
from dml.run.stored_configuration import plain_config
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import markdown_table
from dml.studies.runs import run_forks

LEVELS = (0, 2, 5)
LOSSES = ("rll", "multi_similarity", "normalized_softmax", "circle")
SEEDS = (0, 1, 2)
TITLES = {"recall@1": "recall@1", "map@r": "MAP@R"}
UNUSED = (
    *("evaluation.sheet=null", "evaluation.report.map=false", "evaluation.threshold=null", "evaluation.heads=false"),
    *("evaluation.clustering=false", "evaluation.raw=false", "data.num_workers=0"),
)
"""Overrides that leave out what the tables don't need; per_query.parquet comes with the report."""


def main(output: Path, *, is_raw: bool) -> None:
    """Make the splits and the runs that are missing, and print the tables."""
    splits = output / "splits"
    cache = f"data.cache={output / 'cache'}"
    if not (splits / "shift.json").exists() and run_forks([["shift", "dataset=emoji", cache, f"output={splits}"]]):
        sys.exit("dml shift failed")
    levels = json.loads((splits / "shift.json").read_text())["levels"]
    distances = [f"{level['distance']:.3f}" for level in levels]
    if is_raw:
        print_raw_table(distances, RawFeatures(splits, cache))
    else:
        runs = train_losses(output, cache)
        print_loss_tables(distances, RawFeatures(splits, cache), runs)


class RawFeatures:
    """The features of the default backbone before any training, tested on the sides of the splits.

    Args:
        splits: folder of the splits.
        cache: override with the folder of the features.
    """

    def __init__(self, splits: Path, cache: str) -> None:
        self._splits = splits
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("shift", overrides=["dataset=emoji", cache, "hydra.run.dir=."])
        settings = read_settings(config, ShiftSettings)
        self._table: ImageTable = build_table(settings)
        self._weights = describe_weights(plain_config(config))
        self._features: Tensor = build_backbone_network(settings).embed(
            settings, self._table, make_cache_folder(settings)
        )

    @property
    def facts(self) -> dict[str, str]:
        """What the metrics of the features are of."""
        vector = describe_vector({"raw": self._features.shape[1]}, ["raw"], 0.0)
        return {"vector": vector, "weights": self._weights, "checkpoint": "none, as nothing is trained"}

    def test(self, level: int, side: str) -> ClassSums:
        """Test the features on a side of a level, each image a query among the images of the side."""
        divided = apply_class_splits(self._table, read_class_splits(self._splits / f"shift-{level}.csv"))
        rows = divided.rows(side)
        (ranked,) = Evaluator(divided.take(rows)).evaluate(self._features[torch.from_numpy(rows)]).lists
        values = {metric: ranked.values[name] for metric, name in PER_QUERY.items()}
        counts, sums = sum_by_class(divided.labels[rows[ranked.queries], 0], values)
        return ClassSums(counts, {metric: [row] for metric, row in sums.items()})


def print_raw_table(distances: list[str], raw: RawFeatures) -> None:
    """Print recall@1 and MAP@R of the features on each side of each level."""
    header = ["level", "distance", *(f"{side}: {title}" for side in ("test", "training") for title in TITLES.values())]
    rows = [
        [str(level), distance]
        + [
            format_mean(tested, metric)
            for tested in (raw.test(level, "test"), raw.test(level, "train"))
            for metric in TITLES
        ]
        for level, distance in enumerate(distances)
    ]
    print(markdown_table(header, rows, right=range(len(header))))
    print(join_facts({"raw features": raw.facts}))


def train_losses(output: Path, cache: str) -> dict[tuple[int, str], list[RunFolder]]:
    """Train what is missing -> {(level, loss): a run for each seed}."""
    runs = {
        (level, loss): [RunFolder(output / f"level-{level}" / loss / f"seed-{seed}") for seed in SEEDS]
        for level in LEVELS
        for loss in LOSSES
    }
    commands = [
        [
            *("train", "dataset=emoji", "training.frozen=true", f"loss={loss}", f"seed={seed}", cache, *UNUSED),
            *(
                f"dataset.class_splits={output / 'splits' / f'shift-{level}.csv'}",
                f"hydra.run.dir={folders[seed].path}",
            ),
        ]
        for seed in SEEDS
        for (level, loss), folders in runs.items()
        if not folders[seed].is_finished
    ]
    if run_forks(commands):
        sys.exit("a run failed; the same command goes on")
    return runs


def print_loss_tables(distances: list[str], raw: RawFeatures, runs: dict[tuple[int, str], list[RunFolder]]) -> None:
    """Print the metrics of the raw features and of each loss at each level, and then the gains of the losses."""
    header = ["level", "distance", "metric", "raw features", *(f"`{loss}`" for loss in LOSSES)]
    means, gains = [], []
    for level in LEVELS:
        before = raw.test(level, "test")
        tested = [sum_runs_by_class(runs[level, loss]) for loss in LOSSES]
        for metric, title in TITLES.items():
            cells = [str(level), distances[level], title]
            means.append(cells + [format_mean(part, metric) for part in (before, *tested)])
            gains.append(cells + [format_mean(part, metric, before) for part in tested])
    right = (0, 1, *range(3, len(header)))
    print(markdown_table(header, means, right=right))
    print(markdown_table([*header[:3], *header[4:]], gains, right=right[:-1]))
    print(join_facts({f"`{loss}` at level {level}": describe_folders(runs[level, loss]) for level, loss in runs}))


def describe_folders(folders: list[RunFolder]) -> dict[str, str]:
    """Return what the metrics of some runs are of, as the runs stored it."""
    return merge_facts(describe_measurement(folder.metrics(), folder.config) for folder in folders)


def format_mean(tested: ClassSums, metric: str, before: ClassSums | None = None) -> str:
    """Format a mean over queries and seeds, or its gain, with the 95 % interval over the classes, in percent."""
    mean = tested.mean(metric) - (before.mean(metric) if before else 0.0)
    low, high = tested.interval(metric, before)
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder of the splits, the features and the runs")
    parser.add_argument("--raw", action="store_true", help="test the features before any training, and train nothing")
    arguments = parser.parse_args()
    main(arguments.output, is_raw=arguments.raw)
