"""Kill a run of three stages at named points, resume it, and compare the results bit for bit.

python scripts/kill_and_resume.py                 # 40 kills; a quarter of an hour on two cores
python scripts/kill_and_resume.py --kills 3

The run is experiment=lns/emoji/rnn on a part of the data, with a few small steps in each stage and new neighbors in
the middle of a stage. `tests/kill_points.py` has the points, such as "after last.ckpt is replaced". A first run counts
how often each point is reached. Then the script kills a run at each point near the beginning, the middle and
the end of the run. Every second run accumulates the gradients of two batches. The exit code is 1 if a resumed run
differs from the uninterrupted one.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kill_points import POINTS, count_points, die_at
from small_emoji import slice_of_emoji

from dml.commands import main as dml
from dml.runtime.run_folder import RunFolder

STEPS = 8
ARGUMENTS = [
    "experiment=lns/emoji/rnn",
    "dataset.counts=null",
    "transform.size=32",
    "model.embed_dim=8",
    "stages.n_pair.sampler.classes_per_batch=8",
    "sampler.batch_size=16",
    *(f"stages.{stage}.trainer.max_steps={STEPS}" for stage in ("n_pair", "lns", "rnn")),
    "training.bank_every_n_steps=4",
    "trainer.val_check_interval=3",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=1",
    "evaluation.metrics=[recall]",
    "evaluation.report={neighbors:2,map:false,seed:0}",
]
BATCHES_PER_STEP = (1, 2)
MOMENTS = (0.0, 0.5, 1.0)
"""Shares of the occurrences of a point after which a run is killed there."""

Prepare = Callable[[], Any]


def run(*arguments: str, prepare: Prepare = dict) -> tuple[int, Any]:
    """Run ``train.py`` without output in a copy of this process, which has loaded the libraries.

    Args:
        arguments: arguments of the command line.
        prepare: function that the copy calls before the training; its result is sent back at the end.

    Returns:
        The exit code, and the result of ``prepare``; None if the copy died before it could send the result.
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
    """Run ``train.py`` to its end, which must be a success, and return the result of ``prepare``."""
    code, sent = run(*arguments, prepare=prepare)
    if code:
        sys.exit(f"failed with exit code {code}: train.py {' '.join(arguments)}")
    return sent


def load_last_checkpoint(folder: Path) -> dict[str, Any]:
    """Load the last checkpoint of a run; {} if the run has none."""
    path = RunFolder(folder).last_checkpoint
    return torch.load(path, weights_only=True) if path.exists() else {}


def find_differences(uninterrupted: Path, resumed: Path) -> list[str]:
    """Name what differs between two finished runs: weights, states of the optimizer and the callbacks, results."""
    expected_run, resumed_run = RunFolder(uninterrupted), RunFolder(resumed)
    pairs = {
        "metrics.json": (expected_run.metrics(), resumed_run.metrics()),
        "metrics.csv": (expected_run.history(), resumed_run.history()),
    }
    checkpoints = load_last_checkpoint(uninterrupted), load_last_checkpoint(resumed)
    for part in ("state_dict", "optimizer_states", "callbacks", "lr_schedulers"):
        pairs[part] = (checkpoints[0][part], checkpoints[1][part])
    different = [name for name, (expected, value) in pairs.items() if not are_equal(expected, value)]
    return different + [str(path.relative_to(resumed)) for path in resumed.rglob("*.partial")]


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two nested values are equal, tensors bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(are_equal, first, second))
    return bool(first == second)


def plan_kills(counts: dict[int, Counter[str]]) -> Iterator[tuple[int, str, int]]:
    """Yield (batches in a step, point, occurrence), every point once before any point comes a second time."""
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
    """Make the kills and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="number of kills")
    kills = parser.parse_args().kills
    began, made, failed, counts = time.perf_counter(), 0, 0, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = [*ARGUMENTS, f"dataset.root={slice_of_emoji(folder / 'emoji.zip')}"]

        def accumulating(batches: int) -> list[str]:
            epoch = f"sampler.batches_per_epoch={4 * batches}"
            return [*arguments, epoch, f"trainer.accumulate_grad_batches={batches}"]

        for batches in BATCHES_PER_STEP:
            run_folder = f"hydra.run.dir={folder / f'uninterrupted_{batches}'}"
            counts[batches] = finish(*accumulating(batches), run_folder, prepare=count_points)
        for made, (batches, name, occurrence) in enumerate(islice(plan_kills(counts), kills), start=1):
            killed = folder / f"killed_{made}"
            code, _ = run(
                *accumulating(batches),
                f"hydra.run.dir={killed}",
                prepare=lambda name=name, occurrence=occurrence: die_at(name, occurrence),  # type: ignore[misc]
            )
            if code != -signal.SIGKILL:
                sys.exit(f"{name}, the {occurrence}th time: ended with exit code {code} instead of being killed")
            checkpoint = load_last_checkpoint(killed)
            place = (
                f"stage {checkpoint['run']['stage']}, step {checkpoint['global_step']}"
                if checkpoint
                else "before any checkpoint"
            )
            can_resume = bool(checkpoint) or RunFolder(killed).has_configuration
            restart = [*accumulating(batches), f"hydra.run.dir={killed}"]
            finish(*([f"resume={killed}"] if can_resume else restart))
            wrong = find_differences(folder / f"uninterrupted_{batches}", killed)
            failed += bool(wrong)
            verdict = f"DIFFERS in {', '.join(wrong)}" if wrong else "the same bit for bit"
            print(f"{made:>3}: {batches} a step, {name} ({occurrence}), {place}: {verdict}", flush=True)
    print(f"{made - failed} of {made} the same, in {time.perf_counter() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
