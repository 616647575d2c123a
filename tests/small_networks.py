"""A network for tests in which it doesn't matter which one learns."""

from typing import Any

from dml.models.backbone import Backbone
from dml.models.small_cnn import small_cnn

TWO_CONVOLUTIONS = (
    "model.backbone._target_=small_networks.two_convolutions",
    "model.backbone.weights=null",
    "model.taps={L:pool1,M:relu2,H:pool2}",
)
"""Overrides that put the network in the place of a timm model; heads and sizes stay.

`SMALL` of conftest.py doesn't need them, as it chooses ``model=small_cnn``.
"""


def two_convolutions(weights: None, name: str = "", **settings: Any) -> Backbone:
    """Build `small_cnn` with the arguments of `timm_backbone`, or with its own."""
    return small_cnn(weights, **settings)
