from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which then takes the place of ``path``: at any time a whole file stands there."""
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    partial.replace(path)
