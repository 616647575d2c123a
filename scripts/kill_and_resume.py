"""Kills a run of three stages at named points, resumes it, and compares what it ends with bit for bit.

python scripts/kill_and_resume.py                 # 40 kills; a quarter of an hour on two cores
python scripts/kill_and_resume.py --kills 3

The run is experiment=lns/emoji/rnn on a slice of the data, with a few small steps a stage and new neighbours in the
middle of a stage. The points are those of `kill_points.py`, such as "after last.ckpt is replaced". A first run tells
how often each is reached; the kills then go through all of them, once at the beginning, the middle and the end of the
run, by turns with one batch a step and with two (``accumulate_grad_batches``). Ends with exit code 1 if a resumed run
differs from the uninterrupted one.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from kill_points import POINTS, count_points, die_at
from small_emoji import slice_of_emoji

from dml.ops.run_folder import RunFolder
from dml.run import main as dml

STEPS = 8
ARGUMENTS = [
    "experiment=lns/emoji/rnn",
    "dataset.counts=null",
    "transform.size=32",
    "model.embed_dim=8",
    "stages.n_pair.sampler.classes_per_batch=8",
    "sampler.batch_size=16",
    *(f"stages.{stage}.trainer.max_steps={STEPS}" for stage in ("n_pair", "lns", "rnn")),
    "stored.every_n_steps=4",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=1",
    "evaluation.metrics=[recall]",
    "evaluation.report=null",
]
BATCHES_PER_STEP = (1, 2)
MOMENTS = (0.0, 0.5, 1.0)
"""Parts of a point's occurrences after which the run is killed there."""
PATHS = ("best_model_path", "best_k_models", "kth_best_model_path", "last_model_path", "dirpath")
"""What a checkpoint says of the folder that it was written to."""

Prepare = Callable[[], Any]


def run(*arguments: str, prepare: Prepare = dict) -> tuple[int, Any]:
    """Runs ``train.py``, silent, in a copy of this process, which has loaded the libraries -> exit code, what it sends.

    Args:
        arguments: of the command line.
        prepare: is called in the copy before; what it returns is sent back at the end.
    """

    def child(connection: Connection) -> None:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        prepared = prepare()
        sys.argv = ["train.py", *arguments]
        dml("train")
        connection.send(prepared)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    process.join()
    return process.exitcode or 0, receiver.recv() if receiver.poll() else None


def finish(*arguments: str, prepare: Prepare = dict) -> Any:
    """As `run`, for a run that has to come to its end -> what it sends."""
    code, sent = run(*arguments, prepare=prepare)
    if code:
        sys.exit(f"failed with exit code {code}: train.py {' '.join(arguments)}")
    return sent


def last(folder: Path) -> dict[str, Any]:
    """The run's last checkpoint; empty if it has none."""
    path = RunFolder(folder).last_checkpoint
    return torch.load(path, weights_only=True) if path.exists() else {}


def differences(whole: Path, resumed: Path) -> list[str]:
    """What differs between two finished runs: weights, the optimizer's state, callbacks' states, and results."""
    one, other = RunFolder(whole), RunFolder(resumed)
    pairs = {"metrics.json": (one.metrics(), other.metrics()), "metrics.csv": (one.history(), other.history())}
    checkpoints = last(whole), last(resumed)
    for part in ("state_dict", "optimizer_states", "callbacks", "lr_schedulers"):
        pairs[part] = (checkpoints[0][part], checkpoints[1][part])
    found = [name for name, (expected, value) in pairs.items() if not same(expected, value)]
    return found + [str(path.relative_to(resumed)) for path in resumed.rglob("*.partial")]


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal, tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one if key not in PATHS)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def kills(counts: dict[int, Counter[str]]) -> Iterator[tuple[int, str, int]]:
    """(batches a step, point, occurrence): every point before any of them comes a second time."""
    for turn, moment in enumerate(MOMENTS):
        for number, name in enumerate(POINTS):
            batches = BATCHES_PER_STEP[(turn + number) % len(BATCHES_PER_STEP)]
            times = counts[batches][name]
            occurrence = 1 + round(moment * (times - 1))
            if not times:
                sys.exit(f"the run never comes to: {name}")
            if turn == 0 or occurrence != 1 + round(MOMENTS[turn - 1] * (times - 1)):
                yield batches, name, occurrence


def main() -> None:
    """Prints a line for each kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    asked = parser.parse_args()
    began, failed, counts = time.perf_counter(), 0, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = [*ARGUMENTS, f"dataset.root={slice_of_emoji(folder / 'emoji.zip')}"]

        def accumulating(batches: int) -> list[str]:
            epoch = f"sampler.batches_per_epoch={4 * batches}"
            return [*arguments, epoch, f"trainer.accumulate_grad_batches={batches}"]

        for batches in BATCHES_PER_STEP:
            whole = f"hydra.run.dir={folder / f'whole_{batches}'}"
            counts[batches] = finish(*accumulating(batches), whole, prepare=count_points)
        for number, (batches, name, occurrence) in zip(range(asked.kills), kills(counts), strict=False):
            killed = folder / f"killed_{number}"
            code, _ = run(
                *accumulating(batches),
                f"hydra.run.dir={killed}",
                prepare=lambda name=name, occurrence=occurrence: die_at(name, occurrence),  # type: ignore[misc]
            )
            if code != -signal.SIGKILL:
                sys.exit(f"{name}, the {occurrence}th time: ended with exit code {code} instead of being killed")
            at = last(killed)
            place = f"stage {at['run']['stage']}, step {at['global_step']}" if at else "before any checkpoint"
            going_on = [f"resume={killed}"] if at or RunFolder(killed).has_configuration else accumulating(batches)
            finish(*going_on, *([] if going_on[0].startswith("resume") else [f"hydra.run.dir={killed}"]))
            wrong = differences(folder / f"whole_{batches}", killed)
            failed += bool(wrong)
            verdict = f"DIFFERS in {', '.join(wrong)}" if wrong else "the same bit for bit"
            print(f"{number + 1:>3}: {batches} a step, {name} ({occurrence}), {place}: {verdict}", flush=True)
    print(f"{asked.kills - failed} of {asked.kills} the same, in {time.perf_counter() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
