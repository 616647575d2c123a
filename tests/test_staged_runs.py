"""Runs of several stages through the command line, killed and resumed."""

import csv
from pathlib import Path

import pytest
import torch
from conftest import ONE_HEAD, Here, Refused
from runs import assert_same_run, kill_at, last, metrics, train

STEPS = 6  # of each of the three stages
ARGUMENTS = [
    "experiment=lns/emoji/rnn",
    "checkpoints.beginning=true",
    "dataset.counts=null",
    "transform.size=32",
    "model=small_cnn",
    "model.normalize=true",
    "model.embed_dim=8",
    "model.heads=[M,H]",
    "stages.n_pair.sampler.classes_per_batch=6",
    "sampler.batch_size=12",
    "sampler.num_neighbors=5",
    "sampler.batches_per_epoch=3",
    "training.bank_every_n_steps=3",
    "stages.rnn.recurrent.neighbors=4",
    "stages.rnn.recurrent.recurrent.hidden_size=4",
    "stages.rnn.recurrent.recurrent.order=random",
    "data.num_workers=0",
    *(f"stages.{stage}.trainer.max_steps={STEPS}" for stage in ("n_pair", "lns", "rnn")),
    "trainer.val_check_interval=4",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=1",
    "evaluation.report=null",
    "evaluation.sheet=null",
    "evaluation.raw=false",
    "evaluation.threshold=null",
    "evaluation.metrics=[recall]",
]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("stages") / "finished", *ARGUMENTS, f"dataset.root={small_emoji}")


def test_each_stage_is_trained_and_the_last_one_tested(finished: Path) -> None:
    history, found = rows(finished), metrics(finished)
    assert [int(row["step"]) for row in history] == list(range(3 * STEPS + 1))
    assert found["step"] in (2 * STEPS + 4, 3 * STEPS)
    assert last(finished)["run"]["stage"] == "rnn"
    assert any(name.startswith("model.recurrent.H.lstm") for name in last(finished)["state_dict"])
    # only neighborhoods have shares, and every anchor of theirs can have a positive
    assert [row["batch/anchors"] != "" for row in history] == [False] * (STEPS + 1) + [True] * 2 * STEPS
    assert all(float(row["batch/anchors"]) > 0 for row in history[STEPS + 1 :])


def test_the_third_stage_keeps_the_network_of_the_second(finished: Path) -> None:
    state = last(finished)["state_dict"]
    trained = [name for name in state if name.startswith("model.cnn.") and "running" not in name]
    kept = [name.replace("model.cnn.", "model.pretrained.") for name in trained]
    assert not all(torch.equal(state[a], state[b]) for a, b in zip(trained, kept, strict=True))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("point", "occurrence", "reached"),
    [
        ("after last.ckpt is replaced", STEPS, ("n_pair", STEPS)),
        ("after last.ckpt is replaced", STEPS + 4, ("lns", 4)),
        ("after a step, before its metrics are logged", 2 * STEPS + 5, ("lns", 2)),
        ("before the embeddings are stored", 3, ("lns", STEPS)),
        ("after last.ckpt is replaced", 2 * STEPS + 2, ("rnn", 2)),
    ],
)
def test_killed_in_any_stage_and_resumed_ends_bit_for_bit_the_same(
    here: Here,
    small_emoji: Path,
    finished: Path,
    tmp_path: Path,
    point: str,
    occurrence: int,
    reached: tuple[str, int],
) -> None:
    folder = tmp_path / "killed"
    kill_at(point, occurrence, *ARGUMENTS, f"dataset.root={small_emoji}", f"hydra.run.dir={folder}")
    checkpoint = last(folder)
    assert (checkpoint["run"]["stage"], checkpoint["global_step"]) == reached
    here("train", f"resume={folder}")
    assert_same_run(finished, folder)


def test_evaluating_the_checkpoint_repeats_the_digits(here: Here, finished: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    here("evaluate", f"checkpoint={finished / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={again}")
    before = metrics(finished)
    for name, value in metrics(again).items():
        assert before[name] == value, name


def test_a_stage_can_begin_from_another_runs_checkpoint(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [*ONE_HEAD, f"dataset.root={small_emoji}", "trainer.max_steps=1", "trainer.val_check_interval=null"]
    arguments = [argument for argument in arguments if not argument.startswith("sampler")]
    first, third = tmp_path / "first", tmp_path / "third"
    here("train", *arguments, "sampler.classes_per_batch=4", f"hydra.run.dir={first}")
    begun = [f"training.init={first / 'checkpoints' / 'last.ckpt'}", "recurrent=lstm", "recurrent.neighbors=4"]
    begun += ["sampler=local_neighborhood", "loss=tuplet_drift", "training.bank_every_n_steps=3", "optimizer.lr=0"]
    begun += [argument for argument in ARGUMENTS if argument.startswith("sampler")]
    here("train", *arguments, *begun, f"hydra.run.dir={third}")
    state = last(third)["state_dict"]
    for name, weights in last(first)["state_dict"].items():
        for part in ("cnn", "pretrained"):
            assert torch.equal(state[name.replace("model.", f"model.{part}.", 1)], weights), name


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("+stages.lns.trainer.max_step=3", "trainer.max_step: no such key; nearest: max_steps"),
        (
            "training.bank_every_n_steps=4",
            "training.bank_every_n_steps=4: the sampler takes new neighbors up with its next epoch, and has 3 batches "
            "an epoch; sampler.batches_per_epoch=4 would do",
        ),
    ],
)
def test_a_stage_that_cannot_be_is_refused(
    refused: Refused, small_emoji: Path, tmp_path: Path, argument: str, line: str
) -> None:
    arguments = [*ARGUMENTS, "stages.n_pair.trainer.max_steps=1", f"dataset.root={small_emoji}"]
    assert line in refused(*arguments, argument, f"hydra.run.dir={tmp_path / 'run'}")


LATER_MISTAKES = {
    "+stages.lns.training.ema=1.5": "error: training.ema=1.5: must be less than 1",
    "+stages.lns.sampler.num_neighbors=0": "error: stages.lns: ",
}


def test_a_mistake_of_a_later_stage_is_told_before_the_first_one_trains(
    refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    for argument, line in LATER_MISTAKES.items():
        assert line in refused(*ARGUMENTS, f"dataset.root={small_emoji}", argument, f"hydra.run.dir={tmp_path / 'run'}")
        assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_goes_on_in_a_stage_that_it_still_has(finished: Path, refused: Refused) -> None:
    assert refused(f"resume={finished}", "~stages.rnn").startswith("error: stages.rnn.")
