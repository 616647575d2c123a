"""The Poincare ball: its points, its distances, and the order of its distances as one of inner products."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.ops.gradients import block_size
from dml.runtime.errors import InputError

MARGIN = 1e-5
"""What the release adds to a norm before it compares it with the clip radius."""

LARGEST_NORM = 1.0 - 1e-3
"""The largest norm of a point as a part of the ball's radius, as in the release; distances grow without bound there."""


class Ball(NamedTuple):
    """A Poincare ball, and how embeddings become points of it, see `to_ball`.

    Args:
        curvature: curvature c of the ball, above 0.
        clip: largest norm of an embedding before the map into the ball.
    """

    curvature: float
    clip: float


def check_ball(name: str, curvature: float, clip: float) -> None:
    """Make sure that a curvature and a clip radius describe a ball, or the sphere.

    Args:
        name: name of the option whose values these are, for the error.
        curvature: curvature c of the ball, 0 for the sphere.
        clip: largest norm of an embedding before the map into the ball.

    Raises:
        InputError: if they don't.
    """
    if not 0.0 <= curvature < float("inf"):
        raise InputError(f"{name}.curvature={curvature}: must be 0 (the sphere) or above, such as 0.1")
    if not clip > 0.0:
        raise InputError(f"{name}.clip={clip}: the largest norm of an embedding must be above 0, such as 2.3")


def to_ball(embeddings: Tensor, curvature: float, clip: float) -> Tensor:
    """Map embeddings into the Poincare ball: clipping, and the exponential map at 0 (Ermolov et al., 2022, Eq. 3, 7).

    x is first multiplied by min(1, clip / (|x| + 1e-5)), as in the release, and then becomes
    tanh(sqrt(c) |x|) x / (sqrt(c) |x|). Points stay within 0.999 of the radius of the ball. Curvature 0 L2-normalizes.

    >>> to_ball(torch.tensor([[0.5, 0.0], [30.0, 40.0]]), curvature=1.0, clip=1.0)
    tensor([[0.4621, 0.0000],
            [0.4570, 0.6093]])

    Args:
        embeddings: (B, D) embeddings.
        curvature: c; the ball has radius 1 / sqrt(c).
        clip: largest norm of an embedding before the map.

    Returns:
        The points (B, D), in float32 for embeddings of half precision, whose points could lie outside.
    """
    if not curvature:
        return F.normalize(embeddings, dim=1)
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    root = curvature**0.5
    directions: Tensor = F.normalize(embeddings, dim=1)
    norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    clipped = norms * (clip / (norms + MARGIN)).clamp(max=1.0)
    points: Tensor = directions * (root * clipped).tanh().clamp(max=LARGEST_NORM) / root
    return points


def join_in_ball(parts: Sequence[Tensor], ball: Ball) -> Tensor:
    """Map the embeddings (B, D) of several heads into a ball -> points (B, sum of D).

    They are concatenated and divided by the root of the number of heads, so that they are as long as those of one head.

    Args:
        parts: embeddings (B, D) of each head.
        ball: ball that the points are in.
    """
    return to_ball(torch.cat([*parts], dim=1) / len(parts) ** 0.5, ball.curvature, ball.clip)


def poincare_distances(points: Tensor, items: Tensor, curvature: float) -> Tensor:
    """Compute the Poincare distances of points (N, D) and other points (M, D) -> (N, M).

    d(x, y) = 2 / sqrt(c) asinh(sqrt(c |x - y|^2 / ((1 - c |x|^2) (1 - c |y|^2)))), which equals the usual form
    2 / sqrt(c) artanh(sqrt(c) |-x (+) y|) by Moebius addition (+), and is accurate for near points too.

    >>> poincare_distances(torch.zeros(1, 2), torch.tensor([[0.5, 0.0]]), curvature=1.0)
    tensor([[1.0986]])

    Args:
        points: (N, D) points of the ball.
        items: (M, D) points of the ball.
        curvature: c, above 0; the ball has radius 1 / sqrt(c).

    Raises:
        InputError: if the curvature isn't above 0.
    """
    if not curvature > 0.0:
        raise InputError(f"curvature={curvature}: Poincare distances need a curvature above 0")
    gaps = euclidean_distances(points, items)
    return _scale_gaps(gaps, points.square().sum(dim=1)[:, None], items.square().sum(dim=1), curvature)


