"""Embeddings as every ranking takes them: checked and scaled to unit length once, on the device that ranks them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.retrieval.rows import Embeddings, unit_rows


def ranking_device(device: torch.device) -> torch.device:
    """Return the device that embeddings are ranked on: a CUDA device itself, else the CPU, as MPS lacks float64."""
    return device if device.type == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class UnitEmbeddings:
    """Embeddings (N, D) float32 of unit length on their `ranking_device`, checked and scaled once; 0 stays 0."""

    rows: Tensor

    @classmethod
    def normalize(cls, embeddings: "Embeddings | UnitEmbeddings", name: str = "embeddings") -> "UnitEmbeddings":
        """Check and scale embeddings (`dml.retrieval.unit_rows`); what is normalized already is returned as it is."""
        return embeddings if isinstance(embeddings, UnitEmbeddings) else cls(unit_rows(embeddings, name))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: npt.NDArray[np.int64]) -> "UnitEmbeddings":
        """Return the embeddings of some rows."""
        return UnitEmbeddings(self.rows[torch.from_numpy(indices).to(self.rows.device)])
