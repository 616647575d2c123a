"""Validations before the first step and after the last one, which the interval of the trainer leaves out."""

from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer


class FirstValidation(Callback):
    """Validates before the first step, so that the best checkpoint can be the network as it was before the training.

    A training that makes the network worse for unseen classes then loses nothing. The metrics are those of step 0. A
    later stage goes on from weights that have been validated, and so does a resumed run.
    """

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Validate as Lightning does between two steps, if the run has validations and no step yet."""
        first_step = getattr(module, "run_description", {}).get("first_step", 0)
        if trainer.global_step or first_step or not trainer.enable_validation:
            return
        loop = trainer.fit_loop.epoch_loop
        loop._batches_that_stepped = -1  # loggers take it for the index of the last step
        trainer.validating = True
        loop.val_loop.run()
        trainer.training = True
        loop._batches_that_stepped = 0


class FinalValidation(Callback):
    """Validates and logs after the last step too, where the intervals of the trainer would end the run without.

    The last steps of a run thereby count when the best checkpoint is chosen, and a run that is shorter than the
    interval has one validation. A run with ``trainer.val_check_interval=null`` has none.
    """

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training, before which Lightning logs and validates, once it has all its steps."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
