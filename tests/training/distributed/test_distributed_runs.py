"""Several processes as Lightning, torchrun and srun start them."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from conftest import PLAIN
from forks import ForkedScript
from gloo import on_processes
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from omegaconf import DictConfig
from ports import free_port
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities import rank_zero_only
from runs import last

from dml.commands.failures.error_lines import explain
from dml.commands.start import follower_processes
from dml.ops.errors import InputError
from dml.run import loop
from dml.run.config_folders import CONF
from dml.training.distributed import watch
from dml.training.processes import ProcessWatch

pytestmark = pytest.mark.distributed


def second_process(folder: Path) -> int:
    """Its id: Lightning starts it with a job name of its own; its loader's worker has its command line too."""
    lines = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
    found = []
    for process, path in lines.items():
        try:
            line = path.read_bytes()
        except OSError:  # it has ended
            continue
        if str(folder).encode() in line and b"hydra.job.name=train_ddp_process_1" in line:
            found.append(process)
    return min(found)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the second process in /proc")
def test_a_killed_process_ends_the_run_with_a_line(small_emoji: Path, tmp_path: Path) -> None:
    endless = ["trainer.max_steps=1000000", "trainer.val_check_interval=null"]
    # without workers: one that sends images to a killed process may print a trace of its own
    two = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "data.num_workers=0"]
    folder = tmp_path / "run"
    first = ForkedScript("train.py", f"dataset.root={small_emoji}", *PLAIN, *endless, *two, f"hydra.run.dir={folder}")
    try:
        while first.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
            time.sleep(0.1)
        os.kill(second_process(folder), signal.SIGKILL)
        errors = first.finish(timeout=60).stderr
    finally:
        first.kill()
    assert first.returncode == 1
    assert errors == "error: process 1 of 2 died, probably killed or out of memory; the job ends with it\n"


@pytest.mark.first_cases(1)
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the second process in /proc")
@pytest.mark.parametrize(
    ("signum", "to"), [(signal.SIGTERM, "first"), (signal.SIGINT, "second"), (signal.SIGTERM, "all")]
)
def test_a_signal_to_one_or_all_stops_all(small_emoji: Path, tmp_path: Path, signum: signal.Signals, to: str) -> None:
    endless = ["trainer.max_steps=1000000", "trainer.val_check_interval=null"]
    two = ["trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu", "data.num_workers=1"]
    folder = tmp_path / "run"
    first = ForkedScript("train.py", f"dataset.root={small_emoji}", *PLAIN, *endless, *two, f"hydra.run.dir={folder}")
    try:
        while first.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
            time.sleep(0.1)
        if to == "all":
            os.killpg(first.pid, signum)
        else:
            os.kill(first.pid if to == "first" else second_process(folder), signum)
        errors = first.finish(timeout=150).stderr  # nobody is left
    finally:
        first.kill()
    step = last(folder)["global_step"]
    assert errors == f"stopped at step {step:,} of 1,000,000 by {signum.name}; resume={folder} goes on\n"
    assert first.returncode == 128 + signum


# the run's folder


def follow(environment: dict[str, str], numbered: list[str], arguments: list[str]) -> list[str]:
    """What a process of a launcher makes of its arguments."""
    rank = dist.get_rank()
    os.environ |= environment | {name: str(rank) for name in numbered}
    followed = follower_processes.follow(arguments)
    follower_processes.announce_folder(Path(f'outputs/of "process" {rank}'))
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
    first, second = on_processes(2, tmp_path, follow, environment | meeting, numbered, [argument])
    assert first == [argument]
    assert second == [
        argument,
        "hydra.run.dir='outputs/of \"process\" 0'",
        "hydra.output_subdir=null",
        "hydra.job.name=process_1",
    ]


def test_a_process_alone_keeps_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follower_processes.follow(["loss=rll"]) == ["loss=rll"]
    monkeypatch.setenv("SLURM_PROCID", "1")  # runs side by side, each of its own
    assert follower_processes.follow(["loss=rll"]) == ["loss=rll"]


def test_a_launcher_starts_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (TORCHRUN | {"RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="--multirun: torchrun and srun"):
        follower_processes.follow(["-m", "seed=1,2"])


def join() -> str:
    """What a process is told whose folder is not that of the first."""
    rank = dist.get_rank()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, default_root_dir=Path(f"/outputs/{rank}")
    )
    try:
        ProcessWatch().setup(trainer, LightningModule(), "fit")
    except InputError as error:
        watch.leave()
        return str(error)
    watch.leave()
    return ""


def test_another_folder_is_refused(tmp_path: Path) -> None:
    first, second = on_processes(2, tmp_path, join)
    assert first == ""
    assert second.startswith(
        "hydra.run.dir=/outputs/1: that of process 1, process 0 has /outputs/0; give hydra.run.dir"
    )


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
    trainer = loop.build_trainer(slurm_config(), logger=False)
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
        loop.build_trainer(slurm_config(), logger=False)
    assert "srun did not start this process" in (explain(refused.value) or "")
