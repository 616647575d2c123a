"""Shards: the part of a job that one of several machines does."""

from dataclasses import dataclass

from dml.ops.errors import InputError


@dataclass(frozen=True)
class Shard:
    """One of several shares of a job, which are numbered from 1.

    >>> Shard.parse("2/3").choose(8)
    range(1, 8, 3)

    Args:
        number: number of this share, from 1 to ``count``.
        count: number of the shares.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read a shard such as "2/4".

        Raises:
            InputError: if the text is no such shard.
        """
        number, _, count = text.partition("/")
        is_shard = all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, count))
        if not is_shard or not 1 <= int(number) <= int(count):
            raise InputError(f"--shard {text}: expected I/N with I from 1 to N, such as 2/4 for the second of four")
        return cls(int(number), int(count))

    def choose(self, pieces: int) -> range:
        """Return the pieces of this share, of so many that are numbered from 0: every n-th."""
        return range(self.number - 1, pieces, self.count)


WHOLE = Shard()
"""The whole job as one shard."""
