from typing import Any

from pytorch_lightning import Callback, Trainer


class FinalValidation(Callback):
    """Validate and log after the last step too, where the intervals of the trainer would end the run without.

    The last steps of a run thereby count when the best checkpoint is chosen, and a run that is shorter than the
    interval has one validation. A run with ``trainer.val_check_interval=null`` has none.
    """

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """End the training, before which Lightning logs and validates, once it has all its steps."""
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True
