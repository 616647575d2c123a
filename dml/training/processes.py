import os

from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.runtime import signals
from dml.runtime.errors import InputError


class SignalHandling(Callback):
    """Handles signals as dml does, in each loop: Lightning has just replaced the handler of SIGTERM.

    Lightning's handler exchanges tensors while other processes may be exchanging others, which can hang.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Handle signals again."""
        signals.handle_again()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Handle signals again."""
        signals.handle_again()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Handle signals again."""
        signals.handle_again()


def slurm() -> SLURMEnvironment:
    """Make the Lightning environment of a job that srun started, without Lightning's requeueing.

    At a signal, the requeueing would write a checkpoint that no run reads. A run of dml stops after the step and writes
    ``last.ckpt``, and ``resume=FOLDER`` goes on from there (docs/multi_node.md).
    """
    if "SLURM_PROCID" not in os.environ:
        raise InputError("trainer=slurm: srun did not start this process; srun python train.py ..., or trainer=ddp")
    return SLURMEnvironment(auto_requeue=False)
