"""Kill a run of three stages at named points, resume it, and compare the results bit for bit.

python scripts/kill_and_resume.py                 # 40 kills; a quarter of an hour on two cores
python scripts/kill_and_resume.py --kills 3

The run is experiment=lns/emoji/rnn on a part of the data, with a few small steps in each stage and new neighbors in
the middle of a stage. `tests/kill_points.py` has the points, such as "after last.ckpt is replaced". A first run counts
how often each point is reached. Then the script kills a run at each point near the beginning, the middle and
the end of the run. Every second run accumulates the gradients of two batches. The exit code is 1 if a resumed run
differs from the uninterrupted one.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kill_points import POINTS, count_points
from runs import assert_same_run, kill_at, last
from small_emoji import slice_of_emoji

from dml.commands import main as dml
from dml.runtime.run_folder import RunFolder

STEPS = 8
ARGUMENTS = [
    *("experiment=lns/emoji/rnn", "dataset.counts=null", "transform.size=32", "model.embed_dim=8"),
    *("stages.n_pair.sampler.classes_per_batch=8", "sampler.batch_size=16", "training.bank_every_n_steps=4"),
    *(f"stages.{stage}.trainer.max_steps={STEPS}" for stage in ("n_pair", "lns", "rnn")),
    *("trainer.val_check_interval=3", "trainer.log_every_n_steps=1", "checkpoints.every_n_steps=1"),
    *("evaluation.metrics=[recall]", "evaluation.report={neighbors:2,map:false,seed:0}"),
]
BATCHES_PER_STEP = (1, 2)
MOMENTS = (0.0, 0.5, 1.0)
"""Shares of the occurrences of a point after which a run is killed there."""


def finish(*arguments: str, prepare: Callable[[], Any] = dict) -> Any:
    """Run ``train.py`` without output to its end, in a copy of this process, which has loaded the libraries.

    The result of ``prepare`` is returned, which the copy calls before the training.
    """

    def child(connection: Connection) -> None:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        prepared = prepare()
        sys.argv = ["train.py", *arguments]
        dml("train")
        connection.send(prepared)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"exit code {process.exitcode}: train.py {' '.join(arguments)}")
    return receiver.recv()


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

        def accumulating(batches: int, run_folder: Path) -> list[str]:
            accumulation = [f"sampler.batches_per_epoch={4 * batches}", f"trainer.accumulate_grad_batches={batches}"]
            return [*arguments, *accumulation, f"hydra.run.dir={run_folder}"]

        for batches in BATCHES_PER_STEP:
            counts[batches] = finish(*accumulating(batches, folder / f"uninterrupted_{batches}"), prepare=count_points)
        for made, (batches, name, occurrence) in enumerate(islice(plan_kills(counts), kills), start=1):
            killed, place = folder / f"killed_{made}", "before any checkpoint"
            kill_at(name, occurrence, *accumulating(batches, killed))
            if has_checkpoint := RunFolder(killed).last_checkpoint.exists():
                place = f"stage {last(killed)['run']['stage']}, step {last(killed)['global_step']}"
            can_resume = has_checkpoint or RunFolder(killed).has_configuration
            finish(*([f"resume={killed}"] if can_resume else accumulating(batches, killed)))
            try:
                assert_same_run(folder / f"uninterrupted_{batches}", killed)
                verdict = "the same bit for bit"
            except AssertionError as error:
                failed, verdict = failed + 1, f"DIFFERS: {error}"
            print(f"{made:>3}: {batches} a step, {name} ({occurrence}), {place}: {verdict}", flush=True)
    print(f"{made - failed} of {made} the same, in {time.perf_counter() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
