"""Runs that train the heads alone, beside runs whose frozen network embeds the images in each step."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import compose, settings_of
from conftest import SMALL, Here, Refused
from runs import TWO, assert_same_run, kill_at, last, train

from dml.models.embedding import EmbeddingModel
from dml.run import builders, untrained_model
from dml.runtime.errors import InputError
from dml.runtime.imports import quiet
from dml.training.checkpoints import read_checkpoint
from dml.training.frozen import FeatureEmbedder

FROZEN = [
    *SMALL,
    "model.head.M._target_=dml.models.heads.GeMHead",
    "model.head.H._target_=dml.models.heads.PoolHead",
    "+model.head.H.dropout=0.3",
    "evaluation.metrics=[recall,map@r]",
    "evaluation.sheet=null",
    "training.frozen=true",
    # as in the default
    "heads.initial=half_whitened_components",
    "checkpoints.beginning=true",
    "heads.choose=true",
]
LIMIT = 1e-5
"""Largest difference of a loss or a metric between features in batches of different sizes."""


@pytest.fixture(scope="module")
def arguments(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a run whose features are in a folder of this file alone."""
    return [*FROZEN, f"dataset.root={small_emoji}", f"data.cache={tmp_path_factory.mktemp('features')}"]


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    return train(tmp_path_factory.mktemp("frozen") / "whole", *arguments)


def read_history(folder: Path) -> dict[tuple[int, str], float]:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return {(int(row["step"]), name): float(value) for row in rows for name, value in row.items() if value}


