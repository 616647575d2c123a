from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dml.data.dataset import Batch
from dml.losses.compose import loss_value
from dml.ops.errors import InputError
from dml.training.embedding import ALL_HEADS, AnyModel, Embedded, Embedder, Evaluate
from dml.training.gradient_cache import in_chunks
from dml.training.optimizers import Roles
from dml.training.schedules import SchedulePace, schedule_after


class MetricLearner(Embedder):
    """Wires a model, a loss for each of its heads, and an optimizer.

    Args:
        model: gives an embedding a head.
        losses: for each head its own loss; the sum is minimised.
        optimizer: makes the optimizer from the parameters by role.
        schedule: makes the learning rates' schedule from the optimizer, or None.
        evaluate: the metrics of a validation, by rows of the table that is passed over.
        validated_on: the name of its split.
        pace: counts the intervals by which the schedule moves; the backbone too stands still in its warm-up.
        gradient_cache: images that pass through the network at a time, see `in_chunks`; None: the whole batch.
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
        pace: SchedulePace | None = None,
        gradient_cache: int | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.losses = nn.ModuleDict(losses)
        self.optimizer = optimizer
        self.schedule = schedule
        self.evaluate = evaluate
        self.validated_on = validated_on
        self.pace = pace or SchedulePace()
        self.gradient_cache = gradient_cache

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
        terms = {}
        for head, embeddings in self.embeddings(images, batch[2]).items():
            terms[head] = loss_value(self.losses[head], self.gather_batch(embeddings), labels, rows)
            if not torch.isfinite(terms[head]):
                raise self._diverged(head, embeddings)
        total = torch.stack(list(terms.values())).sum()
        self.log("loss", total, prog_bar=True)
        self.log("epoch", float(self.epoch))
        if len(terms) > 1:
            self.log_dict({f"loss/{head}": term for head, term in terms.items()})
        return total

    def embeddings(self, images: Tensor, rows: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """images (B, 3, H, W), their rows (B,) of the training table -> each head's embeddings (B, D) for its loss."""
        return in_chunks(self.model, images, self.gradient_cache)

    def to_store(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D) that neighbours are found among."""
        found: dict[str, Tensor] = self.model(images)
        return found

    def gather_batch(self, rows: Tensor) -> Tensor:
        """Rows of one process -> those of all, with gradients.

        Each of W processes computes the whole loss, so the gathered gradients add up to W times the gradient,
        which DistributedDataParallel's mean over processes makes exact.
        """
        if self.trainer.world_size == 1:
            return rows
        return self.gather(rows, gradients=rows.is_floating_point()).flatten(0, 1)

    def _diverged(self, head: str, embeddings: Tensor) -> InputError:
        what = "its loss" if torch.isfinite(embeddings).all() else "embeddings"
        return InputError(
            f"step {self.global_step}: {what} of head {head} became NaN or infinite under "
            f"{type(self.losses[head]).__name__}; the last good checkpoint is kept, a lower optimizer.lr may help"
        )

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:  # noqa: ARG002
        """Holds the backbone still during the warm-up.

        Its gradients are dropped rather than never computed: DistributedDataParallel waits for each of them.
        """
        if self.global_step < self.pace.warmup_steps:
            for parameter in self.model.backbone.parameters():
                parameter.grad = None

    def of_images(self, images: Tensor) -> dict[str, Tensor]:
        """images (B, 3, H, W) -> each head's embeddings (B, D)."""
        return self.to_store(images)

    def of_split(self, parts: Embedded) -> dict[str, Tensor]:
        """L2-normalised embeddings of each head, and "all" of them concatenated."""
        heads = {name: F.normalize(rows, dim=1) for name, rows in parts.embeddings.items()}
        return {ALL_HEADS: self.model.concatenate(parts.embeddings)} | heads

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Embeds a batch."""
        self.collect(batch, self.of_images)

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the validation's split as ``val/...``."""
        embedded = self.embed_split()
        for head in self.losses:
            if not torch.isfinite(embedded.embeddings[head]).all():
                raise self._diverged(head, embedded.embeddings[head])
        metrics = self.evaluate(embedded.embeddings[ALL_HEADS].to(self.device), embedded.rows)
        self.log_dict({f"{self.validated_on}/{name}": value for name, value in metrics.items()}, rank_zero_only=False)
        self.log("epoch", float(self.epoch))
        self.log("R@1", metrics["level0/recall@1"], prog_bar=True, logger=False)
