"""Rows about signals, at named points of a run and at random moments."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from kill_points import POINTS, Point, act_at, die_at

from dml.data.transforms import Resize
from dml.run import evaluate_job, final_test, jobs, prepare_job
from faults.commands import EndedCommand, RunningCommand, run
from faults.fixtures import Fixtures, long_train_arguments, prepare_arguments, train_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_clean, check_done, check_no_partial, check_told, find_run_difference

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: 137}
"""The exit codes that a shell expects after a signal."""
SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NAME": "train",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_NODELIST": "localhost",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""Environment variables of a process that srun started."""
SPREAD = 1.2
"""Seconds of a run within which signals are sent at random moments."""


def make_sender(number: int, *, everyone: bool = False) -> Callable[[], None]:
    """Return a function that sends a signal to this process, or to its whole process group."""

    def send() -> None:
        if everyone:
            os.killpg(os.getpgid(0), number)
        else:
            os.kill(os.getpid(), number)

    return send


def check_stopped(ended: EndedCommand, number: int) -> None:
    """Check that the command printed one line, that it was stopped, and ended with the exit code of the signal."""
    if number == signal.SIGKILL:
        if ended.code != CODES[signal.SIGKILL]:
            raise FailedError(f"exit code {ended.code} instead of a kill", ended)
        return
    check_told(ended, (CODES[signal.Signals(number)],))
    if not ended.err.lstrip().startswith("stopped"):
        raise FailedError("the line doesn't begin with: stopped", ended)


def resume_and_compare(attempt: Try, folder: Path, arguments: list[str], expected: Path, stopped: EndedCommand) -> str:
    """Resume a run that was stopped, check that it ends as the uninterrupted run, and return how the try held."""
    if (folder / "metrics.json").exists() and not (folder / "report.html").exists():
        raise FailedError("metrics.json is there before the report", stopped)
    has_begun = (folder / ".hydra" / "config.yaml").exists() or (folder / "checkpoints" / "last.ckpt").exists()
    ended = run("train.py", *([f"resume={folder}"] if has_begun else arguments), folder=attempt.folder)
    try:
        check_done(ended, folder)
    except FailedError as error:
        raise FailedError(f"going on: {error.why}", error.ended) from error
    if difference := find_run_difference(expected, folder):
        raise FailedError(f"went on, and ended {difference}", ended)
    return "stopped, and went on"


def check_stopped_or_finished(
    attempt: Try, ended: EndedCommand, number: int, folder: Path, arguments: list[str], expected: Path
) -> str:
    """Check that the run was stopped and can be resumed, or that it was finished before the signal came."""
    if ended.code == 0:
        check_clean(ended, folder)
        if difference := find_run_difference(expected, folder):
            raise FailedError(f"exit code 0, {difference}", ended)
        return "finished before"
    check_stopped(ended, number)
    if number != signal.SIGKILL:
        check_no_partial(folder, ended=ended)
    return resume_and_compare(attempt, folder, arguments, expected, ended)


