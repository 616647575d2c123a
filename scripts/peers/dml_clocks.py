"""Callbacks that measure a run of ``dml train``, and end its process when they know enough."""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from peers.protocol import Job, RecallClock, StepClock


class TimeSteps(Callback):
    """Ends the process after the last step of a job, named by its file, before the test of the run."""

    def __init__(self, job: str) -> None:
        self.job = Job.read(job)
        self.clock = StepClock(self.job)
        self.weights = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Add up the weights with which the training begins."""
        model: Any = pl_module.model
        self.weights = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())

    def on_train_batch_end(self, *_: Any) -> None:
        """Record the step."""
        self.clock.add_step()
        if self.clock.is_done:
            self.job.end_process({**self.clock.summarize(), "weights": self.weights})


class TimeValidations(Callback):
    """Ends the process after the validation that finds the target of the job, or after the last one."""

    def __init__(self, job: str) -> None:
        self.job = Job.read(job)
        self.clock = RecallClock(self.job)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Record the validation."""
        recall = float(trainer.callback_metrics["val/level0/recall@1"])
        if self.clock.add_validation(trainer.global_step, recall) or trainer.global_step >= self.job.steps:
            self.job.end_process(self.clock.summarize())
