"""What a run prints about its metrics: those before the training, and the final ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml.evaluation.metric import Metric
from dml.evaluation.printed_metrics.metric_descriptions import THRESHOLD_PREFIX
from dml.evaluation.printed_metrics.metric_names import PCA
from dml.evaluation.printed_metrics.metric_table import choose_first_metric, summary_table
from dml.ops.escaping import in_markup
from dml.ops.text.console import console


def print_raw_metrics(metrics: Mapping[str, float]) -> None:
    """Print the first metric of the backbone's features before the training, as they are and after a PCA."""
    if name := choose_first_metric(metrics):
        label, projected = name.removeprefix("level0/"), metrics.get(f"{PCA}/{name}")
        more = "" if projected is None else f"; {projected:.1%} as {metrics[f'{PCA}/size']:,} principal components"
        console.print(
            f"[bold]before[/]   {in_markup(label)} {metrics[name]:.1%} (the backbone's own features{in_markup(more)})"
        )


def print_result(
    metrics: Mapping[str, Any],
    levels: Sequence[str],
    heads: Sequence[str],
    folder: Path,
    *,
    selection: str,
    custom: Sequence[Metric] = (),
) -> None:
    """Print the table of the final metrics, how the tested checkpoint was chosen, and the files in the run folder.

    Args:
        metrics: contents of metrics.json.
        levels: names of level 0, 1, ...
        heads: names of the model's heads.
        folder: folder of the run.
        selection: value of ``evaluation.selection``.
        custom: the user's own metrics.
    """
    console.print(summary_table(metrics, levels, heads, custom))
    if metrics["step"] == 0:
        _print_unchanged()
    _print_loss_of_recall(metrics)
    _print_threshold(metrics)
    chosen = {
        "test": " [bold red]chosen on the test split itself, as the papers do[/]",
        "last": ", the last one",
        "val": ", the best on the validation split",
    }.get(metrics.get("selection", ""), "")
    if metrics.get("selection") == "last" and selection != "last":
        chosen += f"; no validation chose one, though evaluation.selection={in_markup(selection)}"
    console.print(
        f"[bold]{in_markup(metrics['split'])}[/] of step {metrics['step']:,}{chosen}; {in_markup(metrics['vector'])}"
    )
    files = [name for name in ("metrics.json", "retrieval.png", "report.html") if (folder / name).exists()]
    console.print(f"[bold]written[/]  {in_markup(folder)}: {', '.join(files)}")


def _print_loss_of_recall(metrics: Mapping[str, Any]) -> None:
    """Print a hint if the trained model finds less than the backbone's features did before the training."""
    name = "level0/recall@1"
    before, after = metrics.get(f"raw/{name}"), metrics.get(name)
    if before is None or after is None or after >= before:
        return
    if metrics["step"] == 0:
        reason = "of the untrained heads; more numbers (model.embed_dim) or more training images may help"
    else:
        reason = "after the training; a smaller optimizer.lr or another loss may help"
    console.print(
        f"[bold red]worse[/]    recall@1 is {before:.1%} of the backbone's own features and {after:.1%} "
        f'{in_markup(reason)}, see "If training makes it worse" in docs/own_data.md'
    )


def _print_threshold(metrics: Mapping[str, Any]) -> None:
    """Print the threshold that was chosen on the validation classes, with its errors on the tested ones."""
    names = ("similarity", "fmr", "fnmr")
    similarity, fmr, fnmr = (metrics.get(f"{THRESHOLD_PREFIX}{name}") for name in names)
    if similarity is not None and fmr is not None and fnmr is not None:
        console.print(
            f"[bold]same[/]     if the similarity is at least {similarity:.3f}: it passes {fmr:.2%} of the pairs of "
            f"different classes, and not {fnmr:.1%} of those of one class"
        )


def _print_unchanged() -> None:
    """Print that the training improved nothing, and what may help."""
    console.print(
        "[bold red]unchanged[/] no validation was better than the one before the first step, so that best.ckpt is the "
        'network as it was; a smaller optimizer.lr may help, see "If training makes it worse" in docs/own_data.md'
    )


def print_raw_test() -> None:
    """Print that the backbone is tested before the training, which may take minutes."""
    console.print("[bold]before[/]   testing the backbone as it is ... (evaluation.raw=false goes without)")
