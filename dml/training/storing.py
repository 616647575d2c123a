from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from dml.losses.regularizers import EmbeddingDrift
from dml.models.recurrent import RecurrentModel
from dml.ops.errors import InputError
from dml.samplers.base import LearnsFromEmbeddings
from dml.samplers.local_neighborhood import hard_shares
from dml.training.data import DataModule
from dml.training.embedding import Embedded
from dml.training.module import MetricLearner
from dml.training.recurrent import RecurrentLearner
from dml.training.stored import Stored


class StoredEmbeddings(Callback):
    """Embeds the training set before the first step, and again every n steps, and hands the result to who uses it.

    They are the sampler, if it learns from embeddings; the drift terms of the losses; and a recurrent model, whose
    neighbours its pre-trained network stores. Without any of them this callback does nothing. The images go through
    the test's transform and the network is in evaluation mode. What was stored is in the checkpoint: a resumed run
    goes on with it.

    While there are neighbours, the shares of a batch (`hard_shares`) are logged as ``batch/...``.

    Args:
        every_n_steps: None stores them once. A sampler takes them up with its next epoch, so an epoch must end then.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise InputError(f"stored.every_n_steps={every_n_steps}: at least 1, or null")
        self.every_n_steps = every_n_steps
        self.stored: Stored | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Refuses an interval that ends within the sampler's epochs, and keeps the loader from going beyond its end.

        Raises:
            InputError: for such an interval.
        """
        sampler = data_of(trainer).sampler
        if self.every_n_steps and isinstance(sampler, LearnsFromEmbeddings):
            batches = self.every_n_steps * trainer.accumulate_grad_batches
            if batches % len(sampler):
                raise InputError(
                    f"stored.every_n_steps={self.every_n_steps}: the sampler takes new neighbours up with its next "
                    f"epoch, and has {len(sampler)} batches an epoch; sampler.batches_per_epoch={batches} would do"
                )
            data_of(trainer).sampler_learns_every = batches

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stores the embeddings, unless the run was resumed with them."""
        assert isinstance(pl_module, MetricLearner)
        if self._wanted(trainer, pl_module) is not None:
            if self.stored is None:
                self._store(trainer, pl_module)
            self._hand_out(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Logs the batch's shares."""
        assert isinstance(pl_module, MetricLearner)
        logged = (trainer.global_step + 1) % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        if self.stored is None or not self.stored.neighbors.numel() or not logged:
            return
        rows = pl_module.gather_batch(batch[2]).cpu()
        shares = hard_shares(data_of(trainer).train_table.labels, self.stored.neighbors, rows)
        for name, value in shares._asdict().items():
            pl_module.log(f"batch/{name}", value)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Stores them anew if it is time."""
        assert isinstance(pl_module, MetricLearner)
        steps = (batch_idx + 1) // trainer.accumulate_grad_batches
        whole = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        due = self.every_n_steps and whole and steps % self.every_n_steps == 0 and steps < trainer.max_steps
        if due and self.stored is not None:
            self._store(trainer, pl_module)
            self._hand_out(trainer, pl_module)

    def _wanted(self, trainer: Trainer, module: MetricLearner) -> int | None:
        """The most neighbours that somebody asks for; None if nobody uses stored embeddings."""
        wanted = [0 for loss in module.losses.modules() if isinstance(loss, EmbeddingDrift)]
        if isinstance(module.model, RecurrentModel):
            wanted.append(module.model.neighbors)
        if isinstance(sampler := data_of(trainer).sampler, LearnsFromEmbeddings):
            wanted.append(sampler.wanted_neighbors)
        return max(wanted, default=None)

    def _store(self, trainer: Trainer, module: MetricLearner) -> None:
        found = embed_training_images(trainer, module, lambda images, **_: module.to_store(images))
        count = len(data_of(trainer).train_table)
        embeddings = {head: rows.new_zeros(count, rows.shape[1]) for head, rows in found.embeddings.items()}
        for head, rows in found.embeddings.items():
            embeddings[head][found.rows] = rows  # an image that cannot be read stays at 0, where it is nobody's nearest
        stored = Stored.of(module.model, embeddings, self._wanted(trainer, module) or 0)
        # nearly equal neighbours may stand in another order on another machine: all processes take those of the first
        self.stored = Stored(embeddings, trainer.strategy.broadcast(stored.neighbors))

    def _hand_out(self, trainer: Trainer, module: MetricLearner) -> None:
        assert self.stored is not None
        if isinstance(module, RecurrentLearner):
            module.stored = self.stored
        sampler = data_of(trainer).sampler
        if isinstance(sampler, LearnsFromEmbeddings):
            sampler.learn(module.model.concatenate(self.stored.embeddings).numpy(), self.stored.neighbors.numpy())
        for head, loss in module.losses.items():
            for part in loss.modules():
                if isinstance(part, EmbeddingDrift):
                    part.stored = self.stored.embeddings[head]

    def state_dict(self) -> dict[str, Any]:
        """What is stored, for the checkpoint."""
        return dict(vars(self.stored)) if self.stored else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What the checkpoint stored."""
        self.stored = Stored(**state_dict) if state_dict else None


@torch.no_grad()
def embed_training_images(trainer: Trainer, module: MetricLearner, embed: Callable[..., dict[str, Tensor]]) -> Embedded:
    """What ``embed(images, rows=rows)`` gives for the training images, by the test's transform in evaluation mode."""
    training = module.training
    module.eval()
    for batch in data_of(trainer).training_images():
        moved = trainer.strategy.batch_to_device(batch)
        with trainer.precision_plugin.forward_context():
            module.collect(moved, partial(embed, rows=moved[2]))
    module.train(training)
    return module.gather_split()


def data_of(trainer: Trainer) -> DataModule:
    """What it trains on."""
    return cast(DataModule, trainer.datamodule)  # type: ignore[attr-defined]
