"""The callbacks of a training, their order, and how a user adds to them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from configurations import settings_of
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import Timer
from test_builders import composed

from dml.ops.training_protocols import EmbeddingBank
from dml.run import loop
from dml.run.settings import Settings
from dml.run.stored import list_stages
from dml.training.callbacks.averaging import Averaging
from dml.training.callbacks.loss_schedule import LossSchedule

DEFAULT = [
    "StepSeed",
    "PrincipalHeads",
    "ProxiesAtClassMeans",
    "FirstValidation",
    "FirstCheckpoint",
    "FinalValidation",
    "ProgressLines",
    "BestCheckpoint",
    "LastCheckpoint",
]
ALL_OPTIONS = [
    "training.ema=0.9",
    "training.proxies=class_means",
    "training.bank_every_n_steps=7",
    "checkpoints.every_n_steps=11",
    "checkpoints.monitor=h_ap",
    "scheduler.loss={attribute: temperature, start: 1, end: 2}",
]


class BankUser(torch.nn.Module):
    """A part of a loss that uses the embedding bank."""

    num_bank_neighbors = 0

    def set_embedding_bank(self, bank: EmbeddingBank) -> None:
        raise NotImplementedError


def build_callbacks(settings: Settings, loss: torch.nn.Module | None = None) -> list[Callback]:
    learner: Any = SimpleNamespace(model=torch.nn.Identity(), losses={"H": loss or torch.nn.Identity()})
    images: Any = SimpleNamespace(sampler=None)
    return loop.build_callbacks(settings, images, learner)


def names(*overrides: str) -> list[str]:
    return [type(callback).__name__ for callback in build_callbacks(settings_of(composed(*overrides)))]


def built(kind: type[Callback], *overrides: str) -> Any:
    (callback,) = (
        callback for callback in build_callbacks(settings_of(composed(*overrides))) if isinstance(callback, kind)
    )
    return callback


def test_options_that_are_off_build_nothing() -> None:
    assert names() == DEFAULT


def test_all_options_are_built_in_order() -> None:
    moving = ["LossSchedule", "PrincipalHeads", "EmbeddingBankUpdates", "ProxiesAtClassMeans", "Averaging"]
    built = build_callbacks(settings_of(composed(*ALL_OPTIONS)), BankUser())
    assert [type(callback).__name__ for callback in built] == [
        "StepSeed",
        *moving,
        "FirstValidation",
        "FirstCheckpoint",
        "FinalValidation",
        "ProgressLines",
        "BestCheckpoint",
        "LastCheckpoint",
    ]


def test_the_keys_of_the_options_reach_the_callbacks() -> None:
    built_callbacks = build_callbacks(settings_of(composed(*ALL_OPTIONS, "seed=5")), BankUser())
    seeding, schedule, _, stored, _, averaging, _, _, _, _, best, last = (
        vars(callback) for callback in built_callbacks
    )
    assert seeding["seed"] == 5
    assert (schedule["attribute"], schedule["start"], schedule["end"]) == ("temperature", 1, 2)
    assert stored["every_n_steps"] == 7
    assert averaging["decay"] == 0.9
    assert (best["metric"], best["sign"], last["every_n_steps"]) == ("h_ap", 1, 11)
    assert last["every_n_seconds"] == 300


def test_a_part_can_be_left_out_by_its_key() -> None:
    keys = [
        *("heads.initial=null", "training.proxies=null", "checkpoints.beginning=false"),
        "checkpoints.interpolation=null",
    ]
    kept = ["StepSeed", "FinalValidation", "BestCheckpoint", "LastCheckpoint"]
    assert names(*keys, "trainer.enable_progress_bar=false") == kept
    assert "PrincipalHeads" not in names("training.init=other.ckpt")


def test_a_users_callback_comes_before_the_checkpoints() -> None:
    timer = "{_target_: pytorch_lightning.callbacks.Timer, duration: {hours: 1}}"
    assert names(f"trainer.callbacks=[{timer}]") == [*DEFAULT[:-2], "Timer", *DEFAULT[-2:]]
    assert built(Timer, f"trainer.callbacks=[{timer}]")._duration == 3600


@pytest.mark.usefixtures("own_code")
def test_a_users_bar_is_shown_in_place_of_dmls() -> None:
    shown = names("trainer.callbacks=[{_target_: pytorch_lightning.callbacks.TQDMProgressBar}]")
    assert shown == [name for name in DEFAULT[:-2] if name != "ProgressLines"] + ["TQDMProgressBar", *DEFAULT[-2:]]


def test_each_stage_has_its_own_options() -> None:
    first, second = list_stages(
        composed("+stages={first: {training: {ema: 0.5}}, second: {scheduler: {loss: null}}}", *ALL_OPTIONS[1:])
    )
    assert [Averaging in map(type, build_callbacks(stage.settings)) for stage in (first, second)] == [True, False]
    assert [LossSchedule in map(type, build_callbacks(stage.settings)) for stage in (first, second)] == [True, False]
