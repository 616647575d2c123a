"""Calls of a data base that are repeated when the connection is lost."""

import logging
from collections.abc import Callable
from time import sleep
from typing import ParamSpec, TypeVar

from dml.inference.vector_stores.store_protocol import VectorStore
from dml.ops.errors import InputError
from dml.ops.escaping import printable

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each repetition."""


class StoreError(InputError):
    """An error of a data base that can't be reached, or refuses something; the message is one line."""


class Retries:
    """Calls a data base, and repeats a call whose connection was lost.

    The first call isn't repeated: if nothing has ever answered, the address is most likely wrong.

    Args:
        store: data base that is called.
        address: address of the data base, for error lines.
    """

    def __init__(self, store: VectorStore, address: str) -> None:
        self._store = store
        self._address = address
        self._has_answered = False

    def call(self, function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        """Call a method of the data base.

        Raises:
            StoreError: if the data base refuses it, or hasn't answered after all repetitions.
        """
        waits = [*WAITS] if self._has_answered else []
        while True:
            try:
                answer = function(*args, **kwargs)
            except self._store.errors as error:
                if isinstance(error, InputError):
                    raise
                if not waits or not self._store.is_transient(error):
                    raise StoreError(f"{self._address}: {describe(error)}") from error
                logger.warning("%s: %s; again in %g s", self._address, describe(error), waits[0])
            else:
                self._has_answered = True
                return answer
            sleep(waits.pop(0))


def describe(error: Exception) -> str:
    """Return what a library says of an error, in one line."""
    return printable(" ".join(str(error).split())[:500]) or type(error).__name__
