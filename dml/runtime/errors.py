from collections.abc import Collection
from difflib import get_close_matches
from importlib.util import find_spec
from math import inf, isfinite, nan
from numbers import Integral, Real


class InputError(ValueError):
    """An error in the user's input; its message is one line that names the input, the value and what would be right.

    The command line prints that line and exits with code 2. Any other exception is a bug and prints its traceback.
    """


def show(value: object) -> str:
    """Return what a user has given as a part of an error line: on one line, and not too long for it."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:40]}..."


def check_whole(key: str, value: object, least: int) -> None:
    """Check that the setting of a key is a whole number, not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{key}={show(value)}: must be a whole number, {least} or more")


def check_number(key: str, value: object, least: float = -inf, most: float = inf, *, above: float = -inf) -> None:
    """Check that the setting of a key is a finite number from ``least`` to ``most``, and above ``above``."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    if not isfinite(number) or not least <= number <= most or number <= above:
        range_text = f", {least:g} or more" if isfinite(least) else f" above {above:g}" if isfinite(above) else ""
        range_text = f" from {least:g} to {most:g}" if isfinite(most) else range_text
        raise InputError(f"{key}={value}: must be a finite number{range_text}")


def check_choice(key: str, value: object, choices: Collection[str | None]) -> None:
    """Check that the setting of a key is one of some choices; None is null in a configuration."""
    if value not in choices:
        names = ["null" if choice is None else choice for choice in choices]
        text = f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)
        raise InputError(f"{key}={value}: must be {text}")


def suggest(name: str, options: Collection[str]) -> str:
    """Format the end of an error line about an unknown name: up to four similar options, or else all if they are few.

    >>> suggest("recal", ["recall", "map", "ndcg"]), suggest("auc", ["recall", "map"])
    ('; nearest: recall', '; one of map, recall')
    """
    if similar := get_close_matches(name, sorted(options), n=4, cutoff=0.5):
        return f"; nearest: {', '.join(similar)}"
    return f"; one of {', '.join(sorted(options))}" if 0 < len(options) <= 12 else ""


def check_installed(*libraries: str, extra: str) -> None:
    """Check that the libraries of an optional extra are installed."""
    for library in libraries:
        if find_spec(library) is None:
            raise InputError(f"{library}: not installed; pip install 'dml-retrieval[{extra}]'")
