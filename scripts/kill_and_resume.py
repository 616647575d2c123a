"""Kills a run of three stages at random moments, resumes it, and compares what it ends with bit for bit.

python scripts/kill_and_resume.py                 # twenty times; ten minutes on two cores
python scripts/kill_and_resume.py --times 3 --seed 1

The run is experiment=lns/emoji/rnn on a slice of the data, with a few small steps a stage and new neighbours in the
middle of a stage; the moments are drawn evenly over its whole duration, from the making of its folder to the writing
of its results. Ends with exit code 1 if a resumed run differs from the uninterrupted one.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_emoji import slice_of_emoji

ROOT = Path(__file__).resolve().parents[1]
ARGUMENTS = [
    "experiment=lns/emoji/rnn",
    "dataset.counts=null",
    "transform.size=32",
    "model.embed_dim=8",
    "stages.n_pair.sampler.classes_per_batch=8",
    "sampler.batch_size=16",
    "sampler.batches_per_epoch=6",
    "stored.every_n_steps=6",
    *(f"stages.{stage}.trainer.max_steps=12" for stage in ("n_pair", "lns", "rnn")),
    "trainer.val_check_interval=4",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=1",
    "evaluation.metrics=[recall]",
    "evaluation.raw=false",
    "evaluation.report=null",
]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """A training in a process group of its own, silent."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, start_new_session=True)  # noqa: S603


def await_folder(process: subprocess.Popen[bytes], folder: Path) -> float:
    """Waits until a run that was started has its folder -> the time.

    Libraries are loaded before; killed then, it would only have to be started again.
    """
    while not (folder / ".hydra" / "overrides.yaml").exists():
        if process.poll() is not None:
            sys.exit(f"failed: {process.args!r}")
        time.sleep(0.01)
    return time.perf_counter()


def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for a run's end."""
    if process.wait():
        sys.exit(f"failed: {process.args!r}")


def last(folder: Path) -> dict[str, Any] | None:
    """The run's last checkpoint, if it has one."""
    path = folder / "checkpoints" / "last.ckpt"
    checkpoint: dict[str, Any] | None = torch.load(path, weights_only=True) if path.exists() else None
    return checkpoint


def differences(whole: Path, resumed: Path) -> list[str]:
    """What differs between two finished runs: weights, the optimizer's state, what is stored, and results."""
    found = [
        name for name in ("metrics.json", "metrics.csv") if (whole / name).read_text() != (resumed / name).read_text()
    ]
    parts = ("state_dict", "optimizer_states", "callbacks", "lr_schedulers")
    one, other = (last(folder) or {} for folder in (whole, resumed))
    return found + [part for part in parts if not same(one[part], other[part])]


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal, tensors bit for bit; paths are of the run's own folder."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one if key not in OF_THE_FOLDER)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


OF_THE_FOLDER = ("best_model_path", "best_k_models", "kth_best_model_path", "last_model_path", "dirpath")


def main() -> None:
    """Prints a line for each killing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    asked = parser.parse_args()
    moments = np.random.default_rng(asked.seed)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*ARGUMENTS, f"dataset.root={slice_of_emoji(Path(folder) / 'emoji.zip')}"]
        whole = Path(folder) / "whole"
        process = start(*arguments, f"hydra.run.dir={whole}")
        began = await_folder(process, whole)
        finish(process)
        seconds = time.perf_counter() - began
        print(f"the whole run takes {seconds:.1f} s")
        for number in range(asked.times):
            killed, moment = Path(folder) / f"killed_{number}", moments.uniform(0, seconds)
            process = start(*arguments, f"hydra.run.dir={killed}")
            await_folder(process, killed)
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
            ended = process.wait() != -signal.SIGKILL
            place = last(killed)
            reached = (
                f"stage {place['run']['stage']}, step {place['global_step']}" if place else "before any checkpoint"
            )
            finish(start(f"resume={killed}"))
            wrong = differences(whole, killed)
            failed += bool(wrong)
            verdict = f"DIFFERS in {', '.join(wrong)}" if wrong else "the same bit for bit"
            print(
                f"{number + 1:>3}: {'ended' if ended else 'killed'} after {moment:5.1f} s, {reached}: {verdict}",
                flush=True,
            )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
