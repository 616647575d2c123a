"""Check what can only be checked on GPUs.

python scripts/check_gpu.py                              # all GPUs of this machine
python scripts/check_gpu.py --steps 50 model=resnet50    # overrides as for train.py
python scripts/check_gpu.py --photographs --checks float32,compiled    # two of the checks, on photographs
python scripts/check_gpu.py --accelerator cpu --small    # the same checks on a few images, without a GPU

The script trains emoji in float32, in bfloat16 and compiled. It stops the float32 run half way and resumes it. It
tests a checkpoint on the GPU and on the CPU; the metrics may differ by 1e-4. It trains the heads alone, and on all GPUs
together. At the end it prints a table. The exit code is 1 if a check failed. --output holds the run folders.
--photographs writes JPEGs of 500 x 375 pixels, and trains on them instead of emoji.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from photographs import write_photographs
from rich.console import Console
from rich.table import Table
from small_emoji import slice_of_emoji

from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.training.checkpoints import read_checkpoint

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 1e-4
SMALL = [
    *("dataset.counts=null", "transform.size=32", "model.embed_dim=8", "data.num_workers=0"),
    *("sampler.classes_per_batch=4", "sampler.images_per_class=2"),
]
COMMON = [
    "scheduler=constant",  # a run that is stopped half way has then taken the first half of the same schedule
    *("trainer.val_check_interval=null", "evaluation.raw=false", "evaluation.report=null", "evaluation.sheet=null"),
    "evaluation.clustering=false",  # FAISS's k-means differs between devices
    "checkpoints.beginning=false",
]
PHOTOGRAPHS, PER_CLASS = 2048, 32
CHECKS = ("float32", "bfloat16", "compiled", "resumed", "tested", "heads", "processes")
"""The checks; "resumed" and "tested" look at the float32 run."""


def execute(script: str, arguments: Sequence[str]) -> None:
    """Run a script of the project as a user does."""
    command = [sys.executable, str(ROOT / f"{script}.py"), *arguments]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


class Row(NamedTuple):
    """A row of the printed table."""

    name: str
    verdict: str  # "ok", "skipped", or "failed"
    remark: str = ""  # the reason of the verdict, or what was compared


@dataclass(frozen=True)
class Checks:
    """The checks of one machine."""

    folder: Path  # of the runs
    accelerator: str  # "cuda" or "cpu"
    devices: int  # processes of the last check, one for each GPU
    steps: int  # of each training
    overrides: Sequence[str]  # of every run
    execute: Callable[[str, Sequence[str]], None] = execute  # runs a script with arguments

    def run(self, chosen: Sequence[str] = CHECKS) -> Iterator[Row]:
        """Run the chosen checks, each by itself: one that fails doesn't keep the others from running."""
        for name in chosen:
            try:
                verdict, remark = self._check(name)
            except (subprocess.CalledProcessError, InputError, OSError, KeyError) as error:
                verdict, remark = "failed", " ".join(str(error).split())[-200:]
            yield Row(name, verdict, remark)

    def _check(self, name: str) -> tuple[str, str]:
        if name == "resumed":
            return self.check_resuming()
        if name == "tested":
            return self.check_evaluation()
        if name == "processes" and self.devices < 2:
            return "skipped", "needs two GPUs"
        graphs = "true" if self.accelerator == "cuda" else "{backend: aot_eager}"  # inductor takes a minute on a CPU
        # the heads' features for the validation are computed during the training
        heads = ["training.frozen=true", "data.cache=null", f"trainer.val_check_interval={self.steps}"]
        overrides = {
            "float32": [],
            "bfloat16": ["trainer.precision=bf16-mixed"],
            "compiled": [f"training.compile={graphs}"],
            "heads": heads,
            "processes": ["trainer=ddp", f"trainer.devices={self.devices}"],
        }
        self._train(self.folder / name, self.steps, *overrides[name])
        return "ok", f"recall@1 {RunFolder(self.folder / name).metrics()['level0/recall@1']:.3f}"

    def _train(self, folder: Path, steps: int, *overrides: str) -> None:
        lengths = [f"trainer.max_steps={steps}", f"checkpoints.every_n_steps={self.steps}"]
        device = f"trainer.accelerator={self.accelerator}"
        self.execute("train", [f"hydra.run.dir={folder}", device, *lengths, *COMMON, *self.overrides, *overrides])

    def check_resuming(self) -> tuple[str, str]:
        """Stop a run half way, resume it, and compare its weights with those of the float32 run."""
        folder = self.folder / "resumed"
        self._train(folder, self.steps // 2)
        self.execute("train", [f"resume={folder}", f"trainer.max_steps={self.steps}"])
        straight = read_checkpoint(RunFolder(self.folder / "float32").last_checkpoint)
        resumed = read_checkpoint(RunFolder(folder).last_checkpoint)
        if resumed["global_step"] != straight["global_step"]:
            return "failed", f"ended at step {resumed['global_step']}"
        difference = find_largest_difference(straight["state_dict"], resumed["state_dict"])
        # a GPU may take sums in another order in each run
        verdict = "ok" if difference == 0 or self.accelerator != "cpu" else "failed"
        return verdict, f"weights differ by {difference:.1e} at most"

    def check_evaluation(self) -> tuple[str, str]:
        """Test the float32 run's checkpoint on both devices."""
        checkpoint = RunFolder(self.folder / "float32").last_checkpoint
        tested = []
        for number, accelerator in enumerate((self.accelerator, "cpu")):
            folder = self.folder / f"tested_{accelerator}_{number}"
            arguments = [f"checkpoint={checkpoint}", f"hydra.run.dir={folder}", f"trainer.accelerator={accelerator}"]
            self.execute("evaluate", arguments)
            tested.append(RunFolder(folder).metrics())
        difference = find_largest_difference(*tested)
        return "ok" if difference <= TOLERANCE else "failed", f"metrics differ by {difference:.1e} at most"


def find_largest_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Return the largest difference between numbers, or tensors, of one name; other values are left out.

    It is infinite if a name, or a finite number, is missing.
    """
    differences = [0.0]
    for name in first.keys() | second.keys():
        values = [values.get(name) for values in (first, second)]
        if all(isinstance(value, str | bool) for value in values):
            continue
        if any(value is None for value in values):
            return float("inf")
        left, right = (torch.as_tensor(value, dtype=torch.float64) for value in values)
        difference = (left - right).abs().max().item() if left.numel() else 0.0
        differences.append(difference if difference == difference else float("inf"))
    return max(differences)


def describe_machine(accelerator: str) -> str:
    """Return the devices and torch's version in one line."""
    if accelerator == "cpu":
        return f"CPU, torch {torch.__version__}"
    names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return f"{torch.cuda.device_count()} x {', '.join(sorted(names))}, torch {torch.__version__}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", choices=("cuda", "cpu"), default="cuda", help="device to check (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="steps of each training (%(default)s)")
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--small", action="store_true", help="train on a few small images")
    images.add_argument("--photographs", action="store_true", help=f"train on {PHOTOGRAPHS:,} photographs")
    names = f"some of {', '.join(CHECKS)} (all); resumed and tested compare with float32"
    parser.add_argument("--checks", type=lambda text: text.split(","), default=CHECKS, metavar="A,B", help=names)
    parser.add_argument("--output", type=Path, help="an empty folder for the runs; by default a temporary one")
    parser.add_argument("overrides", nargs="*", help="overrides of every run, as for train.py")
    return parser.parse_args()


def main() -> None:
    """Run all checks and print their table."""
    arguments = parse_arguments()
    if arguments.accelerator == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA GPU; --accelerator cpu --small runs the same checks without one")
    folder = (arguments.output or Path(tempfile.mkdtemp(prefix="check_gpu_"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    overrides = list(arguments.overrides)
    if arguments.small:
        overrides = [f"dataset.root={slice_of_emoji(folder / 'emoji.zip')}", *SMALL, *overrides]
    if arguments.photographs:
        names = (f"{i // PER_CLASS:02}/{i % PER_CLASS:02}.jpg" for i in range(PHOTOGRAPHS))
        write_photographs([folder / "photographs" / name for name in names])
        overrides = ["dataset=folder", f"dataset.root={folder / 'photographs'}", *overrides]
    devices = torch.cuda.device_count() if arguments.accelerator == "cuda" else 2
    console, table = Console(highlight=False, width=120), Table("check", "verdict", "remark")
    console.print(describe_machine(arguments.accelerator))
    rows, started = [], perf_counter()
    for row in Checks(folder, arguments.accelerator, devices, arguments.steps, overrides).run(arguments.checks):
        console.print(f"{row.name}: {row.verdict}, after {perf_counter() - started:.0f} s")
        rows.append(row)
        table.add_row(*row)
        (folder / "checks.json").write_text(json.dumps([row._asdict() for row in rows], indent=2), encoding="utf-8")
    console.print(table)
    console.print(f"all that the runs left: {folder}")
    sys.exit(any(row.verdict == "failed" for row in rows))


if __name__ == "__main__":
    main()
