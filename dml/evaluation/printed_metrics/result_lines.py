"""What a run prints about its metrics: those before the training, and the final ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dml.evaluation.metric import Metric
from dml.evaluation.printed_metrics.metric_descriptions import (
    THRESHOLD_PREFIX,
    describe_metric,
    describe_stored_metrics,
    format_value,
)
from dml.evaluation.printed_metrics.metric_names import PCA, MetricName
from dml.evaluation.printed_metrics.metric_table import choose_first_metric, summary_table
from dml.evaluation.threshold.stored_calibration import describe_choice
from dml.ops.escaping import in_markup
from dml.ops.text.console import console

QUICK = "a short run on a part of the data; its metrics say nothing about a method"
SEE = 'see "If training makes it worse" in docs/own_data.md'


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
    settings: Mapping[str, Any],
    custom: Sequence[Metric] = (),
) -> None:
    """Print the table of the final metrics, how the tested checkpoint was chosen, and the files in the run folder.

    Args:
        metrics: contents of metrics.json.
        levels: names of level 0, 1, ...
        heads: names of the model's heads.
        folder: folder of the run.
        settings: configuration of the run as nested plain values.
        custom: the user's own metrics.
    """
    console.print(summary_table(metrics, levels, heads, custom))
    for heading, text in list_remarks(metrics, settings).items():
        console.print(f"[bold red]{in_markup(heading):8}[/] {in_markup(text)}")
    _print_threshold(metrics)
    chosen = {
        "test": " [bold red]chosen on the test split itself, as the papers do[/]",
        "last": ", the last one",
        "val": ", the best on the validation split",
    }.get(metrics.get("selection", ""), "")
    selection = str(settings["evaluation"]["selection"])
    if metrics.get("selection") == "last" and selection != "last":
        chosen += f"; no validation chose one, though evaluation.selection={in_markup(selection)}"
    console.print(
        f"[bold]{in_markup(metrics['split'])}[/] of step {metrics['step']:,}{chosen}; {in_markup(metrics['vector'])}"
    )
    files = [name for name in ("metrics.json", "retrieval.png", "report.html") if (folder / name).exists()]
    console.print(f"[bold]written[/]  {in_markup(folder)}: {', '.join(files)}")


def list_remarks(metrics: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return {word: sentence} of what a reader of a run's metrics has to know: was it quick, or worse than untrained?

    Args:
        metrics: contents of metrics.json.
        settings: configuration of the run as nested plain values.
    """
    remarks = {"quick": QUICK} if settings.get("quick") else {}
    network, remedy = "the trained network", "a smaller optimizer.lr or another loss"
    if metrics.get("step") == 0:
        remarks["unchanged"] = (
            "no validation was better than the one before the first step, so that best.ckpt is the network as it was; "
            f"a smaller optimizer.lr may help, {SEE}"
        )
        network, remedy = "the untrained heads", "more numbers (model.embed_dim) or more training images"
    losses = []
    monitor = (settings.get("checkpoints") or {}).get("monitor", "level0/recall@1")
    for name in dict.fromkeys(["level0/recall@1", monitor]):
        metric = describe_metric(name, describe_stored_metrics(settings))
        before, after = (metrics.get(key) for key in (f"raw/{MetricName.parse(name).metric}", name))
        if before is None or after is None or before == after or (after > before) == metric.higher_is_better:
            continue
        old, new = (format_value(value, metric) + " %" * metric.shown_in_percent for value in (before, after))
        losses.append(f"{name.removeprefix('level0/')} went from {old} to {new}")
    if losses:
        remarks["worse"] = (
            f"the backbone's own features find more than {network}: {', '.join(losses)}; {remedy} may help, {SEE}"
        )
    return remarks


def _print_threshold(metrics: Mapping[str, Any]) -> None:
    """Print the threshold, how it was chosen on the validation classes, and what it says of the tested ones."""
    values = {name.removeprefix(THRESHOLD_PREFIX): value for name, value in metrics.items()}
    choice = f"{describe_choice(values)} on the validation classes"
    if "similarity" in values and "wrong_share" in values:
        console.print(
            f"[bold]same[/]     from a similarity of {values['similarity']:.3f} on, {in_markup(choice)}; here "
            f'{values["known_accepted"]:.1%} of the nearest are "same", {values["wrong_share"]:.1%} of these wrongly'
        )
    elif "wanted_wrong_share" in values and "similarity" not in values:
        console.print(f"[bold]same[/]     no threshold: there is no similarity {in_markup(choice)}")


def print_raw_test() -> None:
    """Print that the backbone is tested before the training, which may take minutes."""
    console.print("[bold]before[/]   testing the backbone as it is ... (evaluation.raw=false goes without)")
