"""docs/robustness.md: a table and a figure of what each loss loses by faults in the training images."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import markdown_table
from dml.papers.charts import add_difference_axes, new_chart
from dml.papers.leaderboard.contest_results import ContestResult
from dml.papers.leaderboard.leaderboard_page import CRITERION, class_interval, format_difference, sort_results
from dml.papers.robustness.conditions import Conditions
from dml.papers.training_facts import describe_training
from dml.report.provenance import join_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # importing matplotlib is slow

FIGURE = Path("images/robustness.png")
"""The figure, below the folder of the page."""
COLORS = ("#e0a030", "#b3261e", "#2456a6", "#7d8790")
WIDTH, ROW_HEIGHT, MARGINS = 8.0, 0.26, 1.6
"""Inches of the figure, of a loss's row, and of the space above and below the rows together."""
ROW_SHIFT = 0.2
"""Distance, in rows, between the points of two conditions."""

HEAD = """# Wrong labels and long tails

`make robustness` writes this page.

{setting}

The first column is MAP@R without faults, in percent, the others are differences to it in points, with the interval
that holds 95 % of 2,000 draws of the test classes, the same for both (paired bootstrap). All are means over the seeds.

{table}

{facts}

![The differences of the losses]({figure})

[robustness.json](robustness.json) holds the sums of every run and class: `dml robustness --show` computes this page
from it and from [leaderboard.json](leaderboard.json), without any training.

## Faults of your own

`dataset.planted` plants the same faults in the training images of any data set:

```console
$ python train.py 'dataset.planted={{label_noise:0.1,seed:0}}'
```

| key | what it does |
| --- | --- |
| `label_noise` | share of the training images that get the labels of another training class, which is drawn evenly |
| `long_tail` | the images of the classes are divided by 1 to this number, in equal ratios; each class keeps two |
| `thinning` | the images of every class are divided by this number; each class keeps two |
| `seed` | seed of all draws |
"""

ByLoss = Mapping[str, ContestResult]


def write_robustness_page(
    conditions: Conditions, clean: Sequence[ContestResult], results: Sequence[ContestResult], docs: Path
) -> None:
    """Write robustness.md and its figure into the folder ``docs``.

    Args:
        conditions: faults of the training images, such as wrong labels, and the experiment that is trained.
        clean: results of the losses without faults.
        results: results with faults; a loss may lack some, and those of losses without a clean result are left out.
        docs: folder of the page.
    """
    ordered = sort_results(clean)
    clean_by_loss = {result.loss: result for result in clean}
    by_condition = {
        condition.name: {
            result.loss: result
            for result in results
            if result.kind == condition.name and _is_comparable(result, clean_by_loss.get(result.loss))
        }
        for condition in conditions.conditions
    }
    header = ["loss", "no faults", *(condition.title for condition in conditions.conditions)]
    rows = [
        [
            f"`{result.loss}`",
            f"{100 * result.tested.mean(CRITERION):.1f}",
            *(_format_loss(by_loss.get(result.loss), result) for by_loss in by_condition.values()),
        ]
        for result in ordered
    ]
    table = markdown_table(header, rows, right=range(1, len(header)))
    draw_losses(conditions, ordered, by_condition, docs / FIGURE)
    facts = join_facts(
        {f"`{result.loss}`": result.facts or describe_training(conditions.find_training(result)) for result in ordered}
    )
    page = HEAD.format(setting=conditions.setting, table=table, facts=facts, figure=FIGURE)
    write_text(docs / "robustness.md", page)


def _is_comparable(faulty: ContestResult, clean: ContestResult | None) -> bool:
    """Return whether two results are of the same settings and seeds: the search may have chosen others since."""
    return clean is not None and (faulty.overrides, faulty.seeds) == (clean.overrides, clean.seeds)


def _format_loss(faulty: ContestResult | None, clean: ContestResult) -> str:
    return "" if faulty is None else format_difference(faulty, clean, CRITERION)


def compute_difference(faulty: ContestResult, clean: ContestResult) -> float:
    """Return the difference of two results in MAP@R, a fraction."""
    return faulty.tested.mean(CRITERION) - clean.tested.mean(CRITERION)


def draw_losses(
    conditions: Conditions, ordered: Sequence[ContestResult], by_condition: Mapping[str, ByLoss], path: Path
) -> None:
    """Draw a row for each loss, with a point and an interval for each condition; the same numbers give the same bytes.

    Args:
        conditions: faults of the training images, such as wrong labels, and the experiment that is trained.
        ordered: results without faults, the first in the top row.
        by_condition: {name of the condition: {loss: its result}}.
        path: PNG file to write.
    """
    names = [result.loss for result in ordered]
    with new_chart(path, size=(WIDTH, MARGINS + ROW_HEIGHT * len(ordered))) as figure:
        axes = add_difference_axes(figure, names, "difference in MAP@R to the training without faults, points")
        for place, (condition, color) in enumerate(zip(conditions.conditions, cycle(COLORS), strict=False)):
            shift = ROW_SHIFT * (place - (len(conditions.conditions) - 1) / 2)
            _draw_condition(axes, ordered, by_condition[condition.name], shift, color, condition.title)
        figure.legend(loc="outside upper center", ncols=len(conditions.conditions), frameon=False)


def _draw_condition(
    axes: "Axes", ordered: Sequence[ContestResult], by_loss: ByLoss, shift: float, color: str, label: str
) -> None:
    rows = [row for row, result in enumerate(ordered) if result.loss in by_loss]
    pairs = [(by_loss[ordered[row].loss], ordered[row]) for row in rows]
    centers = [100 * compute_difference(*pair) for pair in pairs]
    ends = [class_interval(faulty, CRITERION, clean) for faulty, clean in pairs]
    below = [center - 100 * low for center, (low, _) in zip(centers, ends, strict=True)]
    above = [100 * high - center for center, (_, high) in zip(centers, ends, strict=True)]
    heights = [row + shift for row in rows]
    axes.errorbar(centers, heights, xerr=[below, above], fmt="o", markersize=3, linewidth=1, color=color, label=label)
