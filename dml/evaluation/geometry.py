"""The geometry in which embeddings are compared."""

from collections.abc import Mapping
from typing import Any

from dml.ops.errors import InputError
from dml.ops.poincare import Ball, check_ball


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
