from collections.abc import Collection
from difflib import get_close_matches


class InputError(ValueError):
    """An error in the user's input; its message is one line that names the input, the value and what would be right.

    The command line prints that line and exits with code 2. Any other exception is a bug and prints its traceback.
    """


def nearest(name: str, options: Collection[str]) -> str:
    """Format the end of an error line about an unknown name: the options that are most similar to it.

    >>> nearest("recal", ["recall", "map", "ndcg"])
    '; nearest: recall'

    Args:
        name: the unknown name.
        options: names that would be right.

    Returns:
        Up to four options that are similar to the name, or else the first twelve; an empty string without options.
    """
    similar = get_close_matches(name, sorted(options), n=4, cutoff=0.4) or sorted(options)
    return f"; nearest: {', '.join(similar[:12])}" if similar else ""
