from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from dml.ops.errors import InputError


def metric_table(
    rows: Mapping[str, Mapping[str, float]],
    *,
    levels: Sequence[str] = ("finest",),
    metrics: Sequence[str] = ("recall@1", "recall@2", "recall@4", "recall@8", "nmi"),
    decimals: int = 1,
    title: str | None = None,
) -> Table:
    """{row: what `evaluate` gave} -> one line a row and one column a metric, in percent.

    `levels` names level 0, 1, ...; with more than one, each is a section of its own; without any, the metrics are those
    of all levels together, such as h_ap. A metric that a row lacks is a dash. Five metrics fit 80 columns. Raises
    InputError without rows.
    """
    if not rows:
        raise InputError("metric_table: no rows to show")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    if len(levels) > 1:
        table.add_column("level", no_wrap=True, style="bold")
    table.add_column("%", no_wrap=True)
    for metric in metrics:
        table.add_column(_short(metric), justify="right", no_wrap=True)
    for i, level in enumerate(levels or [""]):
        prefix = f"level{i}/" if levels else ""
        for j, (name, values) in enumerate(rows.items()):
            head = [level if j == 0 else ""] if len(levels) > 1 else []
            cells = (_percent(values.get(prefix + metric), decimals) for metric in metrics)
            table.add_row(*head, name, *cells)
        table.add_section()
    return table


def _short(metric: str) -> str:
    return metric.replace("recall@", "R@").upper()


def _percent(value: float | None, decimals: int) -> str:
    return "–" if value is None else f"{100 * value:.{decimals}f}"
