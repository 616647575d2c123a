"""The check that no number of a configuration is NaN, or infinite where nothing takes that."""

import math
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError

FINITE = ("loss", "proxies", "sampler", "model", "adapter", "recurrent", "optimizer", "scheduler", "transform")
"""The parts of a configuration whose numbers are finite. Elsewhere an infinite number may stand for no limit."""

PACKAGES = ("dml", "pytorch_metric_learning", "timm", "torch", "torchvision")
"""The packages whose parts take no infinite number; a part of the user's own may."""


def check_finite(config: DictConfig) -> None:
    """Refuse the first number that is NaN, or that is infinite below one of `FINITE`.

    Training would begin with it, and end with a line that blames the learning rate.

    Args:
        config: configuration of a run, or of one of its stages.

    Raises:
        InputError: naming the key and the value.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    for part, content in plain.items():
        for path, value, package in _list_floats(content, str(part), "dml"):
            is_finite = part in FINITE and package in PACKAGES
            if math.isnan(value) or (is_finite and math.isinf(value)):
                raise InputError(f"{path}={value}: must be a finite number")


def _list_floats(node: Any, path: str, package: str) -> Iterator[tuple[str, float, str]]:
    """Yield each float with its dotted path, and the package of the ``_target_`` that it is for."""
    if isinstance(node, float):
        yield path, node, package
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _list_floats(value, f"{path}[{index}]", package)
    elif isinstance(node, dict):
        target = node.get("_target_")
        package = target.partition(".")[0] if isinstance(target, str) else package
        for key, value in node.items():
            yield from _list_floats(value, f"{path}.{key}", package)
