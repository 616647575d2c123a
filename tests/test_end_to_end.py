"""The main job on a slice of the embedded data set, as a user runs it."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from configurations import compose, settings_of
from conftest import ONE_HEAD, PLAIN, SMALL, Here, Refused, in_a_process
from every_loss import LOSSES, compose_loss
from PIL import Image
from runs import TWO, assert_same_run, kill_at, last, metrics, run_ranks
from trainers import small_trainer

from dml.data.table import ImageTable
from dml.evaluation.per_query import read_queries
from dml.run import builders, loop
from dml.run.stored import Stage

STEPS = 12
ARGUMENTS = [
    *SMALL,
    f"trainer.max_steps={STEPS}",
    "trainer.val_check_interval=4",
    "checkpoints.every_n_steps=3",
    "scheduler=cosine",
    "scheduler.warmup_steps=2",
]


@pytest.fixture(scope="module")
def finished(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "finished"
    in_a_process("train.py", f"dataset.root={small_emoji}", *ARGUMENTS, f"hydra.run.dir={folder}")
    return folder


def test_a_run_leaves_its_results(finished: Path) -> None:
    found = metrics(finished)
    assert found["split"] == "test"
    assert found["device"] == "CPU"
    assert found["selection"] == "val"
    assert found["step"] in (4, 8, 12)
    for name in ("level0/recall@1", "level2/nmi", "heads/L/level0/recall@1", "raw/level0/recall@1"):
        assert 0 < found[name] <= 1
    assert (finished / ".hydra" / "config.yaml").exists()
    printed = (finished / "train.log").read_text()
    assert re.match(r"train    (.*\n)+data     emoji: (.*\n)+val      step 4: (.*\n)+trained  to step 12 ", printed)
    assert "training step" not in printed
    history = (finished / "metrics.csv").read_text().splitlines()
    assert len(history) == STEPS + 1
    assert history[0].startswith("step,loss,")
    with Image.open(finished / "retrieval.png") as sheet:
        assert sheet.width == 800


def test_the_best_checkpoint_is_the_best_validation(finished: Path) -> None:
    rows = [line.split(",") for line in (finished / "metrics.csv").read_text().splitlines()]
    column = rows[0].index("val/level0/map@r")
    validated = {int(row[0]): float(row[column]) for row in rows[1:] if row[column]}
    assert sorted(validated) == [4, 8, 12]
    assert validated[metrics(finished)["step"]] == max(validated.values())


def test_evaluating_the_checkpoint_repeats_the_digits(here: Here, finished: Path, tmp_path: Path) -> None:
    best = finished / "checkpoints" / "best.ckpt"
    here("evaluate", f"checkpoint={best}", f"hydra.run.dir={tmp_path}")
    again, trained = metrics(tmp_path), metrics(finished)
    assert again == {
        name: value for name, value in trained.items() if not name.startswith("raw/") and name != "configuration"
    }


@pytest.mark.thorough
@pytest.mark.distributed
def test_two_processes_give_the_digits_of_one(here: Here, finished: Path, tmp_path: Path) -> None:
    # an image at a time: in another batch the network itself may round otherwise
    asked = [
        f"checkpoint={finished / 'checkpoints' / 'best.ckpt'}",
        "data.eval_batch_size=1",
        "trainer.accelerator=cpu",
    ]
    here("evaluate", *asked, f"hydra.run.dir={tmp_path / 'one'}")
    two = [f"hydra.run.dir={tmp_path / 'two'}", "trainer=ddp", "trainer.devices=2"]
    in_a_process("evaluate.py", *asked, *two)
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")


def test_another_split_and_other_metrics_can_be_asked(here: Here, finished: Path, tmp_path: Path) -> None:
    best = finished / "checkpoints" / "best.ckpt"
    asked = [
        "split=val",
        "evaluation.recall_at=[1,3]",
        "evaluation.clustering=false",
        "evaluation.heads=false",
    ]
    here("evaluate", f"checkpoint={best}", f"hydra.run.dir={tmp_path}", *asked)
    found = metrics(tmp_path)
    assert found["split"] == "val"
    assert "level0/recall@3" in found
    assert not any("nmi" in name or name.startswith("heads/") for name in found)


def test_a_checkpoint_of_another_model_is_refused(refused: Refused, finished: Path, tmp_path: Path) -> None:
    best = finished / "checkpoints" / "best.ckpt"
    arguments = [f"checkpoint={best}", f"hydra.run.dir={tmp_path}", "model.heads=[H]"]
    assert "of another model" in refused(*arguments, command="evaluate")


def test_the_queries_and_a_report_of_them(here: Here, finished: Path, tmp_path: Path) -> None:
    best = finished / "checkpoints" / "best.ckpt"
    report = "evaluation.report={neighbors:3,map:false,seed:0}"
    here("evaluate", f"checkpoint={best}", f"hydra.run.dir={tmp_path}", "evaluation.heads=false", report)
    found, queries = metrics(tmp_path), read_queries(tmp_path / "per_query.parquet")
    assert queries.neighbors.shape == (len(queries), 3)
    for name in ("level0/recall@1", "level1/map@r", "h_ap"):
        assert np.nanmean(queries.metrics[name]) == pytest.approx(found[name], abs=1e-12)
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("selection", ["last", "test"])
def test_what_chooses_the_checkpoint(here: Here, small_emoji: Path, tmp_path: Path, selection: str) -> None:
    shorter = ["trainer.max_steps=4", "trainer.val_check_interval=2", f"evaluation.selection={selection}"]
    here("train", f"dataset.root={small_emoji}", *PLAIN, "model.heads=[H]", *shorter, f"hydra.run.dir={tmp_path}")
    found = metrics(tmp_path)
    rows = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    split = "test" if selection == "test" else "val"
    column = rows[0].index(f"{split}/level0/map@r")
    validated = {int(row[0]): float(row[column]) for row in rows[1:] if row[column]}
    assert found["selection"] == selection
    assert sorted(validated) == [2, 4]
    if selection == "last":
        assert found["step"] == 4
        # the validation has chosen best.ckpt, although the run doesn't test it
        best = f"checkpoint={tmp_path / 'checkpoints' / 'best.ckpt'}"
        here("evaluate", best, f"hydra.run.dir={tmp_path / 'tested'}")
        assert metrics(tmp_path / "tested")["selection"] == "val"
    else:  # the number itself, as it is the same split
        assert found["level0/map@r"] == pytest.approx(max(validated.values()), abs=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("point", "occurrence"),
    [
        ("after last.ckpt is replaced", 1),  # at step 3, which is not logged yet
        ("before last.ckpt is replaced", 4),
        ("in the middle of a checkpoint", 2),
        ("after a validation is judged", 1),
        ("after best.ckpt is replaced", 1),
        ("before metrics.csv is replaced", 3),
        ("before metrics.json is replaced", 1),
    ],
)
def test_killed_and_resumed_ends_bit_for_bit_the_same(
    here: Here, small_emoji: Path, finished: Path, tmp_path: Path, point: str, occurrence: int
) -> None:
    folder = tmp_path / "killed"
    # the uninterrupted run loads in its main process, this one in two workers: the stream is the same
    arguments = [f"dataset.root={small_emoji}", *ARGUMENTS, "data.num_workers=2", f"hydra.run.dir={folder}"]
    kill_at(point, occurrence, *arguments)
    assert (folder / ".hydra" / "config.yaml").exists()
    assert not (folder / "metrics.json").exists()  # it is interrupted, not finished
    here("train", f"resume={folder}")
    assert last(folder)["global_step"] == STEPS
    assert_same_run(finished, folder)
    assert (folder / "metrics.json").exists()


def test_paths_mean_what_they_say(
    here: Here,
    small_emoji: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(small_emoji, tmp_path / "emoji.zip")
    arguments = ["dataset.root=~/emoji.zip", *ONE_HEAD, "trainer.val_check_interval=null"]
    folder = tmp_path / "my run, lr=0.1 [it's]"
    checkpoint = folder / "checkpoints" / "last.ckpt"
    here("train", *arguments, "trainer.max_steps=2", f"hydra.run.dir={folder}")
    here("train", f"resume={folder}", "trainer.max_steps=3")
    here("train", f"resume=~/{folder.name}", "trainer.max_steps=4")
    assert metrics(folder)["step"] == 4
    assert str(folder) in capsys.readouterr().out  # brackets are no mark-up
    here("evaluate", f"checkpoint=~/{checkpoint.relative_to(tmp_path)}", "hydra.run.dir=~/again, (1)")
    assert metrics(tmp_path / "again, (1)")["level0/recall@1"] == metrics(folder)["level0/recall@1"]
    there = [f"hydra.run.dir={tmp_path}/there", "trainer.max_steps=1"]
    here("train", *arguments, *there, f"training.init=~/{checkpoint.relative_to(tmp_path)}")
    assert metrics(tmp_path / "there")["step"] == 1


NEIGHBORHOODS = ["sampler=local_neighborhood", "sampler.batch_size=12", "sampler.batches_per_epoch=3"]
NEIGHBORHOODS += ["training.bank_every_n_steps=3", "loss=tuplet_drift", "trainer.val_check_interval=null"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [[], NEIGHBORHOODS], ids=["default", "stored embeddings"])
def test_a_finished_run_can_be_prolonged(here: Here, small_emoji: Path, tmp_path: Path, options: list[str]) -> None:
    # a cosine ends with the run that it was made for: prolonged, it is another one
    small = [value for value in ONE_HEAD if not (options and value.startswith("sampler"))]
    arguments = [f"dataset.root={small_emoji}", *small, "scheduler=constant", *options]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    here("train", *arguments, f"hydra.run.dir={whole}", "trainer.max_steps=6")
    here("train", *arguments, f"hydra.run.dir={parts}", "trainer.max_steps=3")
    here("train", f"resume={parts}", "trainer.max_steps=6")
    expected, found = (last(folder)["state_dict"] for folder in (whole, parts))
    for name, weights in expected.items():
        assert torch.equal(weights, found[name]), name
    assert metrics(whole) == metrics(parts)


def test_resuming_refuses_a_configuration_that_has_changed(refused: Refused, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(finished, folder)
    written = folder / ".hydra" / "config.yaml"
    assert "  margin: 0.4\n" in written.read_text()
    written.write_text(written.read_text().replace("  margin: 0.4\n", "  margin: 0.3\n"))  # as if conf/ had said so
    line = refused(f"resume={folder}")
    assert "loss.margin=0.4: the run was made with 0.3" in line


@pytest.mark.distributed
def test_two_processes_train_as_one(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "trainer.accelerator=cpu"]
    # a few small steps: rounding has no time to grow
    arguments += ["trainer.max_steps=3", "optimizer=sgd", "optimizer.lr=0.001"]
    arguments += ["loss=happier", "training.proxies=class_means"]
    one, two = tmp_path / "one", tmp_path / "two"
    here("train", *arguments, f"hydra.run.dir={one}")
    assert [ended.code for ended in run_ranks(tmp_path, *arguments, f"hydra.run.dir={two}", *TWO)] == [0, 0]
    expected, found = (last(folder)["state_dict"] for folder in (one, two))
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, atol=1e-5, rtol=1e-4)
    for name, value in metrics(one).items():
        if name != "configuration":
            assert metrics(two)[name] == pytest.approx(value, abs=0.03), name


@pytest.mark.thorough
def test_a_transformer_trains_and_resumes_bit_for_bit(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    """With rates by layer, clipped gradients, a frozen patch embedding and branches that are left out at random."""
    arguments = [f"dataset.root={small_emoji}", *SMALL, "evaluation.raw=false", "scheduler=constant"]
    arguments += ["model=dino_small", "model.backbone.weights=null", "model.embed_dim=16", "transform.size=32"]
    arguments += ["model.heads=[H]", "model.backbone.drop_path_rate=0.2", "optimizer.layer_decay=0.75"]
    arguments += ["evaluation.clustering=false", "evaluation.sheet=null", "trainer.val_check_interval=null"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    here("train", *arguments, f"hydra.run.dir={whole}", "trainer.max_steps=3")
    here("train", *arguments, f"hydra.run.dir={parts}", "trainer.max_steps=1")
    here("train", f"resume={parts}", "trainer.max_steps=3")
    expected, found = (last(folder) for folder in (whole, parts))
    for name, weights in expected["state_dict"].items():
        assert torch.equal(weights, found["state_dict"][name]), name
    rates = {group["name"]: group["lr"] for group in found["optimizer_states"][0]["param_groups"]}
    assert rates["heads"] == pytest.approx(3e-5)
    assert rates["backbone.12"] == 1e-5
    assert rates["backbone.0"] == pytest.approx(1e-5 * 0.75**12)
    assert metrics(whole) == metrics(parts)


WHOLE_RUNS = {
    "happier": "a weighted sum, of which one term has proxies",
    "rll": "pairs, one label",
    "rll_coarse": "a level of the labels",
    "csl": "proxies and all levels",
    "n_pair": "norms of the embeddings",
    "smooth_ap": "ranks",
    "softmax": "a linear classifier",
    "arcface": "a loss of pytorch-metric-learning with proxies",
    "multi_similarity": "one with a miner",
    "margin": "one with a parameter for each class",
    "xbm": "a memory of earlier batches, which checkpoints hold",
}
"""A loss of each structure, and what is its own."""


@pytest.mark.first_cases(1)  # each takes a step below
@pytest.mark.parametrize("loss", WHOLE_RUNS)
def test_a_loss_of_each_structure_trains(here: Here, small_emoji: Path, tmp_path: Path, loss: str) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=null"]
    here("train", f"loss={loss}", *arguments, f"hydra.run.dir={tmp_path}")
    trained = last(tmp_path)
    assert trained["global_step"] == 2
    assert 0 < metrics(tmp_path)["level0/recall@1"] <= 1


@pytest.fixture(scope="module")
def table(small_emoji: Path) -> ImageTable:
    return builders.build_table(settings_of(compose(f"dataset.root={small_emoji}", "dataset.counts=null")))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_takes_a_step(table: ImageTable, loss: str) -> None:
    config, small = compose_loss(loss), compose(*ONE_HEAD)
    for part in ("model", "transform", "sampler", "data", "trainer"):
        config[part] = small[part]
    images, model = loop.build_data(settings_of(config), table), builders.build_model(settings_of(config))
    loop.count_in_steps(Stage("", config), len(images.sampler))
    learner = loop.build_learner(settings_of(config), images, model)
    before = [weights.detach().clone() for weights in model.parameters()]
    trainer = small_trainer(1)
    trainer.fit(learner, datamodule=images)
    assert trainer.callback_metrics["loss"].isfinite()
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert any(changed)
    assert all(weights.isfinite().all() for weights in learner.parameters())


def test_a_sweep_makes_a_run_of_each_combination(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "trainer.max_steps=1", "trainer.val_check_interval=null"]
    here("train", "-m", *arguments, "loss.margin=0.2,0.4", f"hydra.sweep.dir={tmp_path}")
    assert sorted(path.parent.name for path in tmp_path.glob("*/metrics.json")) == ["0", "1"]
