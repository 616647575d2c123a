from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.data.dataset import Batch
from dml.evaluation.metric import MetricName, join_head_names
from dml.evaluation.names import choose_shown_metrics, describe_metric
from dml.models.recurrent import AnyModel
from dml.runtime.errors import InputError
from dml.training.distributed import compute_losses
from dml.training.embedders import CHOSEN_HEADS, Evaluate, HeadChoice, ModelEmbedder, evaluate_heads
from dml.training.gradient_cache import embed_in_chunks
from dml.training.optimizers import ParameterGroups, SchedulePace, change_settings, list_settings, rebuild_schedule


class DivergenceCheck:
    """Stops a training whose loss became NaN or infinite, without making each step wait for the GPU.

    The device notes the first step of each head whose loss was not finite. `read` waits for the notes, in steps that
    are logged and before everything that outlives the step: a checkpoint, a validation, an embedding bank, the end.
    """

    def __init__(self) -> None:
        self._losses: dict[str, str] = {}  # the classes of the losses by head
        self._notes: Tensor | None = None  # (H,) -1, or twice the step, and one more if embeddings weren't finite

    @torch.no_grad()
    def add_step(
        self, step: int, losses: nn.ModuleDict, embeddings: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> None:
        """Check the embeddings (B, D) and the values of the losses of a step by head."""
        is_finite = torch.isfinite(torch.stack([*values.values()]))
        is_embedded = torch.stack([torch.isfinite(embeddings[head]).all() for head in values])
        notes = torch.where(is_finite, -1, 2 * step + (~is_embedded).long())
        self._losses = {head: type(losses[head]).__name__ for head in values}
        self._notes = notes if self._notes is None else torch.where(self._notes < 0, notes, self._notes)

    def read(self) -> None:
        """Raise the error of the first step whose loss was not finite, if there is one."""
        notes = [] if self._notes is None else self._notes.tolist()
        self._notes = None
        if found := sorted((note, head) for note, head in zip(notes, self._losses, strict=False) if note >= 0):
            note, head = found[0]
            raise InputError(
                f"step {note // 2}: the {'embeddings' if note % 2 else 'loss'} of head {head} became NaN or infinite "
                f"under {self._losses[head]}; the last good checkpoint is kept, a lower optimizer.lr may help"
            )


class MetricLearner(ModelEmbedder):
    """Connects a model, a loss for each of its heads, and an optimizer.

    Args:
        model: network with an embedding for each head.
        losses: losses by head; their sum is minimized.
        optimizer: function that makes the optimizer from the parameter groups.
        schedule: function that makes the schedule of the learning rates from the optimizer; None for constant rates.
        evaluate: function that computes the metrics of a validation from the embeddings and their rows of the table.
        evaluate_further: function that computes more metrics, of the chosen heads alone; None for no others.
        validated_on: name of the split that is validated.
        monitor: metric that chooses a checkpoint; a validation evaluates all heads, and also the heads in its name.
        head_sets: names of sets of heads, such as "L+M", whose concatenated embeddings are evaluated.
        head_choice: choice of the heads whose concatenation is the embedding, in each validation; None keeps all heads.
        pace: counter of the intervals of the schedule; the backbone isn't trained during its warm-up.
        gradient_cache: images that pass through the network at a time, see `embed_in_chunks`; None for the whole batch.
        shard_loss: whether each of several processes computes the terms of its own images, in losses that are a mean
            over queries, see `compute_losses`.
        compiled: arguments of torch.compile for the network in training steps; None for no compilation. Validations and
            tests don't use the compiled network, so that a checkpoint's metrics don't depend on it.
    """

    def __init__(
        self,
        model: AnyModel,
        losses: Mapping[str, nn.Module],
        *,
        optimizer: Callable[[ParameterGroups], Optimizer],
        schedule: Callable[[Optimizer], LRScheduler] | None,
        evaluate: Evaluate,
        evaluate_further: Evaluate | None = None,
        validated_on: str = "val",
        monitor: str = "level0/recall@1",
        head_sets: Sequence[str] = (),
        head_choice: HeadChoice | None = None,
        pace: SchedulePace | None = None,
        gradient_cache: int | None = None,
        shard_loss: bool = True,
        compiled: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, (*head_sets, *(head_choice.candidates if head_choice else ())))
        self.head_choice = head_choice
        self.losses = nn.ModuleDict(losses)
        self.optimizer, self.schedule, self.pace = optimizer, schedule, pace or SchedulePace()
        self.evaluate, self.evaluate_further = evaluate, evaluate_further
        self.validated_on, self.monitor = validated_on, monitor
        self.gradient_cache, self.shard_loss = gradient_cache, shard_loss
        # In a list the compiled network is no submodule: a checkpoint would hold the model's parameters twice.
        self._compiled: list[Any] = [] if compiled is None else [torch.compile(self.network, **compiled)]
        self.divergence = DivergenceCheck()
        self.run_description: dict[str, Any] = {}  # plain values that rebuild the run; checkpoints hold them as "run"

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make the optimizer and its schedule."""
        optimizer = self.make_optimizer()
        self._optimizer_settings = list_settings(optimizer)
        if self.schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"}}

    def make_optimizer(self) -> Optimizer:
        """Make the optimizer of the parameters of the model and of the losses."""
        return self.optimizer(self.model.parameter_groups | {"loss": list(self.losses.parameters())})

    @property
    def network(self) -> nn.Module:
        """The network that embeds the images of a training step."""
        return self.model

    @property
    def epoch(self) -> int:
        """The epoch of the sampler; Lightning counts the whole run as one epoch."""
        return self.pace.count_epochs(self.global_step)

    def on_train_start(self) -> None:
        """Give a resumed run the schedule of its present length, which may differ from that of its checkpoint."""
        if self.schedule is not None and self.global_step:
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            num_intervals = self.pace.count_intervals(self.global_step)
            self.trainer.lr_scheduler_configs[0].scheduler = rebuild_schedule(self.schedule, optimizer, num_intervals)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:  # noqa: ARG002
        """Move the schedule by the intervals that ended with this step."""
        for _ in range(self.pace.count_intervals(self.global_step - 1), self.pace.count_intervals(self.global_step)):
            scheduler.step()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """Return the sum of the heads' losses over the embeddings of all processes."""
        images, labels, rows = batch
        embeddings = self.embed_for_loss(images, rows)
        losses: Any = self.losses
        terms = compute_losses(self, losses, embeddings, labels, rows, shard=self.shard_loss)
        self.divergence.add_step(self.global_step, self.losses, embeddings, terms)
        total = torch.stack(list(terms.values())).sum()
        self.log_losses(total, terms)
        return total

    @property
    def is_logged_step(self) -> bool:
        """Whether loggers write the metrics of this step: every ``trainer.log_every_n_steps``, and the last."""
        is_last = self.global_step + 1 == self.trainer.max_steps
        return is_last or bool(self.trainer._logger_connector.should_update_logs)

    def log_losses(self, total: Tensor, terms: Mapping[str, Tensor]) -> None:
        """Log the total loss, the losses of several heads and the epoch, in steps that loggers write."""
        if not self.is_logged_step:  # to log takes Lightning one or two milliseconds
            # else loggers would take the values of an earlier step for those of a step at which the training ends
            for hook in ("training_step", "on_train_batch_start"):
                self.trainer._results.reset(fx=hook)  # type: ignore[union-attr]
            return
        self.log("loss", total, prog_bar=True)
        self.log("epoch", torch.tensor(float(self.epoch)))  # Lightning would send a float to the GPU.
        if len(terms) > 1:
            self.log_dict({f"loss/{head}": term for head, term in terms.items()})

    def embed_for_loss(self, images: Tensor, rows: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Embed images (B, 3, H, W) with rows (B,) in the training table, as the losses see them -> (B, D) by head."""
        network = self._compiled[0] if self._compiled else self.network
        if self.gradient_cache is None:
            return cast(dict[str, Tensor], network(images))
        return embed_in_chunks(network, images, self.gradient_cache)

    def on_after_backward(self) -> None:
        """Give trained parameters that a batch doesn't use a gradient of 0, as DistributedDataParallel does."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        for group in optimizer.param_groups:  # a tenth of the time of self.parameters(), which walks all modules
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Keep the backbone as it is in the warm-up: delete its gradients, which DistributedDataParallel waits for."""
        if self.global_step < self.pace.warmup_steps:
            for parameter in self.model.backbone.parameters():
                parameter.grad = None

    def on_train_batch_end(self, *_: Any) -> None:
        """Stop in a step that is logged, whose loss the CPU waits for anyway, if a loss so far was not finite."""
        if self.trainer._logger_connector.should_update_logs:
            self.divergence.read()

    def on_validation_start(self) -> None:
        """Stop before a validation, or at the end, if weights were trained by a loss that was not finite."""
        self.divergence.read()

    on_train_end = on_validation_start

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Stop if weights were trained by a loss that was not finite; add what `on_load_checkpoint` takes."""
        self.divergence.read()
        checkpoint["optimizer_settings"] = self._optimizer_settings
        checkpoint["chosen_heads"] = [*self.model.chosen_heads]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give a resumed run its heads, and those settings of the optimizer that it has new values for."""
        self.model.chosen_heads = tuple(checkpoint["chosen_heads"])
        change_settings(checkpoint, self.make_optimizer())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Embed a batch, as a test does."""
        self.test_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Evaluate the split, and log the metrics as ``val/...``."""
        embedded = self.take_split()
        heads = MetricName.parse(self.monitor).heads
        names = [heads] if heads else []
        if self.head_choice is None:
            metrics = evaluate_heads(embedded, [CHOSEN_HEADS, *names], self.evaluate, self.device)
        else:
            self.model.chosen_heads, metrics = self.head_choice.choose(embedded, self.evaluate, self.device)
            metrics |= evaluate_heads(embedded, names, self.evaluate, self.device)
            embedded.embeddings[CHOSEN_HEADS] = embedded.embeddings[join_head_names(self.model.chosen_heads)]
        if self.evaluate_further is not None:
            metrics |= evaluate_heads(embedded, [CHOSEN_HEADS], self.evaluate_further, self.device)
        self.log_dict({f"{self.validated_on}/{name}": value for name, value in metrics.items()}, rank_zero_only=False)
        self.log("epoch", float(self.epoch))
        shown = [*choose_shown_metrics(metrics), self.monitor]
        self.log_dict({describe_metric(name).label: metrics[name] for name in shown}, prog_bar=True, logger=False)
