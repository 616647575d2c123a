"""Weights between the first and the last ones of a training, of which the validation classes choose (WiSE-FT)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from dml.evaluation.evaluator import Evaluator
from dml.evaluation.metric import MetricName, join_head_names, split_head_names
from dml.report.statistics import Values, average_by_class
from dml.retrieval.rows import ranking_device
from dml.run.settings import Settings
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import console, in_markup, warn
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.checkpoints import INTERPOLATION, PREFIX, FrozenWeights, load_model, read_checkpoint
from dml.training.data import DataModule
from dml.training.embedders import CHOSEN_HEADS
from dml.training.module import MetricLearner

State = dict[str, Tensor]


@dataclass(frozen=True)
class Candidate:
    """Weights with the heads whose embedding is evaluated.

    Args:
        share: share of the last weights.
        heads: heads that are concatenated.
        by_class: (C,) mean of the monitored metric over the queries of each validation class, the larger the better.
        file: checkpoint of the weights; None for a mixture.
    """

    share: float
    heads: tuple[str, ...]
    by_class: Values
    file: Path | None = None

    @property
    def mean(self) -> float:
        """The mean over the classes."""
        return float(self.by_class.mean())


def mix_weights(first: State, last: State, share: float) -> State:
    """Return weights at a share of the way from the first to the last ones; integers are the last ones.

    >>> import torch
    >>> mix_weights({"a": torch.tensor([0.0])}, {"a": torch.tensor([8.0])}, 0.25)
    {'a': tensor([2.])}
    """
    return {
        name: first[name].lerp(value, share) if value.is_floating_point() else value for name, value in last.items()
    }


def choose_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Choose the candidate with the largest share that the validation classes can't tell from the best one.

    That is one whose mean over the classes is below that of the best by the standard error of the difference at most
    (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3), and not below that of the first weights.
    A few validation classes among themselves overrate weights that have learned little.
    """
    best = max(candidates, key=lambda candidate: candidate.mean)
    least = max([candidate.mean for candidate in candidates if candidate.share == 0], default=-np.inf)

    def is_as_good(candidate: Candidate) -> bool:
        lacks = best.by_class - candidate.by_class
        error = lacks.std(ddof=1) / len(lacks) ** 0.5 if len(lacks) > 1 else 0.0
        return bool(candidate.mean >= least and lacks.mean() <= error)

    return max(filter(is_as_good, candidates), key=lambda candidate: (candidate.share, candidate.mean))


def choose_between_first_and_last(
    settings: Settings, trainer: Trainer, learner: MetricLearner, images: DataModule, frozen: FrozenWeights | None
) -> None:
    """Write the best of the weights of ``checkpoints.interpolation`` to best.ckpt, with the heads that are best.

    A network that was trained on few classes has forgotten some of what tells others apart. On the straight line to
    where it began it often finds more than at both ends (Wortsman et al., Robust fine-tuning of zero-shot models, 2022,
    section 4). The first and the last weights, and those of the best validation, are candidates too.
    """
    folder = RunFolder(trainer.default_root_dir)
    if not folder.first_checkpoint.exists():
        warn(f"{folder.first_checkpoint}: no such file; weights between the first and the last ones aren't tried")
        return
    best, last = (read_checkpoint(path, lazily=True) for path in (folder.best_checkpoint, folder.last_checkpoint))
    if best.get(INTERPOLATION, {}).get("last_step") == last["global_step"]:  # chosen before the run was stopped
        return
    model, states = learner.model, []
    for path in (folder.first_checkpoint, folder.last_checkpoint):
        load_model(model, path)
        states.append({name: value.detach().cpu().clone() for name, value in model.state_dict().items()})
    candidates: list[Candidate] = []
    if INTERPOLATION not in best and 0 < best["global_step"] < last["global_step"]:
        load_model(model, folder.best_checkpoint)
        candidates += _evaluate(settings, trainer, learner, images, 1.0, folder.best_checkpoint)
    for share in sorted({0.0, *(settings.checkpoints.interpolation or ()), 1.0}):
        model.load_state_dict(mix_weights(states[0], states[1], share))
        candidates += _evaluate(settings, trainer, learner, images, share)
    chosen = choose_candidate(candidates)
    weights = f"weights {chosen.share:.0%} of the way from the first to the last ones"
    if chosen.file:
        weights = "the weights of the best validation"
    elif chosen.share in (0, 1):
        weights = "the last weights" if chosen.share else "the first weights"
    line = f"{weights}, heads {join_head_names(chosen.heads)}, by {len(chosen.by_class):,} validation classes"
    rank_zero_only(console.print)(f"[bold]chosen[/]   {in_markup(line)}")
    end = folder.last_checkpoint if chosen.share else folder.first_checkpoint
    checkpoint = read_checkpoint(chosen.file or end)
    if chosen.file is None:
        mixed = mix_weights(states[0], states[1], chosen.share)
        checkpoint["state_dict"] |= {f"{PREFIX}{name}": value for name, value in mixed.items()}
    checkpoint["chosen_heads"] = [*chosen.heads]
    checkpoint[INTERPOLATION] = {"share": chosen.share, "last_step": last["global_step"]}
    rank_zero_only(AtomicCheckpointIO(model, frozen).save_checkpoint)(checkpoint, folder.best_checkpoint)
    trainer.strategy.barrier()  # the other processes read the file next


def _evaluate(
    settings: Settings,
    trainer: Trainer,
    learner: MetricLearner,
    images: DataModule,
    share: float,
    file: Path | None = None,
) -> list[Candidate]:
    """Evaluate the weights that the model has on the validation classes, with each set of heads to choose from."""
    images.tested_on = "val"
    trainer.test(learner, images, verbose=False)
    evaluator, rows, monitor = learner.evaluate, learner.embedded.rows, MetricName.parse(learner.monitor)
    assert isinstance(evaluator, Evaluator)
    sign = 1.0 if settings.checkpoints.mode == "max" else -1.0
    candidates = []
    for name in learner.head_choice.candidates if learner.head_choice else [monitor.heads or CHOSEN_HEADS]:
        embeddings = learner.embedded.embeddings[name].to(ranking_device(learner.device))
        heads = split_head_names(name) if learner.head_choice else learner.model.chosen_heads
        by_class = sign * average_by_class(evaluator, embeddings, rows, monitor.metric)
        candidates.append(Candidate(share, tuple(heads), by_class, file))
    return candidates
