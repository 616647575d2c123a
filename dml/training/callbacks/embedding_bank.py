"""The embedding bank of the training images, and the callback that keeps it up to date."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from dml.models.recurrent import AnyModel
from dml.ops.training_protocols import EmbeddingBank, UsesEmbeddingBank
from dml.retrieval.rows import ranking_device
from dml.retrieval.search import nearest_neighbors
from dml.runtime.errors import InputError
from dml.samplers.local_neighborhood import hard_shares
from dml.training.data import DataModule
from dml.training.distributed import gather_batch
from dml.training.embedders import Embedded, EmbeddedBatch
from dml.training.module import MetricLearner


@dataclass(frozen=True)
class HeadBank:
    """The embedding bank of all heads, Z in section 3.4 of the thesis on local neighborhood sampling, on the CPU."""

    embeddings: dict[str, Tensor]  # (N, D) by head, as the losses see them
    neighbors: Tensor  # (N, K) each image's nearest other images by the embeddings of all heads, nearest first

    def neighbor_embeddings(self, rows: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Look up the neighbors' embeddings (B, K, D) by each head for rows (B,) of the split, on the device."""
        neighbors = self.neighbors[rows.cpu()]
        return {head: embeddings[neighbors].to(device) for head, embeddings in self.embeddings.items()}


def find_bank_users(sampler: Any, module: MetricLearner) -> list[tuple[UsesEmbeddingBank, str | None]]:
    """Find everything that uses the bank: pairs of a user and, if it is a part of a loss, the head of the loss."""
    candidates: Iterator[tuple[Any, str | None]] = chain(
        ((candidate, None) for candidate in (sampler, module, *module.model.modules())),
        ((part, head) for head, loss in module.losses.items() for part in loss.modules()),
    )
    return [(candidate, head) for candidate, head in candidates if isinstance(candidate, UsesEmbeddingBank)]


def find_neighbors(model: AnyModel, embeddings: Mapping[str, Tensor], k: int) -> HeadBank:
    """Find the k nearest neighbors of each image of a split by its model's embeddings (N, D) of all heads."""
    if not k:
        return HeadBank(dict(embeddings), torch.empty(len(next(iter(embeddings.values()))), 0).long())
    device = ranking_device(next(model.parameters()).device)
    return HeadBank(dict(embeddings), nearest_neighbors(model.concatenate(embeddings).to(device), k)[1])


class EmbeddingBankUpdates(Callback):
    """Recomputes the embedding bank and passes it to the sampler, the losses and the models that use it.

    The sampler, the learner, and the parts of the model and of the losses get the bank if they implement
    `UsesEmbeddingBank`: before the first step, and again every n steps. While it has neighbors, the shares of hard
    negatives and positives in a batch (`hard_shares`) are logged as ``batch/...``.

    Args:
        every_n_steps: number of optimizer steps between two updates; None computes the bank once. A sampler takes up a
            new bank with its next epoch, so an epoch must end at each update.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.every_n_steps = every_n_steps
        self.bank: HeadBank | None = None
        self._is_outdated = False

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Refuse an interval that ends within an epoch of the sampler; the loader doesn't go beyond its end."""
        sampler = get_training_data(trainer).sampler
        if self.every_n_steps and isinstance(sampler, UsesEmbeddingBank):
            batches = self.every_n_steps * trainer.accumulate_grad_batches
            if batches % len(sampler):
                raise InputError(
                    f"training.bank_every_n_steps={self.every_n_steps}: the sampler takes new neighbors up with its "
                    f"next epoch, and has {len(sampler)} batches an epoch; sampler.batches_per_epoch={batches} would do"
                )
            get_training_data(trainer).batches_between_bank_updates = batches

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Compute the bank, unless the run was resumed with it, and pass it on."""
        if self.bank is None or self._is_outdated:
            self._compute_bank(trainer, pl_module)
            self._is_outdated = False
        self._set_bank(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, *_: Any) -> None:
        """Log the shares of hard negatives and positives in the batch."""
        if self.bank is None or not self.bank.neighbors.numel() or not pl_module.is_logged_step:
            return
        rows = gather_batch(pl_module, batch[2]).cpu()
        shares = hard_shares(get_training_data(trainer).train_table.labels, self.bank.neighbors, rows)
        for name, value in shares._asdict().items():
            pl_module.log(f"batch/{name}", value)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, _outputs: Any, _batch: Any, batch_idx: int) -> None:
        """Update the bank if an update is due."""
        steps = (batch_idx + 1) // trainer.accumulate_grad_batches
        is_whole_step = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if self.bank is None or not self.every_n_steps or not is_whole_step or steps % self.every_n_steps:
            return
        self._is_outdated = steps == trainer.max_steps  # a run that is prolonged makes up for the update
        if not self._is_outdated:
            self._compute_bank(trainer, pl_module)
            self._set_bank(trainer, pl_module)

    def _compute_bank(self, trainer: Trainer, module: MetricLearner) -> None:
        module.divergence.read()
        embedded = embed_training_images(trainer, module, lambda images, **_: module.embed_for_bank(images))
        count = len(get_training_data(trainer).train_table)
        embeddings = {head: rows.new_zeros(count, rows.shape[1]) for head, rows in embedded.embeddings.items()}
        for head, rows in embedded.embeddings.items():
            # An image that can't be read stays at 0, where it is the nearest neighbor of no other image.
            embeddings[head][embedded.rows] = rows
        k = max(user.num_bank_neighbors for user, _ in find_bank_users(get_training_data(trainer).sampler, module))
        bank = find_neighbors(module.model, embeddings, k)
        # Neighbors at nearly equal distances may come in another order on another machine.
        self.bank = HeadBank(embeddings, trainer.strategy.broadcast(bank.neighbors))

    def _set_bank(self, trainer: Trainer, module: MetricLearner) -> None:
        assert self.bank is not None
        embeddings, neighbors = self.bank.embeddings, self.bank.neighbors
        joined = module.model.concatenate(embeddings)  # for samplers and models; a loss gets those of its head
        for user, head in find_bank_users(get_training_data(trainer).sampler, module):
            user.set_embedding_bank(EmbeddingBank(joined if head is None else embeddings[head], neighbors, embeddings))

    def state_dict(self) -> dict[str, Any]:
        """Return the bank for the checkpoint, and whether its update fell on the last step and was left out."""
        return {**vars(self.bank), "is_outdated": self._is_outdated} if self.bank else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        bank = dict(state_dict)
        self._is_outdated = bank.pop("is_outdated", False)
        self.bank = HeadBank(**bank) if bank else None


@torch.no_grad()
def embed_training_images(trainer: Trainer, module: MetricLearner, embed: Callable[..., dict[str, Tensor]]) -> Embedded:
    """Embed the training images with the transform of a test, in evaluation mode; all processes get all of them.

    The function is called with a batch as ``embed(images, rows=rows)`` -> embeddings (B, D) by name.
    """
    training = module.training
    batches: list[EmbeddedBatch] = []
    module.eval()
    for batch in get_training_data(trainer).training_images():
        images, _, rows = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
        if len(rows):
            with trainer.precision_plugin.forward_context():
                batches.append((embed(images, rows=rows), rows))
    module.train(training)
    return module.gather_split(batches)


def get_training_data(trainer: Trainer) -> DataModule:
    """Return the data that a trainer trains on."""
    return cast(DataModule, trainer.datamodule)  # type: ignore[attr-defined]
