"""Measures what class splits of growing distance cost, on emoji with seed 0; it calls dml shift for the splits.

python scripts/measure_shift.py /tmp/shift --raw    features before any training, on both sides of all levels
python scripts/measure_shift.py /tmp/shift          losses that train the heads alone (frozen=true), levels 0, 2 and 5

Both tables are in docs/shift.md. Finished runs are not repeated. It takes about five minutes on two cores, most of them
for features: of 6,063 images once for the splits, and again for each level that is trained on.
"""

from dml.ops.signals import handle_signals

if __name__ == "__main__":
    handle_signals(is_importing=True)  # before imports that take seconds

import argparse
import json
import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from dml.commands.audit_network import build_backbone_network
from dml.data.class_splits import apply_class_splits, read_class_splits
from dml.evaluation import evaluate
from dml.ops.run_folder import RunFolder
from dml.papers.plans import run_forks
from dml.run.builders import build_table
from dml.run.config_folders import CONF
from dml.run.prepare_job import make_cache_folder

LEVELS = (0, 2, 5)
LOSSES = ("rll", "multi_similarity", "normalized_softmax", "circle")
METRICS = {"recall@1": "level0/recall@1", "MAP@R": "level0/map@r"}
UNUSED = ("evaluation.report=null", "evaluation.sheet=null", "data.num_workers=0")
"""Overrides that leave out what the table doesn't need."""


def main(output: Path, *, is_raw: bool) -> None:
    """Make the splits and the runs that are missing, and print a table."""
    splits = output / "splits"
    cache = f"data.cache={output / 'cache'}"
    if not (splits / "shift.json").exists() and run_forks(
        [["shift", "dataset=emoji", cache, f"output={splits}"]], report
    ):
        sys.exit("dml shift failed")
    levels = json.loads((splits / "shift.json").read_text())["levels"]
    if is_raw:
        print_raw_table(levels, splits, cache)
    else:
        train_losses(levels, output, cache)


def print_raw_table(levels: list[dict[str, float]], splits: Path, cache: str) -> None:
    """Print recall@1 and MAP@R in percent of the features on each side, each image a query among those of its side."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("shift", overrides=["dataset=emoji", cache, "hydra.run.dir=."])
    table = build_table(config)
    features = build_backbone_network(config).embed(config, table, make_cache_folder(config))
    print("| level | distance | test: recall@1 | MAP@R | training: recall@1 | MAP@R |\n|" + " ---: |" * 6)
    for number, level in enumerate(levels):
        divided = apply_class_splits(table, read_class_splits(splits / f"shift-{number}.csv"))
        values = []
        for side in ("test", "train"):
            rows = torch.from_numpy(divided.rows(side))
            metrics = evaluate(features[rows], torch.from_numpy(divided.labels)[rows, 0])
            values += [f"{100 * metrics[key]:.1f}" for key in METRICS.values()]
        print(f"| {number} | {level['distance']:.3f} | {' | '.join(values)} |")


def train_losses(levels: list[dict[str, float]], output: Path, cache: str) -> None:
    """Train what is missing, and print the table of the losses."""
    splits = output / "splits"
    runs = {(level, loss): RunFolder(output / f"level-{level}" / loss) for level in LEVELS for loss in LOSSES}
    commands = [
        [
            *("train", "dataset=emoji", "frozen=true", f"loss={loss}", "seed=0", cache, *UNUSED),
            *(f"dataset.class_splits={splits / f'shift-{level}.csv'}", f"hydra.run.dir={run.path}"),
        ]
        for (level, loss), run in runs.items()
        if not run.is_finished
    ]
    if run_forks(commands, report, jobs=1):
        sys.exit("a run failed; the same command goes on")
    print_table(levels, runs)


def report(line: str) -> None:
    """Print the line of a command that begins."""
    print(line, flush=True)


def print_table(levels: list[dict[str, float]], runs: dict[tuple[int, str], RunFolder]) -> None:
    """Print recall@1 and MAP@R in percent: of the raw features and of each loss, at each level."""
    print(f"| level | distance | metric | raw features | {' | '.join(f'`{loss}`' for loss in LOSSES)} |")
    print(f"| ---: | ---: | --- |{' ---: |' * (len(LOSSES) + 1)}")
    for level in LEVELS:
        for name, key in METRICS.items():
            raw = json.loads(runs[level, LOSSES[0]].raw_metrics_file.read_text())[key]
            values = [raw, *(runs[level, loss].metrics()[key] for loss in LOSSES)]
            shown = " | ".join(f"{100 * value:.1f}" for value in values)
            print(f"| {level} | {levels[level]['distance']:.3f} | {name} | {shown} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder of the splits, the features and the runs")
    parser.add_argument("--raw", action="store_true", help="test the features before any training, and train nothing")
    arguments = parser.parse_args()
    main(arguments.output, is_raw=arguments.raw)
