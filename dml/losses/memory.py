from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dml.losses.loss_contract import Loss
from dml.ops.pairs import finest
from dml.runtime.errors import InputError, check_whole


class CrossBatchMemory(Loss):
    """Cross-batch memory, XBM (Wang et al., 2020), Algorithm 1: compares a batch with embeddings of earlier batches.

    The memory is a queue of the latest ``size`` embeddings, without gradients. During the first ``start`` training
    steps the batch is compared with itself alone. From then on each embedding is compared with the batch and with
    the memory, and the batch is then added to the memory.

    Departures: Algorithm 1 adds the batch to the memory before the comparison, detached, and the release adds the
    loss of the batch alone. Here the batch is compared with itself once, with its gradient, so that an empty memory
    gives the loss of the batch alone.

    The memory is saved in the checkpoint. In distributed training every process sees the batches of all processes
    in the same order, so the memories stay equal. In evaluation mode the memory doesn't change.

    >>> from pytorch_metric_learning.losses import ContrastiveLoss
    >>> from dml.losses.baselines import PairLoss
    >>> loss = CrossBatchMemory(PairLoss(ContrastiveLoss(), None, normalize=True), embedding_dim=2, size=8, start=0)
    >>> loss(torch.eye(2), torch.tensor([0, 1])).item(), int(loss.queued)
    (0.0, 2)

    Args:
        loss: a pair loss that takes ``gallery`` and ``gallery_labels``, such as ``dml.losses.baselines.PairLoss``.
        size: number of embeddings that the memory holds, M; the paper's memory is about as large as the training set.
        start: number of training batches before the memory is used, because embeddings change fast at first; the paper
            has 1,000, in trainings of tens of thousands of batches.
    """

    remembers_batches: ClassVar[bool] = True
    embeddings: Tensor
    labels: Tensor
    steps: Tensor
    queued: Tensor

    def __init__(self, loss: nn.Module, embedding_dim: int, size: int = 8192, start: int = 100) -> None:
        super().__init__()
        check_whole("loss.size", size, least=1)
        if not getattr(loss, "takes_gallery", False):
            inner = type(getattr(loss, "loss", loss)).__name__
            raise InputError(f"loss.loss: {inner} compares a batch with itself alone, not with a memory")
        self.loss = loss
        self.size, self.start = size, start
        self.needs_positives = bool(getattr(loss, "needs_positives", False))
        self.register_buffer("embeddings", torch.zeros(size, embedding_dim))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.long))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))  # training steps
        self.register_buffer("queued", torch.zeros((), dtype=torch.long))  # embeddings added since the start

        # Steps and queued as Python numbers, because reading them from a GPU in each step would wait for the GPU.
        # None after loading a checkpoint: they must be read from the buffers.
        self._counters: tuple[int, int] | None = (0, 0)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load the memory, and let the next step read the counters from the buffers."""
        super()._load_from_state_dict(*args, **kwargs)
        self._counters = None

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of embeddings (B, D) with labels (B,) or (B, L) -> scalar."""
        if self._counters is None:
            self._counters = int(self.steps), int(self.queued)
        steps, queued = self._counters
        classes = finest(labels)
        filled = min(queued, len(self.embeddings))
        memory = {"gallery": self.embeddings[:filled], "gallery_labels": self.labels[:filled]} if filled else {}
        value: Tensor = self.loss(embeddings, labels, **memory)
        if self.training:
            if steps >= self.start:
                self._enqueue(embeddings, classes, queued)
                queued += len(labels)
            self.steps += 1
            self._counters = steps + 1, queued
        return value

    @torch.no_grad()
    def _enqueue(self, embeddings: Tensor, labels: Tensor, queued: int) -> None:
        """Replace the oldest embeddings of the memory by a batch, after ``queued`` embeddings were added."""
        size = len(self.embeddings)
        latest = slice(max(0, len(labels) - size), None)
        slots = torch.arange(queued, queued + len(labels), device=self.labels.device)[latest] % size
        self.embeddings[slots] = embeddings[latest].detach().to(self.embeddings)
        self.labels[slots] = labels[latest]
        self.queued += len(labels)
