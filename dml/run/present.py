"""What a run shows on the screen, and its picture."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from rich.console import Console

from dml.data.images import read_image
from dml.evaluation.pictures import choose_queries, retrieval_sheet
from dml.evaluation.tables import metric_table
from dml.models.embedding import EmbeddingModel
from dml.retrieval.search import nearest_neighbors
from dml.training.data import DataModule
from dml.training.embedding import ALL_HEADS, Embedded

console = Console(highlight=False, soft_wrap=True)


@rank_zero_only
def setup(config: DictConfig, images: DataModule, model: EmbeddingModel, folder: Path) -> None:
    """What is going to be trained, on what, and where the results will be."""
    level = images.table.levels[0]
    splits = ", ".join(
        f"{split} {count['images']:,} of {count[level]:,}" for split, count in images.table.counts().items()
    )
    heads = " + ".join(f"{name} {size}" for name, size in model.embed_dims.items())
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    console.print(f"[bold]data[/]     {config.dataset.name}: images of {level} classes: {splits}")
    console.print(f"[bold]model[/]    {parameters / 1e6:.1f} M trainable parameters; heads {heads}")
    console.print(f"[bold]loss[/]     {config.loss._target_.rpartition('.')[2]}, {config.trainer.max_steps:,} steps")
    console.print(f"[bold]folder[/]   {folder}")


@rank_zero_only
def before(metrics: dict[str, float]) -> None:
    """Recall@1 of the backbone's own features."""
    console.print(f"[bold]before[/]   recall@1 {metrics['level0/recall@1']:.1%} (the backbone's own features)")


@rank_zero_only
def training(trainer: Trainer, images: DataModule, seconds: float) -> None:
    """How long the training took, and what it waited for."""
    waited = images.stream.wait_seconds / max(1, images.stream.waits)
    console.print(
        f"[bold]trained[/]  to step {trainer.global_step:,} in {seconds:,.0f} s, of which a step waited "
        f"{1000 * waited:.1f} ms for its images"
    )


@rank_zero_only
def result(metrics: dict[str, Any], images: DataModule, model: EmbeddingModel, folder: Path) -> None:
    """The table of the final metrics: before, each head alone, and all together."""
    rows = {"before": _part(metrics, "raw/")} if any(name.startswith("raw/") for name in metrics) else {}
    for head in model.embed_dims if len(model.embed_dims) > 1 else ():
        if own := _part(metrics, f"heads/{head}/"):
            rows[f"head {head}"] = own
    rows[", ".join(model.embed_dims)] = metrics
    names = [name.removeprefix("level0/") for name in metrics if name.startswith("level0/")]
    shown = [name for name in names if name.startswith("recall@")][:5] + [name for name in names if name == "nmi"]
    console.print(metric_table(rows, levels=images.table.levels, metrics=shown))
    console.print(f"[bold]{metrics['split']}[/] of step {metrics['step']:,}: {folder}/metrics.json, retrieval.png")


def _part(metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}


def sheet(
    embedded: Embedded, images: DataModule, split: str, path: Path, *, queries: int, neighbors: int, seed: int
) -> None:
    """Some queries of a split, chosen blindly, and their nearest neighbours, as a PNG."""
    embeddings = embedded.embeddings[ALL_HEADS]
    chosen = choose_queries(len(embeddings), min(queries, len(embeddings)), seed)
    # of the shown queries alone; one more than is shown, as each may find itself
    _, found = nearest_neighbors(embeddings[chosen], neighbors + 1, embeddings)
    nearest = [
        [other for other in row if other != query][:neighbors]
        for query, row in zip(chosen, found.tolist(), strict=True)
    ]
    paths = images.table.subset(split).paths[embedded.rows.numpy()]
    classes = embedded.labels[:, 0]
    retrieval_sheet(
        [
            (
                read_image(paths[query]),
                [(read_image(paths[other]), bool(classes[other] == classes[query])) for other in others],
            )
            for query, others in zip(chosen, nearest, strict=True)
        ],
        path,
    )
