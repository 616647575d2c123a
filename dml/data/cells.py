"""The cells of lists as texts, and the names and numbers of classes."""

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

_MISSING_NAMES = frozenset(("-", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"))
"""What programs write in place of a class that is missing, in lower case."""
_LENGTHENED = re.compile(r"(?:(-?(?:0|[1-9]\d*))\.0|(\d{4}-\d\d-\d\d)[ T]00:00:00(?:\.0+)?)")
"""A whole number and a day as programs write them where a column of floats or of times holds nothing else."""


def to_text(value: Any) -> str:
    """Return the text that pandas writes into a .csv file for a value; "" for None, NaN, NaT and NA."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    return "" if text in ("None", "nan", "NaN", "NaT", "<NA>") and not isinstance(value, str) else text


def compose_name(name: str) -> str:
    """Return the name of a class in its composed form (NFC): systems differ in how they write an accent."""
    return unicodedata.normalize("NFC", name)


def name_classes(values: Iterable[Any]) -> list[str]:
    """Return the names of the classes in a column of texts or other values; "" where there is none.

    A name is the text of the value in a .csv file, without blanks around it, and composed (NFC). It stays as it is:
    "007" isn't 7. Only where all values are whole floats, as integers become beside a NaN, ".0" is left out, and where
    all are times at midnight, the time.

    >>> name_classes([6.0, None]), name_classes([" 6.0", "6.5"]), name_classes(["007", 7])
    (['6', ''], ['6.0', '6.5'], ['007', '7'])
    """
    names = [compose_name(to_text(value).strip()) for value in values]
    matches = {name: _LENGTHENED.fullmatch(name) for name in {*names} - {""}}
    if not all(matches.values()):
        return names
    return [match[1] or match[2] if (match := matches.get(name)) else "" for name in names]


def number_classes(names: Iterable[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number classes in the order of their sorted, composed names, the same on every machine -> labels (N,), names.

    >>> labels, classes = number_classes(["cat", "ant", "cat"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ('ant', 'cat'))
    """
    classes, labels = np.unique(np.array([*map(compose_name, names)], dtype=np.str_), return_inverse=True)
    return labels.astype(np.int64), tuple(classes.tolist())


def warn_of_names(labels: NDArray[np.int64], names: Sequence[Sequence[str]], source: str) -> None:
    """Warn of finest classes named as if they were missing, and of classes of a level in several spellings."""
    parts = [{name.lower(), name.lower().rpartition("/")[2]} for name in names[0]]
    if missing := [label for label, name in enumerate(parts) if name & _MISSING_NAMES]:
        count = format_count(int(np.isin(labels[:, 0], missing).sum()), "image")
        examples = printable(", ".join(names[0][label] for label in missing[:9]))
        logger.warning("%s: the class of %s is %s, as if it were missing", printable(source), count, examples)
    spellings: dict[tuple[int, str | Decimal], list[str]] = {}
    for level, classes in enumerate(names):
        for name in classes:
            if name.lower() not in _MISSING_NAMES:
                spellings.setdefault((level, _find_spelling_key(name)), []).append(name)
    if repeated := [*dict.fromkeys(" and ".join(map(repr, same)) for same in spellings.values() if len(same) > 1)]:
        number = format_count(len(repeated), "class seems", "classes seem")
        examples = printable(", ".join(repeated[:9]))
        line = "%s: %s to be there in several spellings, each of which counts as a class: %s; write them in one way"
        logger.warning(line, printable(source), number, examples)


def _find_spelling_key(name: str) -> str | Decimal:
    """Return what spellings of a class share: letters without case and form, nothing invisible, a number's value."""
    letters = unicodedata.normalize("NFKC", name).casefold()
    seen = (letter for letter in letters if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cf"))
    text = " ".join("".join(seen).split())
    return Decimal(text) if re.fullmatch(r"[+-]?\d+(\.\d*)?", text) else text
