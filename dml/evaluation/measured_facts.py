"""What a metric is of, besides method and data: the vectors, the first weights, and how the checkpoint was chosen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SELECTIONS = {
    "val": "the best on the validation split",
    "test": "the best on the test split",
    "last": "the last one",
}
"""How a checkpoint was chosen, by the entry "selection" of metrics.json."""
UNKNOWN = "not stated"


def describe_vector(sizes: Mapping[str, int], heads: Sequence[str], curvature: float) -> str:
    """Return the size and the geometry of the vectors that are ranked, for metrics.json.

    >>> describe_vector({"L": 64, "M": 64, "H": 192}, ["M", "H"], 0.0)
    '256 numbers, cosine'

    Args:
        sizes: size of the embedding of each head.
        heads: heads whose embeddings are concatenated.
        curvature: curvature of the Poincare ball in which the vectors lie; 0 for the sphere.
    """
    geometry = "cosine" if not curvature else f"Poincare distance of curvature {curvature:g}"
    return f"{sum(sizes[head] for head in heads):,} numbers, {geometry}"


def describe_weights(config: Mapping[str, Any]) -> str:
    """Return what the first weights of a network were trained on, as far as the configuration says so.

    >>> describe_weights({"model": {"backbone": {"weights": None}}})
    'random'

    Args:
        config: configuration of the run as nested plain values.
    """
    if config.get("init"):
        return f"the checkpoint {config['init']}"
    model = config.get("model") or {}
    weights = (model.get("backbone") or {}).get("weights")
    if weights is None:
        return "random"
    if weights == "packaged":
        return "ImageNet-1k, packaged"
    if weights == "download":
        return str((model.get("pretraining") or {}).get("data", "as the library offers them"))
    return Path(weights).name


def describe_measurement(metrics: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Return what the metrics of a run are of, by the name of the fact.

    Args:
        metrics: contents of metrics.json.
        config: configuration of the run as nested plain values.
    """
    return {
        "vector": str(metrics.get("vector", UNKNOWN)),
        "first weights": describe_weights(config),
        "checkpoint": SELECTIONS.get(str(metrics.get("selection")), UNKNOWN),
        "split": str(metrics.get("split", UNKNOWN)),
    }
