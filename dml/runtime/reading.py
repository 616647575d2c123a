"""Safe reading of files from strangers: only regular files, only up to a limit, and only plain values."""

import io
import json
import os
import pickle
import pickletools
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class RefusedFileError(Exception):
    """An error for a file that isn't regular or is larger than a limit.

    Args:
        reason: reason for the refusal, without the name of the file.
        remedy: option that raises the limit, and the value to give; empty if there is none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the reason and the remedy in one line."""
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


def check_regular(path: str | Path) -> os.stat_result:
    """Make sure that a path, after following links, leads to a regular file, and return what the system knows of it.

    The file isn't opened, because opening a pipe would wait for its other end.

    Raises:
        RefusedFileError: if the path leads to a folder, a pipe, a socket or a device, or holds a NUL byte.
        OSError: if there is no such file, or the path can't be followed.
    """
    if "\0" in str(path):
        raise RefusedFileError("a NUL byte, which no file's name holds")
    state = os.stat(path)
    _check_kind(state)
    return state


def read_regular(path: str | Path, max_bytes: int, option: str) -> bytes:
    """Read the bytes of a regular file; ``option`` is the key of the configuration that sets ``max_bytes``.

    Raises:
        RefusedFileError: if the path doesn't lead to a regular file, or the file is larger than ``max_bytes``.
        OSError: if there is no such file, or it can't be read.
    """
    check_regular(path)
    # A pipe may have replaced the file since the check: O_NONBLOCK, which regular files ignore, doesn't wait for it.
    descriptor = os.open(path, FLAGS)
    try:  # reading through a file object would take twice as long
        state = os.fstat(descriptor)
        _check_kind(state)
        check_size(state.st_size, max_bytes, option)
        content = os.read(descriptor, state.st_size + 1)
        if len(content) == state.st_size:
            return content
        return content + _read_rest(descriptor, len(content), max_bytes, option)
    finally:
        os.close(descriptor)


def _read_rest(descriptor: int, size: int, max_bytes: int, option: str) -> bytes:
    """Read the bytes after the first ``size`` bytes.

    They are needed if a file is growing, claims less than it holds, as in /proc, or is delivered in parts.
    """
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        size += len(part)
        check_unpacked(size, max_bytes, option)
    return b"".join(parts)


def check_size(size: int, max_bytes: int, option: str) -> None:
    """Make sure that a content of ``size`` bytes may be read; ``option`` is the key that sets ``max_bytes``.

    Raises:
        RefusedFileError: if the content is larger; the message names the option and the value that it needs.
    """
    if size > max_bytes:
        raise RefusedFileError(f"{size:,} bytes, at most {max_bytes:,} are read", f"{option}={size} reads it")


def check_unpacked(size: int, max_bytes: int, option: str) -> None:
    """Do as `check_size` for a content of which ``size`` bytes have been read or unpacked, and more may follow."""
    if size > max_bytes:
        raise RefusedFileError(f"more than {max_bytes:,} bytes", f"{option} with a larger number reads it")


def _check_kind(state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode):
        raise RefusedFileError(f"{KINDS.get(stat.S_IFMT(state.st_mode), 'a special file')}, not a regular file")


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast as Python's; a PyYAML that was built without it has Python's alone."""

DEEPEST = 100
"""The largest number of lists and mappings within each other."""

MOST_BYTES = 2**26
"""The largest size of a file."""

MOST = 500_000
"""The largest number of values in a JSON text."""

MOST_YAML = 2**22
"""The largest number of characters in a YAML text."""

MOST_EVENTS = 50_000
"""The largest number of values, keys, lists and mappings in a YAML text; a run's configuration has two thousand."""

LONGEST_NUMBER = 1_000
"""The largest number of characters in a number of a YAML text: one such as 1:59:59 takes time that is quadratic."""


def read_bounded(path: Path) -> bytes:
    """Read a file whose content is a YAML or JSON text.

    Raises:
        ValueError: if it is no regular file, or larger than `MOST_BYTES`.
    """
    try:
        return read_regular(path, MOST_BYTES, "")
    except RefusedFileError as error:
        raise ValueError(error.reason) from error


def parse_yaml(text: str, *, with_aliases: bool = False) -> Any:
    """Return the content of a YAML text: plain values, lists and dictionaries.

    Args:
        text: the text.
        with_aliases: whether it may hold aliases and merge keys, as the project's own files do; never for a stranger's.

    Raises:
        yaml.YAMLError: if the text is no YAML.
        ValueError: if it holds a date that doesn't exist, such as 2000-13-01, or an alias or a merge key, with which a
            short text becomes any number of values; if it is larger than the limits above, or isn't as `check_plain`
            wants it.
    """
    if len(text) > MOST_YAML:
        raise ValueError(f"more than {MOST_YAML:,} characters")
    depth = 0
    for count, event in enumerate(yaml.parse(text, LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and mappings within each other")
        if count > MOST_EVENTS:
            raise ValueError(f"more than {MOST_EVENTS:,} values")
        word = event.value if isinstance(event, yaml.ScalarEvent) and event.implicit[0] else ""
        if not with_aliases and (isinstance(event, yaml.AliasEvent) or word == "<<"):
            raise ValueError("an alias or a merge key; the values have to stand there themselves")
        if len(word) > LONGEST_NUMBER and word[0] in "+-.0123456789":
            raise ValueError(f"a number of more than {LONGEST_NUMBER:,} characters")
    return check_plain(yaml.load(text, LOADER))  # noqa: S506  both loaders are safe


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text: plain values, lists and dictionaries.

    Raises:
        ValueError: if the text is no JSON, or isn't as `check_plain` wants it.
    """
    separators = text.count(",") if isinstance(text, str) else text.count(b",")
    if separators > 2 * MOST:  # some may stand in texts; values take much more memory than their text
        raise ValueError(f"more than {MOST:,} values")
    try:
        return check_plain(json.loads(text))
    except RecursionError as error:
        raise ValueError(f"more than {DEEPEST} lists and mappings within each other") from error


def check_plain(content: Any) -> Any:
    """Return values out of a file if a program can walk through them: they are bounded, and none contains itself.

    Raises:
        ValueError: if they nest more than `DEEPEST` lists and mappings, or are more than `MOST`; a value that several
            places share counts in each of them.
    """
    count, depth, level = 1, 0, [content]
    while level := [node for node in level if isinstance(node, Mapping | list | tuple | set)]:
        count, depth = count + sum(map(len, level)), depth + 1
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} lists and mappings within each other")
        if count > MOST:
            raise ValueError(f"more than {MOST:,} values")
        level = [value for node in level for value in (node.values() if isinstance(node, Mapping) else node)]
    return content


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would run {module}.{name}")


def parse_pickle(content: bytes) -> Any:
    """Parse a pickle of numbers, strings, lists, tuples and dictionaries, which imports and runs nothing.

    Raises:
        ValueError: if the pickle is damaged, or names anything else.
    """
    try:
        for opcode, argument, _ in pickletools.genops(content):
            # unpickling takes memory for all places up to this one
            if opcode.name.endswith("PUT") and int(argument or 0) > len(content):
                raise pickle.UnpicklingError(f"a place {argument:,}")  # noqa: TRY301
        return _PlainUnpickler(io.BytesIO(content), encoding="latin-1").load()
    except MemoryError:
        raise
    except Exception as error:  # damaged pickles raise many kinds
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise ValueError(f"not a pickle of plain values ({reason})") from error
