"""Functions for configurations as nested dictionaries."""

from collections.abc import Iterable, Mapping
from typing import Any

PARTS = (
    *("adapter", "data", "dataset", "evaluation", "heads", "loss", "model", "model.backbone", "model.pretraining"),
    *("optimizer", "sampler", "scheduler", "stages", "trainer", "training", "transform"),
)
"""The parts of a configuration that are mappings, if they are there."""


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to one dictionary with dotted keys; an empty dictionary is kept as a value.

    >>> flat({"loss": {"margin": 0.4}, "callbacks": {}})
    {'loss.margin': 0.4, 'callbacks': {}}

    Args:
        values: nested dictionaries; other values are kept as they are.
        prefix: dotted key of ``values``.
    """
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    return {
        path: value
        for key, inner in values.items()
        for path, value in flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def is_below(key: str, names: Iterable[str]) -> bool:
    """Tell whether a dotted key is one of the names, or inside of one.

    >>> is_below("loss.margin", ["loss"]), is_below("losses", ["loss"])
    (True, False)
    """
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_parts(config: Mapping[str, Any]) -> None:
    """Make sure that the parts of a stored configuration are of the kinds with which they can be read.

    Raises:
        ValueError: if a part isn't a mapping, or ``model.heads`` isn't a list of names.
    """
    for path in PARTS:
        part: Any = config
        for key in path.split("."):
            part = part.get(key) if isinstance(part, Mapping) else None
        if part is not None and not isinstance(part, Mapping):
            raise ValueError(f"{path} is {type(part).__name__}, not a mapping")
    heads = (config.get("model") or {}).get("heads") or []
    if not isinstance(heads, list | tuple) or not all(isinstance(head, str) for head in heads):
        raise ValueError("model.heads is no list of names")
