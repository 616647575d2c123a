"""All rows, in the order in which the page shows them."""

from faults import data, disk, files, hostile, ranks, signals

_BY_NAME = {fault.name: fault for module in (files, signals, ranks, data, hostile, disk) for fault in module.FAULTS}
_ORDER = (
    *("flips-best", "checkpoints", "sigterm", "ranks", "ctrl-c", "points"),
    *(
        "links",
        "pixels",
        "replaced",
        "two-prepares",
        "bombs",
        "odd-paths",
        "names",
        "markup",
        "machine",
        "moved",
        "damaged",
    ),
    *("flips-last",),
    *("flips-pixels", "flips-index", "flips-table", "flips-journal"),
)
FAULTS = [_BY_NAME[name] for name in _ORDER]
