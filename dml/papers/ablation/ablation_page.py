"""docs/ablation.md: what each part of the default training gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import markdown_table
from dml.papers.ablation.variants import Ablation, AblationKind
from dml.papers.leaderboard.contest_results import ContestResult, describe_seeds
from dml.papers.leaderboard.leaderboard_page import format_difference
from dml.papers.tables.paper_tables import Training
from dml.papers.training_facts import describe_training
from dml.report.provenance import join_facts
from dml.report.statistics import mean_interval

METRICS = {"recall@1": "recall@1", "map@r": "MAP@R"}
"""The metrics of the page, and their labels."""

HEAD = """# The parts of the default

`make ablation` writes this page.

{setting}

Numbers are percent of the test classes: means over the seeds ± half the 95 % interval (Student's t), and the difference
to the default in points, with the interval that holds 95 % of 2,000 draws of the test classes, the same for both.

{tables}
[ablation.json](ablation.json) holds the sums of every run and class: `dml ablation --show` computes this page from it.
"""


def write_ablation_page(ablation: Ablation, results: Sequence[ContestResult], docs: Path) -> None:
    """Write ablation.md into the folder ``docs``.

    Args:
        ablation: the variants of the default, and the data sets that they are tried on.
        results: results of the variants that are finished.
        docs: folder of the page.
    """
    by_key = {(result.dataset, result.kind, result.loss): result for result in results}
    parts = []
    for kind in ablation.kinds.values():
        for dataset in ablation.experiments:
            variant_results = {
                name: by_key[key] for name in kind.variants if (key := (dataset, kind.name, name)) in by_key
            }
            if next(iter(kind.variants)) in variant_results:
                facts = join_facts(
                    {
                        name: result.facts or _describe(ablation, kind, result)
                        for name, result in variant_results.items()
                    }
                )
                parts.append(f"{_render_table(dataset, kind, variant_results)}\n{facts}\n")
    write_text(docs / "ablation.md", HEAD.format(setting=ablation.setting, tables="\n".join(parts)))


def _describe(ablation: Ablation, kind: AblationKind, result: ContestResult) -> dict[str, str]:
    """Describe the vectors, weights, checkpoint and split of a variant by its configuration."""
    overrides = (*kind.overrides, *result.overrides)
    return describe_training(Training(ablation.experiments[result.dataset], overrides))


def _render_table(dataset: str, kind: AblationKind, variant_results: Mapping[str, ContestResult]) -> str:
    default, *_ = variant_results.values()
    rows = []
    for name, result in variant_results.items():
        cells = [name, " ".join(f"`{override}`" for override in result.overrides)]
        for metric in METRICS:
            interval = mean_interval([100 * mean for mean in result.seed_means(metric)])
            width = f" ± {interval.half_width:.1f}" if len(result.seeds) > 1 else ""
            cells.append(f"{interval.mean:.1f}{width}")
            cells.append("" if result is default else format_difference(result, default, metric))
        rows.append(cells)
    header = ["", "changed", *(text for label in METRICS.values() for text in (label, "difference to the default"))]
    queries = f"{sum(default.counts):,} queries of {len(default.counts):,} classes"
    tested = f"{describe_seeds([*variant_results.values()])}, {queries}"
    return f"## {kind.title}: {dataset}\n\n{tested}.\n\n{markdown_table(header, rows, right=range(2, len(header)))}\n"
