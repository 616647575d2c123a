"""Weights between the first and the last ones of a training: their choice, best.ckpt, and what a resumed run does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLAIN, Here, Refused
from runs import kill_at

import dml
from dml.run.interpolation import Candidate, choose_candidate, mix_weights
from dml.runtime.run_folder import RunFolder
from dml.training.checkpoints import INTERPOLATION, read_checkpoint

PATH = [*PLAIN, "checkpoints.interpolation=[0.25,0.5,0.75]", "checkpoints.beginning=true", "heads.choose=true"]
PATH += ["model.heads=[M,H]", "evaluation.metrics=[recall,map@r]", "evaluation.threshold=null"]
HARM = ["optimizer=sgd", "optimizer.lr=100", "scheduler=constant", "loss=triplet"]


def candidate(share: float, *by_class: float) -> Candidate:
    return Candidate(share, ("H",), np.array(by_class))


@pytest.mark.parametrize(
    ("candidates", "share"),
    [
        ([candidate(0, 0.5, 0.5, 0.6), candidate(0.5, 0.7, 0.7, 0.8), candidate(1, 0.2, 0.3, 0.3)], 0.5),
        ([candidate(0.5, 0.70, 0.70, 0.70), candidate(1, 0.60, 0.60, 0.85)], 1),  # 0.017 less, standard error 0.083
        ([candidate(0.5, 0.70, 0.70, 0.70), candidate(1, 0.68, 0.68, 0.69)], 0.5),  # 0.017 less, standard error 0.003
        ([candidate(0, 0.9), candidate(0.5, 0.89), candidate(1, 0.89)], 0),  # a single class shows no standard error
        ([candidate(0.5, 0.5, 0.5), candidate(0.5, 0.6, 0.6)], 0.5),
        # the last weights aren't told from the best, but find less than the first ones
        ([candidate(0, 0.65, 0.65), candidate(0.5, 0.70, 0.70), candidate(1, 0.50, 0.79)], 0.5),
    ],
)
def test_the_largest_share_that_is_as_good_is_chosen(candidates: list[Candidate], share: float) -> None:
    chosen = choose_candidate(candidates)
    assert chosen.share == share
    equal = [other.by_class.mean() for other in candidates if other.share == share]
    assert chosen.by_class.mean() == max(equal)


def test_integers_are_not_mixed() -> None:
    first, last = {"a": torch.tensor([2.0]), "n": torch.tensor(3)}, {"a": torch.tensor([4.0]), "n": torch.tensor(5)}
    mixed = mix_weights(first, last, 0.75)
    assert (mixed["a"].item(), mixed["n"].item()) == (3.5, 5)


def test_a_training_that_only_harms_keeps_its_beginning(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    here("train", *PATH, *HARM, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")
    folder = RunFolder(tmp_path)
    first, best = (read_checkpoint(path) for path in (folder.first_checkpoint, folder.best_checkpoint))
    share = best[INTERPOLATION]["share"]
    assert share < 1
    last = read_checkpoint(folder.last_checkpoint)
    for name, value in last["state_dict"].items():
        expected = first["state_dict"][name].lerp(value, share) if value.is_floating_point() else value
        torch.testing.assert_close(best["state_dict"][name], expected, rtol=0, atol=0)
    metrics = folder.metrics()
    assert metrics["interpolation"] == share
    assert metrics["step"] == (6 if share else 0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("beginning", ["true", "false"])
def test_a_beginning_that_is_kept_opens_with_its_metrics(
    here: Here, small_emoji: Path, tmp_path: Path, beginning: str
) -> None:
    """The history of the run in metrics.csv has the validation before the first step, as the checkpoint does."""
    given = ["checkpoints.interpolation=[1]", f"checkpoints.beginning={beginning}", f"dataset.root={small_emoji}"]
    here("train", *PATH, *HARM, *given, f"hydra.run.dir={tmp_path}")
    metrics = RunFolder(tmp_path).metrics()
    assert (metrics["step"], metrics["interpolation"]) == (0, 0)
    assert dml.load(tmp_path).settings.metrics == metrics


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("point", ["after a stage ends", "before the test"])
def test_killed_before_or_behind_the_choice_it_is_the_same(
    here: Here, small_emoji: Path, tmp_path: Path, point: str
) -> None:
    arguments = [*PATH, "trainer.max_steps=2", "trainer.val_check_interval=1", f"dataset.root={small_emoji}"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    here("train", *arguments, f"hydra.run.dir={whole}")
    kill_at(point, 1, *arguments, f"hydra.run.dir={killed}")
    here("train", f"resume={killed}")
    assert_same(whole, killed)


def assert_same(first: Path, second: Path) -> None:
    best = [read_checkpoint(RunFolder(path).best_checkpoint) for path in (first, second)]
    assert best[0][INTERPOLATION] == best[1][INTERPOLATION]
    assert best[0]["chosen_heads"] == best[1]["chosen_heads"]
    for name, value in best[0]["state_dict"].items():
        assert torch.equal(value, best[1]["state_dict"][name])
    assert RunFolder(first).metrics() == RunFolder(second).metrics()


def test_the_best_validation_may_be_chosen_with_other_heads(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(candidates: list[Candidate]) -> Candidate:
        return next(part for part in candidates if part.file is not None and part.heads == ("H",))

    monkeypatch.setattr("dml.run.interpolation.choose_candidate", choose)
    unmoved = ["optimizer=sgd", "optimizer.lr=0", "scheduler=constant", "checkpoints.beginning=false"]
    here("train", *PATH, *unmoved, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")
    best = read_checkpoint(RunFolder(tmp_path).best_checkpoint)
    assert (best["global_step"], best["chosen_heads"], best[INTERPOLATION]["share"]) == (3, ["H"], 1)
    assert RunFolder(tmp_path).metrics()["chosen_heads"] == "H"


def test_a_longer_run_chooses_anew(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    short = ["trainer.max_steps=1", "trainer.val_check_interval=1", f"dataset.root={small_emoji}"]
    here("train", *PATH, *short, f"hydra.run.dir={tmp_path}")
    here("train", f"resume={tmp_path}", "trainer.max_steps=2")
    assert read_checkpoint(RunFolder(tmp_path).best_checkpoint)[INTERPOLATION]["last_step"] == 2


def test_heads_alone_and_a_moving_average_have_a_path(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    for option in ("training.frozen=true", "training.ema=0.5"):
        folder = tmp_path / option.partition("=")[0]
        short = ["trainer.max_steps=1", "trainer.val_check_interval=1", f"dataset.root={small_emoji}"]
        here("train", *PATH, *short, option, f"hydra.run.dir={folder}")
        assert INTERPOLATION in read_checkpoint(RunFolder(folder).best_checkpoint)
        here("evaluate", f"checkpoint={RunFolder(folder).best_checkpoint}", f"hydra.run.dir={folder / 'again'}")
        tested = RunFolder(folder / "again").metrics()
        for metric in ("level0/recall@1", "level0/map@r", "step", "vector"):
            assert tested[metric] == RunFolder(folder).metrics()[metric]


def test_what_is_no_share_is_refused(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}", "checkpoints.interpolation=[2,-0.5]"]
    assert "checkpoints.interpolation=[2,-0.5]: must be less than or equal to 1 or " in refused(*PATH, *arguments)
