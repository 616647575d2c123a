from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.data.dataset import Batch
from dml.evaluation.metric_names import MetricName, short
from dml.losses.compose import loss_value
from dml.training.divergence import DivergenceCheck, diverged
from dml.training.embedding import ALL_HEADS, AnyModel, Evaluate, ModelEmbedder, evaluate_heads
from dml.training.gradient_cache import in_chunks
from dml.training.optimizers import Roles
from dml.training.schedules import SchedulePace, schedule_after


class MetricLearner(ModelEmbedder):
    """Wires a model, a loss for each of its heads, and an optimizer.

    Args:
        model: gives an embedding a head.
        losses: for each head its own loss; the sum is minimised.
        optimizer: makes the optimizer from the parameters by role.
        schedule: makes the learning rates' schedule from the optimizer, or None.
        evaluate: the metrics of a validation, by rows of the table that is passed over.
        validated_on: the name of its split.
        monitor: the metric of a validation that the progress bar shows. A validation evaluates all heads together,
            and also the heads that the monitored metric is of.
        head_sets: names of sets of heads, such as "L+M", whose concatenated embeddings are evaluated.
        pace: counts the intervals by which the schedule moves; the backbone too stands still in its warm-up.
        gradient_cache: images that pass through the network at a time, see `in_chunks`; None: the whole batch.
        compiled: arguments of torch.compile for the network in training steps; None: it isn't compiled. Validations
            and tests take the network as it is, so that a checkpoint's metrics don't depend on it.
    """

    def __init__(
        self,
        model: AnyModel,
        losses: Mapping[str, nn.Module],
        *,
        optimizer: Callable[[Roles], Optimizer],
        schedule: Callable[[Optimizer], LRScheduler] | None,
        evaluate: Evaluate,
        validated_on: str = "val",
        monitor: str = "level0/recall@1",
        head_sets: Sequence[str] = (),
        pace: SchedulePace | None = None,
        gradient_cache: int | None = None,
        compiled: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, head_sets)
        self.losses = nn.ModuleDict(losses)
        self.optimizer = optimizer
        self.schedule = schedule
        self.evaluate = evaluate
        self.validated_on = validated_on
        self.monitor = monitor
        self.pace = pace or SchedulePace()
        self.gradient_cache = gradient_cache
        # no module of this one: its parameters are the model's, and a checkpoint holds them once
        self._compiled: list[Any] = [] if compiled is None else [torch.compile(self.network, **compiled)]
        self.divergence = DivergenceCheck()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer with a group of parameters a role, and its schedule."""
        optimizer = self.optimizer(self.model.roles | {"loss": list(self.losses.parameters())})
        if self.schedule is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.schedule(optimizer), "interval": "step"},
        }

    @property
    def network(self) -> nn.Module:
        """What embeds the images of a training step."""
        return self.model

    @property
    def trained_network(self) -> nn.Module:
        """The same, compiled if asked for."""
        network: nn.Module = self._compiled[0] if self._compiled else self.network
        return network

    @property
    def epoch(self) -> int:
        """The sampler's epoch; to Lightning a run is one."""
        return self.pace.epoch(self.global_step)

    def on_train_start(self) -> None:
        """Gives a resumed run the schedule of its present length, which needn't be that of its checkpoint."""
        if self.schedule is not None and self.global_step:
            optimizer: Any = self.optimizers(use_pl_optimizer=False)
            ended = self.pace.ended(self.global_step)
            self.trainer.lr_scheduler_configs[0].scheduler = schedule_after(self.schedule, optimizer, ended)

    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:  # noqa: ARG002
        """Moves the schedule by the intervals that ended with this step."""
        for _ in range(self.pace.ended(self.global_step - 1), self.pace.ended(self.global_step)):
            scheduler.step()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:  # noqa: ARG002
        """The sum of the heads' losses over the embeddings of all processes."""
        images, labels, rows = batch
        labels, rows = self.gather_batch(labels), self.gather_batch(rows)
        embeddings = self.embeddings(images, batch[2])
        terms = {
            head: loss_value(self.losses[head], self.gather_batch(part), labels, rows)
            for head, part in embeddings.items()
        }
        self.divergence.note(self.global_step, self.losses, embeddings, terms)
        total = torch.stack(list(terms.values())).sum()
        self.log("loss", total, prog_bar=True)
        self.log("epoch", torch.tensor(float(self.epoch)))  # on the CPU: Lightning would send a float to the GPU
        if len(terms) > 1:
            self.log_dict({f"loss/{head}": term for head, term in terms.items()})
        return total

    def embeddings(self, images: Tensor, rows: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """images (B, 3, H, W), their rows (B,) of the training table -> each head's embeddings (B, D) for its loss."""
        return in_chunks(self.trained_network, images, self.gradient_cache)

    def gather_batch(self, rows: Tensor) -> Tensor:
        """Rows of one process -> those of all, with gradients.

        Each of W processes computes the whole loss, so the gathered gradients add up to W times the gradient,
        which DistributedDataParallel's mean over processes makes exact.
        """
        if self.trainer.world_size == 1:
            return rows
        return self.gather(rows, gradients=rows.is_floating_point()).flatten(0, 1)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Holds the backbone still during the warm-up.

        Its gradients are dropped rather than never computed: DistributedDataParallel waits for each of them.
        """
        if self.global_step < self.pace.warmup_steps:
            for parameter in self.model.backbone.parameters():
                parameter.grad = None

    def on_validation_start(self) -> None:
        """Judge no weights that come from a loss that was not finite."""
        self.divergence.settle()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Write no weights that come from a loss that was not finite."""
        self.divergence.settle()

    def on_train_end(self) -> None:
        """Read the last steps' answers."""
        self.divergence.settle()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Embeds a batch."""
        self.collect(batch, self.of_images)

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the validation's split as ``val/...``."""
        embedded = self.embed_split()
        for head in self.losses:
            if not torch.isfinite(embedded.embeddings[head]).all():
                raise diverged(self.global_step, "embeddings", head, type(self.losses[head]).__name__)
        heads = MetricName.parse(self.monitor).heads
        metrics = evaluate_heads(embedded, [ALL_HEADS, *([heads] if heads else [])], self.evaluate, self.device)
        self.log_dict({f"{self.validated_on}/{name}": value for name, value in metrics.items()}, rank_zero_only=False)
        self.log("epoch", float(self.epoch))
        self.log(short(self.monitor), metrics[self.monitor], prog_bar=True, logger=False)
