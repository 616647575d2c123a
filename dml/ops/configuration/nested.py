from collections.abc import Iterable
from typing import Any


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
