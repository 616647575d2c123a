"""Installs the optional extras beside each other and runs each of them once: launchers, Optuna, loggers.

python scripts/check_extras.py                              minutes; a virtual environment of 6 GB in a temporary folder
python scripts/check_extras.py --python .venv/bin/python    an environment that has the package with these extras
python scripts/check_extras.py --only ray                   the checks whose name holds "ray"

The package is installed as a wheel with constraints.txt. Each check is a command of `dml`, run in a folder without the
checkout, and has to leave finished runs. A check that fails shows its output; the exit code is then 1.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("joblib", "optuna", "ray", "submitit", "tensorboard", "wandb")
SMALL = (
    *("transform.size=32", "model=small_cnn", "sampler.classes_per_batch=4", "data.num_workers=0"),
    *("trainer.accelerator=cpu", "trainer.max_steps=2", "trainer.val_check_interval=2"),
    *("evaluation.raw=false", "evaluation.clustering=false", "evaluation.report.map=false"),
)
SEEDS = ("seed=0,1",)
OPTUNA = ("sweep=optuna", "hydra.sweeper.n_trials=2")
AT_ONCE = (*OPTUNA, "hydra.sweeper.n_jobs=2")
LOCAL = "hydra/launcher=submitit_local"
"""Slurm's launcher, starting processes on this machine instead of Slurm's jobs."""


@dataclass(frozen=True)
class Check:
    """A command to check: a sweep, or a single run.

    Args:
        name: name of the check, as it is printed.
        overrides: overrides of the command, beside `SMALL`.
        runs: number of finished runs that the command has to leave.
        files: patterns of files that have to be in the folder of the run or of the sweep.
    """

    name: str
    overrides: tuple[str, ...]
    runs: int = 2
    files: tuple[str, ...] = ()

    def command(self, python: Path, folder: Path) -> list[str]:
        """Return the command line that leaves the runs in ``folder``."""
        folder_override = ["-m", f"hydra.sweep.dir={folder}"] if self.runs > 1 else [f"hydra.run.dir={folder}"]
        return [str(python), "-m", "dml", "train", *folder_override, *SMALL, *self.overrides]


CHECKS = (
    Check("launcher=joblib", ("launcher=joblib", *SEEDS)),
    Check("launcher=ray, local cluster", ("launcher=ray", *SEEDS)),
    Check("launcher=submitit_local", (LOCAL, *SEEDS)),
    Check("sweep=optuna", OPTUNA, files=("optimization_results.yaml",)),
    Check("sweep=optuna launcher=joblib", (*AT_ONCE, "launcher=joblib"), files=("optimization_results.yaml",)),
    Check("sweep=optuna launcher=ray", (*AT_ONCE, "launcher=ray"), files=("optimization_results.yaml",)),
    Check("sweep=optuna launcher=submitit_local", (*AT_ONCE, LOCAL), files=("optimization_results.yaml",)),
    Check("logger=tensorboard", ("logger=tensorboard",), 1, ("tensorboard/events.*",)),
    Check("logger=wandb, offline", ("logger=wandb",), 1, ("wandb/offline-run-*/*.wandb",)),
)
SLURM = ("launcher=submitit", "--cfg", "hydra", "--package", "hydra.launcher")


def main() -> int:
    """Read the command line and run the checks -> the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of an environment with the package and its extras")
    parser.add_argument("--only", default="", help="a part of the names of the checks that are run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dml-extras-") as name:
        folder = Path(name)
        python = arguments.python.absolute() if arguments.python else install(folder / "environment")
        results = [run(check, python, folder / "work") for check in CHECKS if arguments.only in check.name]
        if arguments.only in "launcher=submitit, Slurm":
            results.append(compose_slurm(python, folder / "work"))
    return 0 if all(results) else 1


def install(environment: Path) -> Path:
    """Make a virtual environment with the package and its extras -> its Python."""
    with report("pip install"):
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints]
        subprocess.run([*command, f"{ROOT}[{','.join(EXTRAS)}]"], check=True)  # noqa: S603
    return python


def run(check: Check, python: Path, work: Path) -> bool:
    """Run a check -> whether it has left what it has to."""
    folder = work / f"{CHECKS.index(check)}"
    work.mkdir(exist_ok=True)
    with report(check.name) as lines:
        output, code = execute(check.command(python, folder), work)
        runs = len(list(folder.rglob("metrics.json")))
        missing = [pattern for pattern in check.files if not any(folder.glob(pattern))]
        succeeded = code == 0 and runs == check.runs and not missing
        lines.append(f"{runs} of {check.runs} runs finished")
        if not succeeded:
            lines.append(f"FAILED with exit code {code}, missing {missing}\n{output}")
    return succeeded


def compose_slurm(python: Path, work: Path) -> bool:
    """Compose launcher=submitit with the plugin, which has to know every setting -> whether it does."""
    work.mkdir(exist_ok=True)
    with report("launcher=submitit, Slurm") as lines:
        output, code = execute([str(python), "-m", "dml", "train", *SLURM], work)
        succeeded = code == 0 and "SlurmLauncher" in output
        lines.append("composed, not run" if succeeded else f"FAILED with exit code {code}\n{output}")
    return succeeded


def execute(command: list[str], work: Path) -> tuple[str, int]:
    """Run a command in a folder -> what it printed and its exit code."""
    done = subprocess.run(  # noqa: S603
        command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout, done.returncode


@contextmanager
def report(name: str) -> Iterator[list[str]]:
    """Print a name, how long the block took, and the lines that it adds to the list."""
    lines: list[str] = []
    started = time.perf_counter()
    yield lines
    print(f"{name:40}{time.perf_counter() - started:6.0f} s  {'  '.join(lines)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
