"""What a run prints around its training: the model and the data before it, and the speed after it."""

from pathlib import Path

from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only

from dml.data.copies import count_queries_in_gallery
from dml.data.splits import describe_shared_classes, describe_splits
from dml.losses.memory import CrossBatchMemory
from dml.report.console import QUICK
from dml.report.provenance import name_dataset
from dml.run import builders
from dml.run.settings import Settings
from dml.runtime.console import console
from dml.runtime.text import in_markup
from dml.training.data import DataModule
from dml.training.hardware import parse_compile
from dml.training.module import MetricLearner
from dml.training.run_length import describe_late_milestones


@rank_zero_only
def print_setup(settings: Settings, images: DataModule, learner: MetricLearner, folder: Path, stage: str = "") -> None:
    """Print what is going to be trained, on which images, and the folder of the results."""
    model = learner.model
    if stage:
        console.print(f"[bold]stage[/]    {in_markup(stage)}")
    if settings.quick:
        console.print(f"[bold red]quick[/]    {in_markup(QUICK)}")
    heads = " + ".join(f"{name} {size}" for name, size in model.embed_dims.items())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in model.parameters())
    data = f"{name_dataset({'dataset': vars(settings.dataset)})}: {describe_splits(images.table)}"
    console.print(f"[bold]data[/]     {in_markup(data)}")
    if shared := describe_shared_classes(images.table):
        console.print(f"[bold red]val[/]      {in_markup(shared)}")
    in_gallery, queries = count_queries_in_gallery(images.table)
    if queries and builders.compares_contents(settings):
        console.print(
            f"[bold]queries[/]  {in_gallery:,} of {queries:,} are in their gallery as files of the same content, which "
            "are excluded from their rankings"
        )
    console.print(
        f"[bold]model[/]    {trained:,} of {parameters:,} parameters ({trained / parameters:.1%}) are trained; "
        f"heads {in_markup(heads)}"
    )
    loss = in_markup(type(next(iter(learner.losses.values()))).__name__)
    console.print(f"[bold]loss[/]     {loss}, {settings.trainer.max_steps:,} steps")
    if parse_compile(settings.training.compile) is not None:
        console.print("[bold]compile[/]  the first step compiles the network, which can take minutes")
    pace = builders.build_pace(settings, len(images.sampler))
    if late := describe_late_milestones(settings.scheduler.schedule or {}, pace, settings.trainer.max_steps):
        console.print(f"[bold red]schedule[/] {in_markup(late)}")
    starts = [part.start for part in learner.losses.modules() if isinstance(part, CrossBatchMemory)]
    if starts and starts[0] >= settings.trainer.max_steps * settings.trainer.accumulate_grad_batches:
        line = f"loss.start={starts[0]}: the run ends before the memory is used"
        console.print(f"[bold red]memory[/]   {in_markup(line)}")
    console.print(f"[bold]folder[/]   {in_markup(folder)}")


@rank_zero_only
def print_training(trainer: Trainer, images: DataModule, seconds: float) -> None:
    """Print how long the training took, and how long a step waited for its images."""
    waited = images.stream.wait_seconds / max(1, images.stream.waits)
    console.print(
        f"[bold]trained[/]  to step {trainer.global_step:,} in {seconds:,.0f} s, of which a step waited "
        f"{1000 * waited:.1f} ms for its images"
    )
