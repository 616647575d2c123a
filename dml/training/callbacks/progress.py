from time import monotonic
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ProgressBar, RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import ProcessingSpeedColumn, RichProgressBarTheme
from rich.console import Console

from dml.evaluation.names import choose_shown_metrics, describe_metric, format_value
from dml.runtime.console import PLAIN, console
from dml.runtime.text import LINE_EVERY, ProgressMeter, printable

FIRST_ESTIMATE = 10
"""Batches after which the first line about the time left is printed into a file or a pipe."""
TEST_ESTIMATE = 5.0
"""Seconds of a test after which that line is printed; the first test is the first that a user waits for."""


def make_progress() -> ProgressBar:
    """Make what shows how far a run is: a bar in a terminal; lines where output goes into a file or a pipe."""
    return Progress() if console.is_terminal and not console.is_dumb_terminal else ProgressLines()


def validation_line(trainer: Trainer, split: str) -> str:
    """Return the step and the metrics of the validation that has just ended, see `choose_shown_metrics`."""
    values = {
        name.removeprefix(f"{split}/"): value.item()
        for name, value in trainer.callback_metrics.items()
        if name.startswith(f"{split}/")
    }
    shown = [f"{name.rpartition('/')[2]} {_format(name, values[name])}" for name in choose_shown_metrics(values)]
    return printable(f"{split:8} step {trainer.global_step:,}: {', '.join(shown)}")


def _format(name: str, value: float) -> str:
    metric = describe_metric(name)
    return f"{format_value(value, metric)}{'%' if metric.shown_in_percent else ''}"


class Progress(RichProgressBar):
    """Lightning's Rich progress bar over the whole run, with the loss and the metrics of the last validation."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=4, theme=RichProgressBarTheme(metrics_format=".3f"))

    @property
    def total_train_batches(self) -> int:
        """Return the number of batches of the run, which is one endless epoch to Lightning."""
        return int(self.trainer.max_steps * self.trainer.accumulate_grad_batches)

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return the columns of the bar without the speed, so that the metrics fit into 80 characters."""
        columns = super().configure_columns(trainer)
        return [column for column in columns if not isinstance(column, ProcessingSpeedColumn)]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the validation's metrics above the bar."""
        super().on_validation_end(trainer, pl_module)
        if self.is_enabled and self.progress is not None:
            line = validation_line(trainer, str(pl_module.validated_on))
            self.progress.console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)
            console.write_log(line, markup=False)

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


class ProgressLines(ProgressBar):
    """Print lines about the progress of trainings, validations and tests, and one line for each validation's metrics.

    Args:
        seconds_between_lines: seconds between two lines about progress.
    """

    def __init__(self, seconds_between_lines: float = LINE_EVERY) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self.console = Console(markup=False, **PLAIN)
        self._is_enabled = True
        self._training = self._evaluation = ProgressMeter(seconds_between_lines)
        self._validation_began = 0.0

    def enable(self) -> None:
        """Let it print."""
        self._is_enabled = True

    def disable(self) -> None:
        """Keep it silent, as in all processes but the first."""
        self._is_enabled = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print at once, also into a pipe."""
        if self._is_enabled:
            self.console.print(*args, **kwargs)

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._training = ProgressMeter(self.seconds_between_lines)

    def on_train_batch_end(self, trainer: Trainer, _module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Print the step, of how many, the loss, images a second and the time left, if a line is due."""
        is_due = self._training.advance(len(batch[0]) * trainer.world_size)
        if (is_due or self._training.done == FIRST_ESTIMATE) and self._is_enabled:
            left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
            loss = outputs["loss"].item() * trainer.accumulate_grad_batches  # Lightning divides it
            where = f"step {trainer.global_step:,} of {trainer.max_steps:,}"
            self.print(f"training {where}, loss {loss:.4g}, {self._training.line(left)}")

    def on_validation_start(self, *_: Any) -> None:
        """Start the validation's clock."""
        self._evaluation, self._validation_began = ProgressMeter(self.seconds_between_lines), monotonic()

    def on_test_start(self, *_: Any) -> None:
        """Start the test's clock."""
        self._evaluation = ProgressMeter(self.seconds_between_lines, first=TEST_ESTIMATE)

    def on_validation_batch_end(
        self, trainer: Trainer, _module: Any, _outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Print how far the pass over the validation split is, if a line is due."""
        self._print_evaluation("validating", trainer, batch, batch_idx, int(sum(trainer.num_val_batches)))

    def on_test_batch_end(
        self, trainer: Trainer, _module: Any, _outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Print how far the pass over the tested split is, if a line is due."""
        self._print_evaluation("testing", trainer, batch, batch_idx, int(sum(trainer.num_test_batches)))

    def _print_evaluation(self, verb: str, trainer: Trainer, batch: Any, batch_idx: int, batches: int) -> None:
        if self._evaluation.advance(len(batch[0]) * trainer.world_size):
            line = self._evaluation.line(batches - (batch_idx + 1))
            self.print(f"{verb:8} batch {batch_idx + 1:,} of {batches:,}, {line}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the validation's metrics."""
        self._training.pause(monotonic() - self._validation_began)
        line = validation_line(trainer, str(pl_module.validated_on))
        self.print(line)
        if self._is_enabled:
            console.write_log(line, markup=False)
