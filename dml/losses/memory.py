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

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """embeddings (B, D), labels (B,) or (B, L) -> scalar."""
        filled = min(int(self.queued), len(self.embeddings))
        value: Tensor
        if filled == 0:
            value = self.loss(embeddings, labels)
        else:
            value = self.loss(
                embeddings, finest(labels), gallery=self.embeddings[:filled], gallery_labels=self.labels[:filled]
            )
        if self.training:
            if int(self.steps) >= self.start:
                self._enqueue(embeddings, finest(labels))
            self.steps += 1
        return value

    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, labels: Tensor) -> None:
        """Puts the rows in the place of the oldest."""
        size = len(self.embeddings)
        kept = slice(max(0, len(labels) - size), None)
        places = (self.queued + torch.arange(len(labels), device=self.labels.device)[kept]) % size
        self.embeddings[places] = embeddings[kept].detach().to(self.embeddings)
        self.labels[places] = labels[kept]
        self.queued += len(labels)
