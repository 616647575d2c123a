"""What shows how far a run is: Lightning's bar in a terminal, lines in a file or a pipe."""

from time import monotonic
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import ProcessingSpeedColumn, RichProgressBarTheme
from rich.console import Console

from dml.evaluation.names import choose_shown_metrics, describe_metric, format_value
from dml.runtime.text import LINE_EVERY, ProgressMeter, console, printable

FIRST_ESTIMATE = 10
"""Batches after which the first line about the time left is printed into a file or a pipe."""
TEST_ESTIMATE = 5.0
"""Seconds of a test after which that line is printed; the first test is the first that a user waits for."""


def make_progress() -> Callback:
    """Make the bar in a terminal, and the lines where output goes into a file or a pipe."""
    return Progress() if console.is_terminal and not console.is_dumb_terminal else ProgressLines()


def print_validation(trainer: Trainer, split: str, screen: Console) -> None:
    """Print the step and the metrics of the validation that has just ended, see `choose_shown_metrics`."""
    if trainer.is_global_zero:
        metrics = {name.partition("/")[::2]: value.item() for name, value in trainer.callback_metrics.items()}
        values = {name: value for (part, name), value in metrics.items() if part == split}
        shown = [f"{name.rpartition('/')[2]} {_format(name, values[name])}" for name in choose_shown_metrics(values)]
        line = printable(f"{split:8} step {trainer.global_step:,}: {', '.join(shown)}")
        Console.print(screen, line, highlight=False, soft_wrap=True, markup=False, emoji=False)
        console.write_log(line, markup=False)


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
        print_validation(trainer, str(pl_module.validated_on), self.progress.console if self.progress else console)

    def _get_train_description(self, current_epoch: int) -> str:  # noqa: ARG002
        return "Training"

    def _update_metrics(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the numbers of the steps that are logged: to read others would wait for the GPU in every step."""
        if not trainer.training or trainer._logger_connector.should_update_logs:
            super()._update_metrics(trainer, pl_module)


class ProgressLines(Callback):
    """Prints lines about the progress of trainings, validations and tests, and one for each validation's metrics."""

    def __init__(self, interval: float = LINE_EVERY) -> None:
        self.interval = interval
        self._training = self._evaluation = ProgressMeter(interval)

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._training = ProgressMeter(self.interval)

    def on_validation_start(self, *_: Any) -> None:
        """Start the validation's clock."""
        self._evaluation = ProgressMeter(self.interval)

    def on_test_start(self, *_: Any) -> None:
        """Start the test's clock."""
        self._evaluation = ProgressMeter(self.interval, first=TEST_ESTIMATE)

    def on_train_batch_end(self, trainer: Trainer, _module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Print the step, of how many, the loss, images a second and the time left, if a line is due."""
        is_due = self._training.advance(len(batch[-1]) * trainer.world_size)
        if is_due or self._training.done == FIRST_ESTIMATE:
            loss = outputs["loss"].item() * trainer.accumulate_grad_batches  # Lightning divides it
            step = f"training step {trainer.global_step:,} of {trainer.max_steps:,}, loss {loss:.4g}"
            left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
            _print(trainer, f"{step}, {self._training.line(left)}")

    def on_validation_batch_end(
        self, trainer: Trainer, _module: Any, _outputs: Any, batch: Any, index: int, *_: Any
    ) -> None:
        """Print how far the pass over the validated or tested split is, if a line is due."""
        if self._evaluation.advance(len(batch[-1]) * trainer.world_size):
            verb = "testing" if trainer.testing else "validating"
            total = int(sum(trainer.num_test_batches if trainer.testing else trainer.num_val_batches))
            left = self._evaluation.line(total - index - 1)
            _print(trainer, f"{verb:8} batch {index + 1:,} of {total:,}, {left}")

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the validation's metrics."""
        self._training.pause(monotonic() - self._evaluation.began)
        print_validation(trainer, str(pl_module.validated_on), console)


def _print(trainer: Trainer, line: str) -> None:
    """Print a line of the first process, which the run's log needn't keep."""
    if trainer.is_global_zero:
        Console.print(console, line, markup=False)
