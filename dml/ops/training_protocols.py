"""What a training gives to the losses, samplers and models that have a method for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class EmbeddingBank:
    """Embeddings of all N training images and the nearest neighbors of each image, on the CPU.

    >>> bank = EmbeddingBank(torch.eye(3))
    >>> bank.embeddings.shape, bank.neighbors.shape
    (torch.Size([3, 3]), torch.Size([3, 0]))

    Args:
        embeddings: (N, D) embeddings; a loss gets those of its head, as the network makes them; samplers and models get
            the L2-normalized embeddings of all heads together, as a test compares them.
        neighbors: (N, K) indices of each image's nearest other images, nearest first; K is the largest
            `num_bank_neighbors` of all users.
        by_head: embeddings (N, D) of each head by its name, as the network makes them.
    """

    embeddings: Tensor
    neighbors: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    by_head: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.neighbors):
            object.__setattr__(self, "neighbors", torch.empty(len(self.embeddings), 0, dtype=torch.long))


@runtime_checkable
class UsesEmbeddingBank(Protocol):
    """A sampler, a loss or a part of one, or a part of a model that uses embeddings of the training images.

    The training calls `set_embedding_bank` before the first step, after a resume, and every
    ``training.bank_every_n_steps``.
    """

    num_bank_neighbors: int
    """Number of nearest neighbors of each image that the user needs; 0 if it needs none."""

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        """Take the newest embeddings; a sampler uses them from its next `iter()` on."""


@runtime_checkable
class UsesHierarchy(Protocol):
    """A loss, or a part of one, that uses the coarser labels of the training classes."""

    def set_hierarchy(self, labels: Tensor) -> None:
        """Take the labels (N, L) of all training images; column 0 is the finest level."""
