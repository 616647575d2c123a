from typing import Any

import torch
from torch import Tensor, nn

from dml.ops.errors import InputError
from dml.ops.pairs import finest


class CrossBatchMemory(nn.Module):
    """Cross-batch memory, XBM (Wang et al., 2020), Algorithm 1: pairs with the embeddings of earlier batches.

    After ``start`` steps with the batch alone, each embedding is compared with the batch and with the memory, a
    queue of the latest ``size`` embeddings; then the batch is queued. The memory carries no gradient.

    Departures: Algorithm 1 detaches the batch's own copy in the memory, and the release adds the loss of the batch
    alone to it; here the batch stands there once, with its gradient, so an empty memory changes nothing.

    The queue is in the checkpoint. In a distributed training every process sees the batch of all, in the same
    order, and so keeps the same queue. A loss that isn't in training mode leaves it as it is.

    Args:
        loss: a pair loss that takes ``gallery`` and ``gallery_labels``, such as ``dml.losses.baselines.PairLoss``.
        embedding_dim: D.
        size: M, of the queue; the paper's holds about as many as the training set has images.
        start: steps of training before the memory is used, as embeddings change fast at first.
    """

    embeddings: Tensor
    labels: Tensor
    steps: Tensor
    queued: Tensor

    def __init__(self, loss: nn.Module, embedding_dim: int, size: int = 8192, start: int = 1000) -> None:
        super().__init__()
        if size < 1:
            raise InputError(f"loss.size={size}: the memory holds at least 1 embedding")
        if not getattr(loss, "takes_gallery", False):
            inner = type(getattr(loss, "loss", loss)).__name__
            raise InputError(f"loss.loss: {inner} compares a batch with itself alone, not with a memory")
        self.loss = loss
        self.start = start
        self.needs_positives = bool(getattr(loss, "needs_positives", False))
        self.register_buffer("embeddings", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))  # of training
        self.register_buffer("queued", torch.zeros((), dtype=torch.long))  # rows, ever

        # the two counters on the CPU, as to read them from a GPU in each step would wait for it; None: to be read
        self._counted: tuple[int, int] | None = (0, 0)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the queue; the counters are read anew."""
        super()._load_from_state_dict(*args, **kwargs)
        self._counted = None

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        if self._counted is None:
            self._counted = int(self.steps), int(self.queued)
        steps, queued = self._counted
        filled = min(queued, len(self.embeddings))
        value: Tensor
        if filled == 0:
            value = self.loss(embeddings, labels)
        else:
            value = self.loss(
                embeddings, finest(labels), gallery=self.embeddings[:filled], gallery_labels=self.labels[:filled]
            )
        if self.training:
            if steps >= self.start:
                self._enqueue(embeddings, finest(labels), queued)
                queued += len(labels)
            self.steps += 1
            self._counted = steps + 1, queued
        return value

    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, labels: Tensor, queued: int) -> None:
        """Puts the rows in the place of the oldest; so many were queued before."""
        size = len(self.embeddings)
        kept = slice(max(0, len(labels) - size), None)
        places = torch.arange(queued, queued + len(labels), device=self.labels.device)[kept] % size
        self.embeddings[places] = embeddings[kept].detach().to(self.embeddings)
        self.labels[places] = labels[kept]
        self.queued += len(labels)