def euclidean_distances(points: Tensor, items: Tensor, block: int | None = None) -> Tensor:
    """Compute the Euclidean distances of points (N, D) and items (M, D) without products, which round -> (N, M).

    On a GPU, the backward pass of torch.cdist holds all M D differences of each point that it is given. It is
    therefore given a few points at a time.

    Args:
        points: (N, D) points.
        items: (M, D) points.
        block: largest number of differences that are held at a time; None takes all at once on a CPU, which holds none.
    """
    size = (block or block_size(points.device, on_cpu=len(points) * items.numel())) // max(1, items.numel())
    parts = torch.split(points, max(1, size))
    distances = [torch.cdist(part, items, compute_mode="donot_use_mm_for_euclid_dist") for part in parts]
    return distances[0] if len(distances) == 1 else torch.cat(distances)


def pair_distances(points: Tensor, items: Tensor, curvature: float) -> Tensor:
    """Compute the Poincare distance of each point (..., D) and its item (..., D), which are broadcast -> (...).

    >>> pair_distances(torch.zeros(2), torch.tensor([0.5, 0.0]), curvature=1.0)
    tensor(1.0986)
    """
    gaps = torch.linalg.vector_norm(points - items, dim=-1)
    return _scale_gaps(gaps, points.square().sum(dim=-1), items.square().sum(dim=-1), curvature)


def _scale_gaps(gaps: Tensor, point_squares: Tensor, item_squares: Tensor, curvature: float) -> Tensor:
    """Turn Euclidean distances of points and items, and their squared norms, into Poincare distances."""
    root = curvature**0.5
    room = ((1.0 - curvature * point_squares) * (1.0 - curvature * item_squares)).sqrt()
    distances: Tensor = (root * gaps / room).asinh() * (2.0 / root)
    return distances


def ranking_vectors(points: Tensor, curvature: float) -> tuple[Tensor, Tensor]:
    """Turn points into vectors whose inner products are in the descending order of the Poincare distances.

    For a fixed query x, the distances d(x, y) are in the order of |x - y|^2 / (1 - c |y|^2). That is the inner product
    of (-2x, |x|^2, 1) and (y, 1, |y|^2) / (1 - c |y|^2). Here its sign is changed, each query's vector has unit length
    and the vectors of the items are divided by the largest norm of a vector of the ball. All inner products are
    therefore between -1 and 1, and a vector depends on its own point alone.

    >>> queries, items = ranking_vectors(torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.6, 0.0]]), curvature=1.0)
    >>> (queries @ items.T).argsort(dim=1, descending=True).tolist()
    [[0, 1, 2], [1, 2, 0], [2, 1, 0]]

    Args:
        points: (N, D) points of the ball, of norm 0.999 / sqrt(c) at most.
        curvature: c, above 0.

    Returns:
        The vectors of the points as queries (N, D + 2), and as items of a gallery (N, D + 2).
    """
    wide = points.double()
    squared, constant = wide.square().sum(dim=1, keepdim=True), wide.new_ones(len(wide), 1)
    queries = F.normalize(torch.cat([2.0 * wide, -squared, -constant], dim=1), dim=1)
    items = torch.cat([wide, constant, squared], dim=1) / (1.0 - curvature * squared)
    return queries.to(points.dtype), (items / _largest_item(curvature)).to(points.dtype)


def _largest_item(curvature: float) -> float:
    """Return the largest norm that an item's vector of `ranking_vectors` has before it is divided by this number."""
    edge = LARGEST_NORM**2 / curvature
    return float((edge + 1.0 + edge**2) ** 0.5 / (1.0 - LARGEST_NORM**2))


def product_distances(points: Tensor, products: Tensor, curvature: float) -> Tensor:
    """Compute the Poincare distances that inner products of `ranking_vectors` stand for.

    The rounding of the products is that of the squared distances, so near 0 a distance is inexact: in float32 the
    distance of a point to itself comes out as 0 to 0.01.

    Args:
        points: (Q, D) points of the ball, whose vectors as queries were multiplied.
        products: (Q, k) inner products with the vectors of k items for each query.
        curvature: c, above 0.

    Returns:
        The distances (Q, k).
    """
    squares = points.double().square().sum(dim=1, keepdim=True)
    lengths = (4.0 * squares + squares.square() + 1.0).sqrt()
    gaps = (-products.double() * lengths * _largest_item(curvature)).clamp(min=0.0)
    distances: Tensor = (curvature * gaps / (1.0 - curvature * squares)).sqrt().asinh() * (2.0 / curvature**0.5)
    return distances.to(products.dtype)
