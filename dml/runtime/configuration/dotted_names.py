"""The names of classes and functions in error lines."""

from functools import partial
from typing import Any


def dotted_name(target: Any) -> str:
    """Return the dotted name of a class or function, as a configuration gives it.

    >>> from collections import Counter
    >>> dotted_name(Counter), dotted_name(Counter()), dotted_name(partial(Counter, a=1))
    ('collections.Counter', 'collections.Counter', 'collections.Counter')

    Args:
        target: a class or function, a partial of one, or an object, which gives the name of its class.
    """
    target = target.func if isinstance(target, partial) else target
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"
