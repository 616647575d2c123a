import os
import threading

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.ops.errors import InputError
from dml.ops.process import signals
from dml.training.distributed import watch


class ProcessWatch(Callback):
    """Connects the processes of a job, so that they end together (`watch`), and checks that they share a run folder."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Connect this process to the others.

        Raises:
            InputError: if the run folder is not that of the first process.
        """
        if trainer.world_size == 1:
            return
        broadcast = trainer.strategy.broadcast
        signals.state.is_silent = trainer.global_rank > 0
        host = os.environ["MASTER_ADDR"] if trainer.num_nodes > 1 else None
        watch.join(trainer.global_rank, trainer.world_size, host, broadcast)
        _disable_observer()
        folder = str(trainer.default_root_dir)
        first_folder = broadcast(folder)
        if folder != first_folder:
            raise InputError(
                f"hydra.run.dir={folder}: that of process {trainer.global_rank}, process 0 has {first_folder}; "
                "give hydra.run.dir=..., the same for all and on a disk that all of them see"
            )


def _disable_observer() -> None:
    """Empty the list of processes that a thread of Lightning observes: it would kill the first if another one ends."""
    for thread in threading.enumerate():
        if isinstance(thread, _ChildProcessObserver):
            thread._child_processes = []


def disable_signal_handling(trainer: Trainer) -> None:
    """Keep Lightning from handling signals, and from telling all processes in each step whether one has come.

    Lightning's handler broadcasts while other collectives are under way, which can hang. The broadcast in each step
    makes the steps of several processes wait for the GPU. dml handles signals itself (`signals`, `watch`).
    """
    signals.state.release = _disable_observer
    trainer._signal_connector.register_signal_handlers = _do_nothing  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _do_nothing  # type: ignore[method-assign]


def _do_nothing() -> None:
    pass


def slurm() -> SLURMEnvironment:
    """Make the Lightning environment of a job that srun started, without Lightning's requeueing.

    At a signal, the requeueing would write a checkpoint that no run reads. A run of dml stops after the step and writes
    ``last.ckpt``, and ``resume=FOLDER`` goes on from there (docs/multi_node.md).

    Raises:
        InputError: if srun didn't start this process.
    """
    if "SLURM_PROCID" not in os.environ:
        raise InputError("trainer=slurm: srun did not start this process; srun python train.py ..., or trainer=ddp")
    return SLURMEnvironment(auto_requeue=False)