def _stop_at_point(attempt: Try) -> str:
    fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
    counts = fixtures.counts
    names = [name for name in POINTS if counts.get(name)]
    number = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[attempt.number % 3]
    name = names[attempt.number // 3 % len(names)]
    occurrence = int(attempt.rng.integers(1, counts[name] + 1))

    def before() -> None:
        if number == signal.SIGKILL:
            die_at(name, occurrence)
        else:
            act_at(POINTS[name], occurrence, make_sender(number))

    arguments = train_arguments(fixtures.images, folder)
    ended = run("train.py", *arguments, folder=attempt.folder, before=before)
    try:
        return check_stopped_or_finished(attempt, ended, number, folder, arguments, fixtures.run)
    except FailedError as error:
        where = f"{signal.Signals(number).name} {name} ({occurrence})"
        raise FailedError(f"{where}: {error.why}", error.ended) from error


def _wait_for(running: RunningCommand, text: str) -> None:
    """Wait until a command has printed a text, or has ended."""
    while text not in running.read_output() and not running.has_ended():
        time.sleep(0.01)


def interrupt(attempt: Try, number: int, *, sends: int = 1, everyone: bool = False, fresh: bool = False) -> str:
    """Send a signal to a run at a random moment, once or several times."""
    fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
    arguments = long_train_arguments(fixtures.images, folder)
    running = RunningCommand("train.py", arguments, attempt.folder, fresh=fresh)
    _wait_for(running, "folder ")
    time.sleep(attempt.rng.uniform(0, SPREAD))
    for _ in range(sends):
        if not running.has_ended():
            running.signal(number, everyone=everyone)
        time.sleep(0.05)
    return check_stopped_or_finished(attempt, running.wait(), number, folder, arguments, fixtures.long_run)


def interrupt_in_slurm(attempt: Try, number: int) -> str:
    """Send SIGCONT and then the signal to a run, as `scancel` does to the only task of a job."""
    fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
    arguments = long_train_arguments(
        fixtures.images, folder, "trainer=slurm", "trainer.accelerator=cpu", "trainer.strategy=auto"
    )
    running = RunningCommand("train.py", arguments, attempt.folder, environment=SLURM)
    _wait_for(running, "folder ")
    time.sleep(attempt.rng.uniform(0, SPREAD))
    running.signal(signal.SIGCONT)
    running.signal(number)
    return check_stopped_or_finished(attempt, running.wait(), number, folder, arguments, fixtures.long_run)


def interrupt_sweep(attempt: Try, number: int) -> str:
    """Send a signal during the first of two runs of a sweep; the same command then has to finish both."""
    fixtures, sweep = Fixtures(attempt.fixtures), attempt.folder / "sweep"
    arguments = ["-m", *long_train_arguments(fixtures.images, None, "seed=0,1", f"hydra.sweep.dir={sweep}")]
    running = RunningCommand("train.py", arguments, attempt.folder)
    _wait_for(running, "folder ")
    time.sleep(attempt.rng.uniform(0, SPREAD / 2))
    running.signal(number, everyone=number == signal.SIGINT)
    ended = running.wait()
    if ended.code == 0:
        raise FailedError("exit code 0", ended)
    check_stopped(ended, number)
    again = run("train.py", *arguments, folder=attempt.folder)
    check_done(again, sweep)
    if difference := find_run_difference(fixtures.long_run, sweep / "0"):
        raise FailedError(f"started again, the first run ended {difference}", again)
    if not (sweep / "1" / "metrics.json").exists():
        raise FailedError("started again, the second run was not made", again)
    return "stopped, and went on"


def interrupt_at(
    attempt: Try, script: str, arguments: list[str], point: Point, occurrence: int, folder: Path
) -> EndedCommand:
    """Send Ctrl-C to a command at a point."""
    act = make_sender(signal.SIGINT, everyone=True)
    ended = run(script, *arguments, folder=attempt.folder, before=lambda: act_at(point, occurrence, act))
    check_stopped(ended, signal.SIGINT)
    check_no_partial(folder, ended=ended)
    return ended


def _interrupt_at_point(point: Point) -> Callable[[Try], str]:
    def make_try(attempt: Try) -> str:
        fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
        arguments = train_arguments(fixtures.images, folder)
        ended = interrupt_at(attempt, "train.py", arguments, point, 1, folder)
        return resume_and_compare(attempt, folder, arguments, fixtures.run, ended)

    return make_try


def _interrupt_evaluation(attempt: Try) -> str:
    checkpoint, folder = Fixtures(attempt.fixtures).run / "checkpoints" / "best.ckpt", attempt.folder / "evaluation"
    arguments = [f"checkpoint={checkpoint}", f"hydra.run.dir={folder}"]
    interrupt_at(attempt, "evaluate.py", arguments, Point(evaluate_job, "load_model", after=True), 1, folder)
    return "stopped"


def _interrupt_prepare(point: Point, occurrence: int, processes: int) -> Callable[[Try], str]:
    def make_try(attempt: Try) -> str:
        from faults.files import find_cache_difference
        from faults.fixtures import cache_folder

        fixtures, images = Fixtures(attempt.fixtures), attempt.folder / "images"
        shutil.copytree(fixtures.images, images)
        arguments = prepare_arguments(images, f"processes={processes}")
        interrupt_at(attempt, "scripts/prepare.py", arguments, point, occurrence, images)
        again = run("scripts/prepare.py", *arguments, folder=attempt.folder)
        check_done(again, images)
        if difference := find_cache_difference(cache_folder(fixtures.prepared), cache_folder(images)):
            raise FailedError(f"prepared again, with {difference}", again)
        return "stopped, and went on"

    return make_try


CTRL_C: list[Callable[[Try], str]] = [
    lambda attempt: interrupt(attempt, signal.SIGINT, everyone=True),
    lambda attempt: interrupt(attempt, signal.SIGINT, everyone=True, sends=2),
    lambda attempt: interrupt(attempt, signal.SIGINT, everyone=True, fresh=True),
    lambda attempt: interrupt_sweep(attempt, signal.SIGINT),
    _interrupt_at_point(Point(jobs, "run_test")),
    _interrupt_at_point(Point(final_test, "write_queries")),
    _interrupt_at_point(Point(final_test, "run_report")),
    _interrupt_at_point(Point(final_test, "run_report", after=True)),
    _interrupt_evaluation,
    _interrupt_prepare(Point(prepare_job, "write_table"), 1, 2),
    _interrupt_prepare(Point(prepare_job, "build_cache"), 1, 1),
    _interrupt_prepare(Point(Resize, "__call__"), 20, 2),
]
TERM: list[Callable[[Try], str]] = [
    lambda attempt: interrupt(attempt, signal.SIGTERM),
    lambda attempt: interrupt(attempt, signal.SIGTERM),
    lambda attempt: interrupt_sweep(attempt, signal.SIGTERM),
    lambda attempt: interrupt_in_slurm(attempt, signal.SIGTERM),
    lambda attempt: interrupt(attempt, signal.SIGTERM, sends=2),
    lambda attempt: interrupt(attempt, signal.SIGTERM, fresh=True),
]

WENT_ON = "the resumed run has the same weights, metrics and history, bit for bit, as the uninterrupted run"
FAULTS = [
    Fault(
        "sigterm",
        "SIGTERM in training: at a random moment, twice, in a sweep, in Slurm's environment",
        18,
        f"one line that begins with 'stopped', exit code 143; {WENT_ON}",
        "The command prints one line with resume= and ends with exit code 143; the same command continues a sweep.",
        lambda attempt: TERM[attempt.number % len(TERM)](attempt),
    ),
    Fault(
        "ctrl-c",
        "Ctrl-C in training, once and twice, in a sweep, in the test, in the report, in evaluate.py and prepare.py",
        24,
        f"one line that begins with 'stopped', exit code 130; no metrics.json without a report; {WENT_ON}",
        "The command prints one line and ends with exit code 130; metrics.json is written last.",
        lambda attempt: CTRL_C[attempt.number % len(CTRL_C)](attempt),
    ),
    Fault(
        "points",
        "SIGTERM, SIGINT and SIGKILL at the points of a run that kill_points.py names",
        60,
        f"the rules of the two rows above (SIGKILL: exit code 137); {WENT_ON}",
        "A run can stop at any point; resume= continues it from its last checkpoint.",
        _stop_at_point,
    ),
]
