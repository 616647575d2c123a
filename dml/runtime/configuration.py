"""Functions for configurations as nested dictionaries, for overrides, and for the names of what a part builds."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from dml.runtime.errors import InputError

PARTS = (
    *("adapter", "data", "dataset", "evaluation", "heads", "loss", "model", "model.backbone", "model.pretraining"),
    *("optimizer", "sampler", "scheduler", "stages", "trainer", "training", "transform"),
)
"""The parts of a configuration that are mappings, if they are there."""


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries to one dictionary with dotted keys; an empty dictionary is kept as a value.

    >>> flat({"loss": {"margin": 0.4}, "callbacks": {}})
    {'loss.margin': 0.4, 'callbacks': {}}
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
    """Make sure that the parts of a stored configuration can be read; a ValueError names the one that can't."""
    for path in PARTS:
        part: Any = config
        for key in path.split("."):
            part = part.get(key) if isinstance(part, Mapping) else None
        if part is not None and not isinstance(part, Mapping):
            raise ValueError(f"{path} is {type(part).__name__}, not a mapping")
    heads = (config.get("model") or {}).get("heads") or []
    if not isinstance(heads, list | tuple) or not all(isinstance(head, str) for head in heads):
        raise ValueError("model.heads is no list of names")


def key_of(override: str) -> str:
    """Return the key of an override: ``+loss.margin=0.2`` -> loss.margin, ``loss@loss.inner=rll`` -> loss.inner."""
    return override.partition("=")[0].lstrip("+~").rpartition("@")[2]


def check_set_elsewhere(overrides: Iterable[str], setters: Mapping[str, str], below: Container[str] = ()) -> None:
    """Refuse a ``--set`` of a key of ``setters``, {"seed": "--seeds"}, or of one nested in a key of ``below``."""
    for override in overrides:
        key = key_of(override)
        for set_key, setter in setters.items():
            if key == set_key or (set_key in below and is_below(key, [set_key])):
                raise InputError(f"--set {override}: {setter} sets it")


def dotted_name(target: Any) -> str:
    """Return the dotted name of a class or function, of a partial's, or of an object's class, as in a configuration.

    >>> from collections import Counter
    >>> dotted_name(Counter), dotted_name(Counter()), dotted_name(partial(Counter, a=1))
    ('collections.Counter', 'collections.Counter', 'collections.Counter')
    """
    target = target.func if isinstance(target, partial) else target
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"


@contextmanager
def naming(part: str, used: Any) -> Iterator[None]:
    """Turn what an object of the user's raises in the ``with`` body into an `InputError` that names it.

    What dml's own objects raise is a bug, and stays as it is; short memory is nobody's mistake.
    """
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        if (name := dotted_name(used)).startswith("dml."):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raise InputError(f"{part}: {name} raised {reason}; debug=true shows where") from error
