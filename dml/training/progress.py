from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import ProcessingSpeedColumn, RichProgressBarTheme


class Progress(RichProgressBar):
    """Lightning's Rich progress bar over the whole run, with the loss and the last validation's recall@1."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=4, theme=RichProgressBarTheme(metrics_format=".3f"))

    @property
    def total_train_batches(self) -> int:
        """The run's batches; to Lightning its single epoch never ends."""
        return int(self.trainer.max_steps * self.trainer.accumulate_grad_batches)

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """The bar's columns; without the speed, which the time says, the metrics fit 80 characters."""
        columns = super().configure_columns(trainer)
        return [column for column in columns if not isinstance(column, ProcessingSpeedColumn)]

    def _get_train_description(self, current_epoch: int) -> str:  # noqa: ARG002
        return "Training"

    def _update_metrics(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the numbers of the steps that are logged: to read others would wait for the GPU in every step."""
        if not trainer.training or trainer._logger_connector.should_update_logs:
            super()._update_metrics(trainer, pl_module)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The metrics beside the bar, without the version number of a logger that has none."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return dict(metrics)
