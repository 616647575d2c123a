"""What a run shows on the screen, and its picture."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console
from rich.markup import escape

from dml.data.copies import number_in_gallery
from dml.data.images import read_image
from dml.data.table import UNKNOWN, ImageTable
from dml.evaluation.metric_names import head_label, head_sets_in
from dml.evaluation.pictures import choose_queries, retrieval_sheet
from dml.evaluation.queries import PerQuery
from dml.evaluation.scores import GRADED, ON_REQUEST
from dml.evaluation.tables import metric_table
from dml.run import length
from dml.training.data import DataModule
from dml.training.embedding import AnyModel

console = Console(highlight=False, soft_wrap=True)


@rank_zero_only
def setup(config: DictConfig, images: DataModule, model: AnyModel, folder: Path, stage: str = "") -> None:
    """What is going to be trained, on what, and where the results will be."""
    if stage:
        console.print(f"[bold]stage[/]    {escape(stage)}")
    level = images.table.levels[0]
    splits = ", ".join(
        f"{split} {count['images']:,} of {count[level]:,}" for split, count in images.table.counts().items()
    )
    heads = " + ".join(f"{name} {size}" for name, size in model.embed_dims.items())
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    console.print(f"[bold]data[/]     {escape(f'{config.dataset.name}: images of {level} classes: {splits}')}")
    if (found := number_in_gallery(images.table))[0]:
        console.print(
            f"[bold]queries[/]  {found[0]:,} of {found[1]:,} are in their gallery as files of the same content, which "
            "are excluded from their rankings"
        )
    console.print(f"[bold]model[/]    {parameters / 1e6:.1f} M trainable parameters; heads {heads}")
    console.print(f"[bold]loss[/]     {config.loss._target_.rpartition('.')[2]}, {config.trainer.max_steps:,} steps")
    if late := length.late_milestones(config, len(images.sampler)):
        console.print(f"[bold red]schedule[/] {escape(late)}")
    console.print(f"[bold]folder[/]   {escape(str(folder))}")


@rank_zero_only
def before(metrics: dict[str, float]) -> None:
    """The first metric of the backbone's own features."""
    shown = [f"level0/{name}" for name in _shown(metrics)] + _graded(metrics)
    for name in shown[:1]:
        value = f"{name.removeprefix('level0/')} {metrics[name]:.1%}"
        console.print(f"[bold]before[/]   {value} (the backbone's own features)")


@rank_zero_only
def training(trainer: Trainer, images: DataModule, seconds: float) -> None:
    """How long the training took, and what it waited for."""
    waited = images.stream.wait_seconds / max(1, images.stream.waits)
    console.print(
        f"[bold]trained[/]  to step {trainer.global_step:,} in {seconds:,.0f} s, of which a step waited "
        f"{1000 * waited:.1f} ms for its images"
    )


@rank_zero_only
def result(metrics: dict[str, Any], table: ImageTable, model: AnyModel, folder: Path, *, asked: str) -> None:
    """The table of the final metrics: before, each head alone, and all together; how the checkpoint was chosen."""
    rows = {"before": _part(metrics, "raw/")} if any(name.startswith("raw/") for name in metrics) else {}
    for name in head_sets_in(metrics) if len(model.embed_dims) > 1 else ():
        rows[head_label(name)] = _part(metrics, f"heads/{name}/")
    rows[", ".join(model.embed_dims)] = metrics
    levels, shown = (table.levels, _shown(metrics)) if _shown(metrics) else ((), _graded(metrics))
    console.print(metric_table(rows, levels=levels, metrics=shown))
    chosen = {
        "test": " [bold red]chosen on the test split itself, as the papers do[/]",
        "last": ", the last one",
        "val": ", the best on the validation split",
    }.get(metrics.get("selection", ""), "")
    if metrics.get("selection") == "last" and asked != "last":
        chosen += f"; no validation chose one, though evaluation.selection={asked}"
    console.print(f"[bold]{metrics['split']}[/] of step {metrics['step']:,}{chosen}")
    files = [name for name in ("metrics.json", "retrieval.png", "report.html") if (folder / name).exists()]
    console.print(f"[bold]written[/]  {escape(str(folder))}: {', '.join(files)}")


def _shown(metrics: dict[str, Any]) -> list[str]:
    """The metrics that fit 80 columns: up to four of recall@k, then the first of the others in this order."""
    names = [name.removeprefix("level0/") for name in metrics if name.startswith("level0/")]
    recalls = [name for name in names if name.startswith("recall@")][:4]
    return recalls + [name for name in ("map@r", "nmi", "ap") if name in names][: 6 - len(recalls)]


def _graded(metrics: dict[str, Any]) -> list[str]:
    """The metrics of all levels together."""
    return [name for name in (*GRADED, *ON_REQUEST) if name in metrics]


def _part(metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def sheet(table: ImageTable, ranked: PerQuery, path: Path, *, queries: int, neighbors: int, seed: int) -> None:
    """Some queries, chosen blindly, and their nearest neighbours, as a PNG; ``ranked`` is of the table's rows."""
    level = next(level for level in range(len(table.levels)) if (table.labels[ranked.queries, level] != UNKNOWN).all())
    labels, paths = table.labels[:, level], table.paths
    chosen = choose_queries(len(ranked.queries), min(queries, len(ranked.queries)), seed)
    retrieval_sheet(
        [
            (read_image(paths[query]), [(read_image(paths[i]), bool(labels[i] == labels[query])) for i in nearest])
            for query, nearest in zip(
                ranked.queries[chosen].tolist(), ranked.neighbors[chosen, :neighbors].tolist(), strict=True
            )
        ],
        path,
    )
