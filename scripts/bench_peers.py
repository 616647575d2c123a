"""Compare dml with other libraries for metric learning, and write the tables of docs/performance.md.

python scripts/bench_peers.py --photographs photos.csv    # half an hour on two idle cores; writes docs/peers.json
python scripts/bench_peers.py --quick                     # emoji, a few steps: minutes, prints the tables alone
python scripts/bench_peers.py --show                      # writes the page anew from docs/peers.json
python scripts/bench_peers.py --install                   # makes the environments of the other libraries

Every measurement is a process of its own in the peer's environment, and the peers take turns. docs/performance.md has
the method.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple

from bench import write_between
from measuring import describe_machine
from peers.page import MARKERS, check_agreement, format_page
from peers.protocol import Job

from dml.runtime.errors import InputError

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "docs" / "peers.json", ROOT / "docs" / "performance.md"
REQUIREMENTS = Path(__file__).parent / "peers" / "requirements"
ENVIRONMENTS = ROOT / "build" / "peers"
PEERS = ("dml", "pml", "oml", "st")
CONTIGUOUS = "dml_contiguous"
"""dml with the memory format of the peers; only its trainings are measured."""
SIZES = {"emoji": 64, "photographs": 112}
SLOWEST = 1800
"""Seconds after which a process is ended."""


class Measurement(NamedTuple):
    """What each peer measures once in a round: the task of a `Job`, one of `SIZES`, and the number of rounds."""

    task: str
    data: str
    rounds: int = 3


MEASUREMENTS = (
    Measurement("train", "emoji"),
    Measurement("train", "photographs"),
    Measurement("evaluate", "emoji", rounds=2),
    Measurement("evaluate", "photographs", rounds=2),
    Measurement("recall", "emoji", rounds=1),
)


def list_processes(measurements: Sequence[Measurement], peers: Sequence[str]) -> list[tuple[int, str, Measurement]]:
    """Return round, peer and measurement of each process in order: the peers take turns within a measurement."""
    return [
        (number, peer, measurement)
        for number in range(max(measurement.rounds for measurement in measurements))
        for measurement in measurements
        if number < measurement.rounds
        for peer in peers
        if peer != CONTIGUOUS or measurement.task == "train"
    ]


def find_python(peer: str, environments: Path) -> Path:
    """Return the Python of a peer's environment; that of dml is the driver's own."""
    if peer.startswith("dml"):
        return Path(sys.executable)
    python = environments / peer / "bin" / "python"
    if not python.exists():
        raise InputError(f"{python}: no environment of {peer}; scripts/bench_peers.py --install makes it")
    return python


def install_environments(environments: Path) -> None:
    """Make the environment of each peer from its requirements file."""
    for peer in PEERS[1:]:
        subprocess.run([sys.executable, "-m", "venv", str(environments / peer)], check=True)  # noqa: S603
        install = ["-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS / f"{peer}.txt")]
        subprocess.run([str(find_python(peer, environments)), *install], check=True)  # noqa: S603


def run_process(module: str, python: Path, job: Job, *arguments: str) -> dict[str, Any]:
    """Run a module of scripts/peers on a job -> its results; if it fails, the end of its output is shown."""
    results = Path(job.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    file = results.with_suffix(".job")
    replace(job, started=time()).write(file)
    paths = [str(Path(__file__).parent), *([str(ROOT)] if python == Path(sys.executable) else [])]
    done = subprocess.run(  # noqa: S603
        [str(python), "-m", f"peers.{module}", str(file), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": str(job.threads), "PYTHONPATH": os.pathsep.join(paths)},
        cwd=results.parent,
        capture_output=True,
        text=True,
        timeout=SLOWEST,
        check=False,
    )
    if done.returncode or not results.exists():
        sys.stderr.write(f"{done.stdout[-2000:]}{done.stderr[-4000:]}\n")
        raise InputError(f"peers.{module}, {job.task}: exit code {done.returncode}; its output is above")
    parsed: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return parsed


def make_job(options: argparse.Namespace, task: str, data: str, *, channels_last: bool = True) -> Job:
    """Make the job of a process."""
    return Job(
        task=task,
        folder=str(options.environments / "data" / data),
        size=SIZES[data],
        steps=options.most_steps if task in ("recall", "export") else options.steps,
        warm_up=3,
        interval=options.every,
        target=options.target,
        workers=1,
        threads=options.threads,
        channels_last=channels_last,
        results=str(options.environments / "runs" / f"{os.getpid()}" / f"{data}_{task}_{time():.3f}.json"),
        started=0.0,
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Export the data, and run all processes -> the contents of docs/peers.json."""
    pythons = {peer: find_python(peer, options.environments) for peer in options.peers}
    sources = {"emoji": "emoji", **({"photographs": options.photographs} if options.photographs else {})}
    started, before = perf_counter(), os.getloadavg()
    counts = {
        data: run_process("exporting", Path(sys.executable), make_job(options, "export", data), source)["counts"]
        for data, source in sources.items()
    }
    measurements = [item._replace(rounds=min(item.rounds, options.rounds)) for item in MEASUREMENTS]
    runs, versions = [], {}
    for number, peer, item in list_processes([item for item in measurements if item.data in sources], options.peers):
        job = make_job(options, item.task, item.data, channels_last=peer == "dml")
        result = run_process(f"{peer.split('_')[0]}_peer", pythons[peer], job)
        versions[peer] = result.pop("versions")
        runs.append({"peer": peer, "round": number, **item._asdict(), "load": os.getloadavg()[0], **result})
        show_run(runs[-1])
    check_agreement(runs)
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": (perf_counter() - started) / 60,
        "machine": describe_machine(),
        "load_before": before,
        "load_after": os.getloadavg(),
        "settings": {name: getattr(options, name) for name in ("threads", "steps", "every", "target")} | {"workers": 1},
        "images": counts,
        "versions": versions,
        "runs": runs,
    }


