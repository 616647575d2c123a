"""Several data sets in one table: classes are never shared, and a query searches the gallery of its data set alone."""

from collections.abc import Mapping

import numpy as np

from dml.data.table import UNKNOWN, ImageTable


def join_tables(tables: Mapping[str, ImageTable]) -> ImageTable:
    """Join data sets, by their names, to one table whose column ``domain`` tells them apart.

    The classes of each data set are numbered behind those of the one before, and named after it: "birds/robin". A data
    set with fewer levels than another repeats its coarsest classes at the missing coarser levels, so that its hierarchy
    stays a tree. A level has the name that all data sets which have it agree on, or is called level0, level1 and so on.
    Splits, benchmark lists and excluded items are those of each data set.

    >>> birds, cars = (ImageTable(np.array([name]), np.array([[0]]), np.array([""]), ("class",)) for name in "ab")
    >>> join_tables({"birds": birds, "cars": cars}).names
    (('birds/0', 'cars/0'),)
    """
    depth = max(len(table.levels) for table in tables.values())
    names: list[list[str]] = [[] for _ in range(depth)]
    labels, excluded, domain = [], [], []
    num_rows = 0
    for name, table in tables.items():
        levels = np.minimum(np.arange(depth), len(table.levels) - 1)
        padded = table.labels[:, levels]
        labels.append(np.where(padded == UNKNOWN, UNKNOWN, padded + np.array([*map(len, names)])))
        for level, level_names in zip(levels, names, strict=True):
            count = len(table.names[level]) if table.names else table.labels[:, level].max(initial=UNKNOWN) + 1
            level_names += [f"{name}/{table.name_class(label, level)}" for label in range(count)]
        excluded.append(table.excluded + num_rows)
        domain += [f"{name}/{inner}" if inner else name for inner in table.domain.tolist()]
        num_rows += len(table)
    levels_by_depth = [{table.levels[i] for table in tables.values() if len(table.levels) > i} for i in range(depth)]
    return ImageTable(
        paths=np.concatenate([table.paths for table in tables.values()]),
        labels=np.concatenate(labels),
        split=np.concatenate([table.split for table in tables.values()]),
        levels=tuple(shared.pop() if len(shared) == 1 else f"level{i}" for i, shared in enumerate(levels_by_depth)),
        names=tuple(map(tuple, names)),
        benchmark=np.concatenate([table.benchmark for table in tables.values()]),
        source=", ".join(f"{name}: {table.source}" for name, table in tables.items()),
        content=np.concatenate([table.content for table in tables.values()]),
        excluded=np.concatenate(excluded),
        domain=np.array(domain, dtype=np.str_),
        is_tree=all(table.is_tree for table in tables.values()),
    )
