"""Embeddings that were checked and L2-normalised once, for everything that follows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.errors import InputError
from dml.ops.poincare import LARGEST_NORM
from dml.retrieval.rows import Embeddings, float32_rows, unit_rows


def ranking_device(device: torch.device) -> torch.device:
    """Return the device that embeddings on a device are ranked on: a CUDA device itself, for any other the CPU.

    Metrics are float64, which Apple's MPS lacks; and what CUDA does not compute, numpy and FAISS do.
    """
    return device if device.type == "cuda" else torch.device("cpu")


@dataclass(frozen=True)
class UnitEmbeddings:
    """Embeddings of unit length, or points of a Poincare ball, which every function of this package takes as they are.

    A test evaluates, maps and compares the same embeddings: `UnitEmbeddings.normalize` checks and scales them once.

    Args:
        rows: (N, D) float32 embeddings of unit length, or of length 0, on their `ranking_device`; points of the ball
            if there is a curvature.
        curvature: curvature of the Poincare ball that the rows are points of; 0 for embeddings of unit length.
    """

    rows: Tensor
    curvature: float = 0.0

    @classmethod
    def normalize(
        cls, embeddings: "Embeddings | UnitEmbeddings", name: str = "embeddings", curvature: float = 0.0
    ) -> "UnitEmbeddings":
        """Check embeddings and scale them to unit length; return embeddings that are normalised already as they are.

        Points of a Poincare ball are checked, and keep their lengths.

        Args:
            embeddings: (N, D) embeddings of any real type, on any device.
            name: name of the embeddings in error messages.
            curvature: curvature of the Poincare ball whose points the embeddings are; 0 for other embeddings.

        Raises:
            InputError: if the embeddings have another shape, hold values that are not finite, or are outside the ball.
        """
        if isinstance(embeddings, UnitEmbeddings):
            return embeddings
        if not curvature:
            return cls(unit_rows(embeddings, name))
        points, limit = float32_rows(embeddings, name), LARGEST_NORM / curvature**0.5
        num_outside = int((torch.linalg.vector_norm(points, dim=1) > limit * (1.0 + 1e-6)).sum())
        if num_outside:
            raise InputError(
                f"{name}: {num_outside} of {len(points)} points are outside the Poincare ball of curvature "
                f"{curvature}: dml.losses.hyperbolic.to_ball maps embeddings to points of norm {limit:.4g} at most"
            )
        return cls(points, curvature)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: npt.NDArray[np.int64]) -> "UnitEmbeddings":
        """Return the embeddings of some rows."""
        return UnitEmbeddings(self.rows[torch.from_numpy(indices).to(self.rows.device)], self.curvature)