def show_run(run: Mapping[str, Any]) -> None:
    """Print a line of a process."""
    names = ("images_per_s", "first_step_s", "evaluation_s", "target_s", "peak_mb", "load")
    values = ", ".join(f"{name} {run[name]:.1f}" for name in names if run.get(name) is not None)
    print(f"{run['round']} {run['task']:<9}{run['data']:<12}{run['peer']:<15}{values}", flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; ``--quick`` changes the defaults of the other options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--install", action="store_true", help="make the environments, and measure nothing")
    action.add_argument("--show", action="store_true", help="write the page from docs/peers.json, and measure nothing")
    action.add_argument("--quick", action="store_true", help="one short round on emoji, whose tables are only printed")
    parser.add_argument("--photographs", metavar="CSV", help="the second data set, a .csv file as for dataset=csv")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="folder of the environments")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=[*PEERS[:1], CONTIGUOUS, *PEERS[1:]])
    parser.add_argument("--rounds", type=int, default=3, help="most rounds of a measurement")
    parser.add_argument("--steps", type=int, default=13, help="steps of a training, three of them to warm up")
    parser.add_argument("--most-steps", type=int, default=200, help="most steps of the training to a recall@1")
    parser.add_argument("--every", type=int, default=25, help="steps between two validations of that training")
    parser.add_argument("--target", type=float, default=0.5, help="recall@1 on the validation split at which it ends")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch in each process")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.steps, options.most_steps, options.every, options.target = 1, 6, 10, 10, 0.0
        options.photographs = None
    options.environments = options.environments.absolute()
    options.photographs = options.photographs and os.path.abspath(options.photographs)
    return options


def main() -> None:
    """Run the command line; a mistake in it is one line."""
    options = parse_options()
    try:
        if options.install:
            install_environments(options.environments)
        elif options.quick:
            print(format_page(measure(options)))
        else:
            measured = json.loads(RESULTS.read_text(encoding="utf-8")) if options.show else measure(options)
            RESULTS.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
            write_between(PAGE, MARKERS, format_page(measured))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
