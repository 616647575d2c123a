from collections.abc import Iterable
from typing import Any


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """{"loss": {"margin": 0.4}} -> {"loss.margin": 0.4}; an empty mapping is a value."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    return {
        path: value
        for key, inner in values.items()
        for path, value in flat(inner, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def is_below(key: str, names: Iterable[str]) -> bool:
    """Whether a path of `flat` is one of the names, or below one: "loss.margin" is below "loss"."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
