"""Several processes as torch elastic, torchrun and srun start them."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
import torch.distributed as dist
from configurations import settings_of
from conftest import ONE_HEAD
from forks import ForkedScript, run_forked
from gloo import on_processes
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from omegaconf import DictConfig
from ports import free_port
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities import rank_zero_only
from runs import TWO, Ended, assert_same_run, last, run_ranks

from dml.__main__ import run_command
from dml.commands.arguments import follow
from dml.commands.error_lines import explain
from dml.run import loop
from dml.run.config_folders import CONF
from dml.runtime import processes, signals
from dml.runtime.errors import InputError

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def uninterrupted(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of two processes."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    ended = run_ranks(folder, *TWO, *ONE_HEAD, f"dataset.root={small_emoji}", f"hydra.run.dir={folder / 'run'}")
    assert ended == [Ended(0, ""), Ended(0, "")]
    return folder / "run"


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("rank", "point", "signum", "step"),
    [
        (1, "before a validation is judged", signal.SIGINT, 3),
        (0, "after a step's metrics are logged", signal.SIGTERM, 2),  # which are logged after the step has ended
        (0, "before last.ckpt is written", signal.SIGINT, 2),
    ],
)
def test_a_signal_to_one_stops_both_at_a_step_and_the_run_goes_on_bit_for_bit(
    uninterrupted: Path, small_emoji: Path, tmp_path: Path, rank: int, point: str, signum: signal.Signals, step: int
) -> None:
    folder = tmp_path / "run"
    arguments = [*TWO, *ONE_HEAD, f"dataset.root={small_emoji}", f"hydra.run.dir={folder}"]
    ended = run_ranks(tmp_path, *arguments, signaled={rank: (point, 1, signum)})
    line = f"stopped at step {step} of 6 by {signum.name}; resume={folder} goes on\n"
    assert ended == [Ended(128 + signum, line), Ended(128 + signum, "")]
    assert last(folder)["global_step"] == step
    assert run_ranks(tmp_path, f"resume={folder}") == [Ended(0, ""), Ended(0, "")]
    assert_same_run(uninterrupted, folder)


# the launcher; tests/runtime/test_launched_ranks.py shows the other signals and ends of small programs


class ForkedCommand(ForkProcess):
    """A command of dml that a copy of this process runs, with what `subprocess.Popen` has."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        super().__init__()
        self._words, self._environment = command[len(processes.python_command("")) - 1 :], env
        self.start()

    def run(self) -> None:
        os.environ |= self._environment
        rank_zero_only.rank = int(os.environ["RANK"])  # Lightning has read it from the environment when it was imported
        sys.argv = ["dml", *self._words]
        GlobalHydra.instance().clear()  # the launcher is in the middle of a command
        signals.forget()
        run_command()

    @property
    def returncode(self) -> int | None:
        return self.exitcode

    def poll(self) -> int | None:
        return self.exitcode

    def send_signal(self, signum: int) -> None:
        if self.pid is not None and self.exitcode is None:
            os.kill(self.pid, signum)


def start_in_fork(command: Sequence[str], env: dict[str, str]) -> ForkedCommand:
    """Start a command as `processes.start_process` does, without a new Python, which takes four seconds."""
    with processes.blocking_signals():
        program = ForkedCommand(command, env)
    processes._started.append(program)  # type: ignore[arg-type]
    return program


def test_a_signal_to_the_launcher_ends_all_with_a_checkpoint(
    small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "start_process", start_in_fork)
    endless = ["trainer.max_steps=1000000", "trainer.val_check_interval=null", "data.num_workers=1"]
    folder = tmp_path / "run"
    place = [f"dataset.root={small_emoji}", f"hydra.run.dir={folder}"]
    launcher = ForkedScript("train.py", *TWO, *ONE_HEAD, *endless, *place)
    try:
        while launcher.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
            time.sleep(0.05)
        os.kill(launcher.pid, signal.SIGINT)
        errors = launcher.finish(timeout=30).stderr
    finally:
        launcher.kill()
    assert launcher.returncode == 130
    step = last(folder)["global_step"]
    assert errors == f"stopped at step {step:,} of 1,000,000 by SIGINT; resume={folder} goes on\n"


def test_a_mistake_is_one_line_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TOLD_WITHIN", 1.5)
    first, second = run_ranks(tmp_path, *TWO, "dataset.root=/nowhere", f"hydra.run.dir={tmp_path / 'runs' / 'run'}")
    assert first.code == second.code == 2
    assert first.errors.startswith("error: dataset.root=/nowhere: ")
    assert first.errors.count("\n") == 1
    assert second.errors == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_the_launcher_refuses_several_machines(tmp_path: Path) -> None:
    ended = run_forked("train.py", *TWO, "trainer.num_nodes=2", f"hydra.run.dir={tmp_path / 'runs' / 'run'}")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: trainer.num_nodes=2: torchrun or srun starts the processes on each machine")
    assert ended.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


# the run's folder


def follow_as_rank(environment: dict[str, str], numbered: list[str], arguments: list[str]) -> list[str]:
    """What a process of a launcher makes of its arguments."""
    rank = dist.get_rank()
    os.environ |= environment | {name: str(rank) for name in numbered}
    followed = follow(arguments)
    processes.name_folder(f'outputs/of "process" {rank}')
    dist.barrier()  # the first process keeps what the others ask
    return followed


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "12"}


@pytest.mark.parametrize(
    ("environment", "numbered", "argument"),
    [(TORCHRUN, ["RANK"], "trainer=ddp"), (SRUN, ["SLURM_PROCID", "SLURM_LOCALID"], "trainer=slurm")],
    ids=["torchrun", "srun"],
)
def test_the_first_process_names_the_folder(
    tmp_path: Path, environment: dict[str, str], numbered: list[str], argument: str
) -> None:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = on_processes(2, tmp_path, follow_as_rank, environment | meeting, numbered, [argument])
    assert first == [argument]
    assert second == [argument, "hydra.run.dir='outputs/of \"process\" 0'", "hydra.job.name=process_1"]


def test_a_process_alone_keeps_its_arguments_and_a_launcher_starts_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(["loss=rll"]) == ["loss=rll"]
    monkeypatch.setenv("SLURM_PROCID", "1")  # runs side by side, each of its own
    assert follow(["loss=rll"]) == ["loss=rll"]
    for name, value in (TORCHRUN | {"RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="--multirun: torchrun and srun"):
        follow(["-m", "seed=1,2"])


# SLURM

VARIABLES = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NAME": "train",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
}


@pytest.fixture
def srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a process that srun started."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # a strategy sets it to its own


def slurm_config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=["trainer=slurm", "trainer.accelerator=cpu", *overrides])


@pytest.mark.usefixtures("srun")
def test_slurm_says_who_a_process_is() -> None:
    trainer = loop.build_trainer(settings_of(slurm_config()), logger=False)
    strategy = trainer.strategy
    assert isinstance(strategy, DDPStrategy)
    environment = strategy.cluster_environment
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue
    assert (trainer.world_size, trainer.num_nodes, trainer.num_devices) == (8, 2, 4)
    assert (trainer.global_rank, trainer.local_rank, trainer.node_rank) == (6, 2, 1)
    assert (environment.main_address, environment.main_port) == ("gpu07", 18456)
    assert strategy._timeout == timedelta(minutes=10)
    environment.validate_settings(num_devices=trainer.num_devices, num_nodes=trainer.num_nodes)


def test_slurm_without_srun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(InstantiationException) as refused:
        loop.build_trainer(settings_of(slurm_config()), logger=False)
    assert "srun did not start this process" in (explain(refused.value) or "")
