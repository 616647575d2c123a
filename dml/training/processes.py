import os

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.ops.errors import InputError
from dml.training import watch


class Together(Callback):
    """Binds the processes of a job together: they write to one folder, and end together (`dml.training.watch`)."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Joins this process to the others.

        Raises:
            InputError: if the run's folder is not that of the first process.
        """
        if trainer.world_size == 1:
            return
        share = trainer.strategy.broadcast
        watch.join(trainer.global_rank, trainer.world_size, os.environ["MASTER_ADDR"], share)
        own = str(trainer.default_root_dir)
        first = share(own)
        if own != first:
            raise InputError(
                f"hydra.run.dir={own}: that of process {trainer.global_rank}, process 0 has {first}; "
                "give hydra.run.dir=..., the same for all and on a disk that all of them see"
            )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Ctrl+C reaches all processes: none of them is to be missed."""
        if isinstance(exception, KeyboardInterrupt):
            watch.leave()


def slurm() -> SLURMEnvironment:
    """What srun says about a job's processes, without Lightning's own requeueing.

    Lightning's would write a checkpoint of its own at a signal, which nobody takes up: a run's ``last.ckpt`` is never
    far behind, and ``resume=FOLDER`` goes on from it (docs/multi_node.md).

    Raises:
        InputError: if srun didn't start this process.
    """
    if "SLURM_PROCID" not in os.environ:
        raise InputError("trainer=slurm: srun did not start this process; srun python train.py ..., or trainer=ddp")
    return SLURMEnvironment(auto_requeue=False)