def read_metrics(folder: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return {name: value for name, value in metrics.items() if name != "configuration"}


def assert_metrics_agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # log odds are of tens, and rounding moves pairs between the bins of similarity that they are fitted to
        limit = 1e-4 * abs(value) if "/calibration_" in name else LIMIT
        assert found[name] == pytest.approx(value, abs=limit), name


def refuse_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("the network embeds images")

    monkeypatch.setattr(FeatureEmbedder, "embed_images", fail)


def test_losses_and_metrics_are_those_of_the_frozen_network_in_the_loop(
    whole: Path, arguments: list[str], here: Here, tmp_path: Path
) -> None:
    # in its warm-up a run doesn't train the backbone, which has no batch normalization and no dropout
    slow = [
        "training.frozen=false",
        "scheduler=constant",
        "scheduler.warmup_steps=6",
        "transform.train=${transform.test}",
    ]
    here("train", *arguments, *slow, f"hydra.run.dir={tmp_path}/slow")
    here("train", *arguments, "scheduler=constant", f"hydra.run.dir={tmp_path}/fast")
    expected, history = read_history(tmp_path / "slow"), read_history(tmp_path / "fast")
    assert {step for step, name in expected if name == "loss/M"} == set(range(1, 7))
    assert history == pytest.approx(expected, abs=LIMIT)
    assert_metrics_agree(read_metrics(tmp_path / "fast"), read_metrics(tmp_path / "slow"))
    weights, trained = last(tmp_path / "slow")["state_dict"], last(tmp_path / "fast")["state_dict"]
    torch.testing.assert_close(trained, weights, atol=LIMIT, rtol=LIMIT)


def test_a_second_run_takes_the_features_of_the_first_and_resumes_bit_for_bit(
    whole: Path, arguments: list[str], here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_images(monkeypatch)
    kill_at("before last.ckpt is written", 3, *arguments, f"hydra.run.dir={tmp_path}")
    assert last(tmp_path)["global_step"] < 6
    cache = next(argument for argument in arguments if argument.startswith("data.cache="))
    here("train", f"resume={tmp_path}", cache)
    assert_same_run(whole, tmp_path)


def test_the_network_is_where_it_was_after_its_features_are_computed(
    arguments: list[str], here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning ends a test by taking the network to the CPU, which would end a training on a GPU."""
    moves: list[str] = []
    move_to_cpu, move = FeatureEmbedder.cpu, EmbeddingModel.to
    monkeypatch.setattr(FeatureEmbedder, "cpu", lambda self: (moves.append("cpu"), move_to_cpu(self))[1])
    monkeypatch.setattr(EmbeddingModel, "to", lambda self, *args: (moves.append("back"), move(self, *args))[1])
    short = ["data.cache=null", "trainer.max_steps=1", "evaluation.raw=false"]
    here("train", *arguments, *short, f"hydra.run.dir={tmp_path}")
    assert moves == ["cpu", "back"] * (len(moves) // 2)
    assert len(moves) >= 4  # of training and of validation at least


@pytest.mark.thorough
def test_components_are_of_as_many_images_as_those_of_any_training(
    arguments: list[str], here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrained_model, "PCA_IMAGES", 20)
    found = []
    for folder, frozen in ((tmp_path / "frozen", "true"), (tmp_path / "whole", "false")):
        here(
            "train",
            *arguments,
            "evaluation.raw=true",
            "quick=true",
            f"training.frozen={frozen}",
            f"hydra.run.dir={folder}",
        )
        found.append({name: value for name, value in read_metrics(folder).items() if name.startswith("raw/")})
    assert "raw/pca/level0/map@r" in found[0]
    assert found[0]["raw/pca/size"] < untrained_model.PCA_IMAGES  # images have fewer components than their number
    assert_metrics_agree(*found)


def test_evaluate_repeats_the_test(whole: Path, here: Here, tmp_path: Path) -> None:
    here("evaluate", f"checkpoint={whole}/checkpoints/best.ckpt", f"hydra.run.dir={tmp_path}")
    expected = {
        name: value for name, value in read_metrics(whole).items() if not name.startswith(("raw/", "selection"))
    }
    metrics = read_metrics(tmp_path)
    assert_metrics_agree({name: metrics[name] for name in expected}, expected)


def test_a_stage_may_train_the_heads_alone(arguments: list[str], here: Here, tmp_path: Path) -> None:
    stages = ["+stages.heads.training.frozen=true", "+stages.all.trainer.max_steps=2"]
    given = [argument for argument in arguments if argument != "training.frozen=true"]
    short = ["trainer.max_steps=2", "evaluation.raw=false", "evaluation.heads=false", "checkpoints.every_n_steps=1"]
    here("train", *given, *short, *stages, f"hydra.run.dir={tmp_path}")
    checkpoint = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")
    assert checkpoint["run"]["stage"] == "all"
    groups = [group["name"] for group in checkpoint["optimizer_states"][0]["param_groups"]]
    assert groups == ["backbone", "heads"]


@pytest.mark.thorough
def test_crops_are_embedded_from_images(whole: Path, arguments: list[str], here: Here, tmp_path: Path) -> None:
    given = [*arguments, "evaluation.crops=2", "data.cache=null", "evaluation.raw=false"]
    here("train", *given, f"hydra.run.dir={tmp_path}/run")
    here("evaluate", f"checkpoint={tmp_path}/run/checkpoints/best.ckpt", f"hydra.run.dir={tmp_path}/again")
    metrics = read_metrics(tmp_path / "run")
    assert metrics["level0/map@r"] == pytest.approx(read_metrics(tmp_path / "again")["level0/map@r"], abs=LIMIT)
    assert metrics["level0/map@r"] != read_metrics(whole)["level0/map@r"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.compile=true",
            "trains heads alone, without the network; training.compile=null",
        ),
        ("recurrent=lstm", "recurrent: it finds neighbors by a trained network, and the run has none"),
        ("adapter=bitfit", "training.frozen=true: trains heads alone, without the network; adapter=none"),
    ],
)
def test_mistakes_are_one_line(
    refused: Refused, arguments: list[str], override: str, message: str, tmp_path: Path
) -> None:
    assert message in refused(*arguments, override, f"hydra.run.dir={tmp_path}/run")


def test_the_features_of_a_head_are_those_of_its_tap(arguments: list[str]) -> None:
    quiet()
    found = {}
    for tap in ("pool2", "relu2"):
        settings = settings_of(compose(*arguments, f"model.taps.H={tap}"))
        torch.manual_seed(0)
        source = untrained_model.build_feature_source(settings, builders.build_model(settings))
        found[tap] = source.load_inputs(builders.build_table(settings).take(np.arange(8)))["H"]
    assert not torch.equal(found["pool2"], found["relu2"])


def test_two_processes_are_refused(arguments: list[str]) -> None:
    settings = settings_of(compose(*arguments, *TWO))
    with pytest.raises(InputError, match=r"training\.frozen=true: trains in one process, not in 2; trainer\.devices=1"):
        untrained_model.build_feature_source(settings, builders.build_model(settings))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_heads_learn_in_any_precision(precision: str, arguments: list[str], here: Here, tmp_path: Path) -> None:
    proxies = ["loss=normalized_softmax", "training.proxies=class_means"]
    short = ["evaluation.raw=false", "trainer.max_steps=2", "trainer.val_check_interval=null"]
    here("train", *arguments, *proxies, *short, f"trainer.precision={precision}", f"hydra.run.dir={tmp_path / 'run'}")
    assert 0 < read_metrics(tmp_path / "run")["level0/recall@1"] <= 1
