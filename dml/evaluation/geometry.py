"""How embeddings are compared: checked and scaled once, and turned into the vectors that rank them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.ops.poincare import LARGEST_NORM, Ball, check_ball, product_distances, ranking_vectors
from dml.retrieval.rows import Embeddings, float32_rows, unit_rows
from dml.runtime.errors import InputError


def choose_ball(geometry: Any, loss: Any) -> Ball | None:
    """Return the Poincare ball in which embeddings are ranked; None ranks them by cosine.

    >>> choose_ball("auto", {"curvature": 0.1, "clip": 2.3})
    Ball(curvature=0.1, clip=2.3)

    Args:
        geometry: "auto" follows the loss, None is cosine, and a mapping with the fields of `Ball` is a ball.
        loss: configuration of the loss as plain values, for "auto": the first part of it with the fields of `Ball`
            counts.

    Raises:
        InputError: if ``geometry`` is none of these, or its numbers describe no ball.
    """
    if geometry == "auto":
        ball = _find_ball(loss)
    elif geometry is None:
        return None
    elif isinstance(geometry, Mapping) and {*geometry} == {*Ball._fields}:
        ball = Ball(**geometry)
    else:
        raise InputError(
            f"evaluation.geometry={geometry}: auto, null (cosine) or a ball such as {{curvature:0.1,clip:2.3}}"
        )
    if ball is None or not ball.curvature:
        return None
    check_ball("evaluation.geometry", *ball)
    return ball


def _find_ball(part: Any) -> Ball | None:
    """Return the ball of the first part of a loss, itself first, that has a curvature and a clip radius."""
    if not isinstance(part, Mapping):
        return None
    if all(name in part for name in Ball._fields):
        return Ball(*(part[name] for name in Ball._fields))
    return next((ball for inner in part.values() if (ball := _find_ball(inner))), None)


def ranking_device(device: torch.device) -> torch.device:
    """Return the device that embeddings on a device are ranked on: a CUDA device itself, for any other the CPU.

    Metrics are float64, which Apple's MPS lacks; and what CUDA does not compute, numpy and FAISS do.
    """
    return device if device.type == "cuda" else torch.device("cpu")


class Geometry(NamedTuple):
    """How embeddings are compared: by cosine similarity, or by the distance in a Poincare ball.

    Every ranking and search compares vectors by their inner products. This class alone knows which vectors these are.

    Args:
        curvature: curvature of the ball whose points the embeddings are; 0 compares embeddings by cosine.
    """

    curvature: float = 0.0

    @property
    def name(self) -> str:
        """The name of the similarity, for tables."""
        return f"Poincare distance of curvature {self.curvature:g}" if self.curvature else "cosine"

    @classmethod
    def from_ball(cls, ball: Ball | None) -> "Geometry":
        """Return the geometry of a ball; of cosine similarities without one."""
        return cls(ball.curvature if ball else 0.0)

    @property
    def is_cosine(self) -> bool:
        """Whether embeddings are compared by cosine: the inner products of their vectors are the similarities."""
        return not self.curvature

    def check_cosine(self, subject: str) -> None:
        """Make sure that embeddings are compared by cosine.

        Raises:
            InputError: if they are points of a ball, for which there is no such ``subject``.
        """
        if self.curvature:
            raise InputError(f"{subject} is of cosine similarities, and needs curvature = 0")

    def scale(self, embeddings: Embeddings, name: str) -> Tensor:
        """Check embeddings (N, D), and scale them to unit length in float32; points of a ball keep their lengths.

        Raises:
            InputError: if the embeddings have another shape, hold values that are not finite, or are outside the ball.
        """
        if not self.curvature:
            return unit_rows(embeddings, name)
        points, limit = float32_rows(embeddings, name), LARGEST_NORM / self.curvature**0.5
        num_outside = int((torch.linalg.vector_norm(points, dim=1) > limit * (1.0 + 1e-6)).sum())
        if num_outside:
            raise InputError(
                f"{name}: {num_outside} of {len(points)} points are outside the Poincare ball of curvature "
                f"{self.curvature}: dml.losses.hyperbolic.to_ball maps embeddings to points of norm {limit:.4g} at most"
            )
        return points

    def query_vectors(self, points: Tensor) -> Tensor:
        """Return the vectors of queries, whose largest inner product is with the nearest item's `gallery_vectors`."""
        return ranking_vectors(points, self.curvature)[0] if self.curvature else points

    def gallery_vectors(self, points: Tensor) -> Tensor:
        """Return the vectors of gallery items, for the inner products with `query_vectors`."""
        return ranking_vectors(points, self.curvature)[1] if self.curvature else points

    def search_scores(self, points: Tensor, products: Tensor) -> Tensor:
        """Return the cosines, or negative Poincare distances, (Q, k) of points (Q, D) by a search's inner products."""
        return -product_distances(points, products, self.curvature) if self.curvature else products


COSINE = Geometry()


@dataclass(frozen=True)
class UnitEmbeddings:
    """Embeddings of unit length, or points of a Poincare ball, which every function of this package takes as they are.

    A test evaluates, maps and compares the same embeddings: `UnitEmbeddings.normalize` checks and scales them once.

    ``rows`` (N, D) float32 are on their `ranking_device`; a row of length 0 stays one.
    """

    rows: Tensor
    geometry: Geometry = COSINE

    @classmethod
    def normalize(
        cls, embeddings: "Embeddings | UnitEmbeddings", name: str = "embeddings", curvature: float = 0.0
    ) -> "UnitEmbeddings":
        """Check and scale embeddings, see `Geometry.scale`; what is normalized already is returned as it is."""
        if isinstance(embeddings, UnitEmbeddings):
            return embeddings
        geometry = Geometry(curvature)
        return cls(geometry.scale(embeddings, name), geometry)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: npt.NDArray[np.int64]) -> "UnitEmbeddings":
        """Return the embeddings of some rows."""
        return UnitEmbeddings(self.rows[torch.from_numpy(indices).to(self.rows.device)], self.geometry)
