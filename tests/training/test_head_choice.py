"""The heads that a validation chooses, and that the test and the trained model then use."""

from pathlib import Path

import numpy as np
import pytest
import torch
from configurations import compose, settings_of
from conftest import PLAIN, Here
from runs import last, metrics
from torch import Tensor

import dml
from dml.run import loop
from dml.runtime.run_folder import RunFolder
from dml.training.embedders import Embedded, HeadChoice

SETS = {"L+M+H": 3, "M+H": 2, "H": 1}
"""The sets of heads to choose from, with the sizes of their embeddings in the tests of the choice alone."""
EMBEDDED = Embedded({name: torch.ones(4, size) for name, size in SETS.items()}, torch.arange(4))
CHOOSING = [*PLAIN, "heads.choose=true", "evaluation.threshold=null", "scheduler=constant"]


@pytest.mark.parametrize(
    ("values", "mode", "ties", "expected"),
    [
        ({"L+M+H": 0.5, "M+H": 0.7, "H": 0.6}, "max", {}, "M+H"),
        ({"L+M+H": 0.5, "M+H": 0.7, "H": 0.6}, "min", {}, "L+M+H"),
        ({"L+M+H": 0.7, "M+H": 0.7, "H": 0.7}, "max", {}, "L+M+H"),
        ({"L+M+H": 0.7, "M+H": 0.7, "H": 0.7}, "max", {"L+M+H": 0.1, "M+H": 0.2, "H": 0.3}, "H"),
        ({"L+M+H": 0.7, "M+H": 0.7, "H": 0.6}, "max", {"L+M+H": 0.1, "M+H": 0.2, "H": 0.3}, "M+H"),
    ],
)
def test_the_best_set_is_chosen(values: dict[str, float], mode: str, ties: dict[str, float], expected: str) -> None:
    choice = HeadChoice(["L", "M", "H"], "heads/M/level0/recall@1", mode, "level0/map@r" if ties else None)
    assert choice.candidates == [*SETS]
    names = {size: name for name, size in SETS.items()}

    def evaluate(embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        assert len(embeddings) == len(rows)
        name = names[embeddings.shape[1]]
        return {"level0/recall@1": values[name], "level0/map@r": ties.get(name, 0.0)}

    heads, found = choice.choose(EMBEDDED, evaluate, torch.device("cpu"))
    assert heads == (*expected.split("+"),)
    assert found["level0/recall@1"] == values[expected]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("mode", ["max", "min"])  # recall@1 of fewer heads is often smaller: "min" takes another set
def test_the_test_and_the_model_use_the_chosen_heads(
    here: Here, small_emoji: Path, tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = [*CHOOSING, f"checkpoints.mode={mode}", "evaluation.head_sets=[[M,H]]"]
    here("train", *arguments, f"dataset.root={small_emoji}", f"hydra.run.dir={run}")
    out, found, model = capsys.readouterr().out, metrics(run), dml.load(run)
    name = "+".join(model.heads)
    assert name in SETS
    assert found.get("chosen_heads", "L+M+H") == name
    assert ("chosen: " in out) is ("chosen_heads" in found)
    own = {key: value for key, value in found.items() if key.startswith("level")}
    for key, value in own.items() if name != "L+M+H" else ():
        assert found[f"heads/{name}/{key}"] == value, key
    assert model.dimension == 8 * len(model.heads)
    saved = dml.load(model.save_pretrained(tmp_path / "saved"))
    assert saved.heads == model.heads == saved.model.chosen_heads
    images = [np.full((32, 32, 3), shade, dtype=np.uint8) for shade in (0, 90, 200)]
    np.testing.assert_array_equal(saved.embed(images), model.embed(images))
    again = tmp_path / "again"
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={again}")
    assert {key: metrics(again)[key] for key in own} == own


def test_a_validation_has_the_metrics_of_the_set_that_it_chooses(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    """With weights that stay as they are, the best set of heads is that of three tests of the validation classes."""
    computed = ["evaluation.metrics=[map@r,h_ap,nmi]", "evaluation.clustering=true"]
    arguments = [*CHOOSING, "optimizer=sgd", "optimizer.lr=0", "trainer.max_steps=3", *computed]
    here("train", *arguments, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path / 'run'}")
    checkpoint = tmp_path / "run" / "checkpoints" / "best.ckpt"
    tested = [f"checkpoint={checkpoint}", "split=val", "evaluation.head_sets=[[M,H],[L,M,H]]"]
    here("evaluate", *tested, f"hydra.run.dir={tmp_path / 'val'}")
    found = metrics(tmp_path / "val")
    values = {name: found[f"heads/{name}/level0/map@r"] for name in SETS}
    chosen = "+".join(last(tmp_path / "run")["chosen_heads"])
    assert values[chosen] == max(values.values()) == found["level0/map@r"]
    for name in ("level0/map@r", "h_ap", "level0/nmi", "level2/nmi"):
        assert RunFolder(tmp_path / "run").values(f"val/{name}")[3] == pytest.approx(found[name])


def test_a_resumed_run_keeps_its_heads(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    checkpoints = ["checkpoints.mode=min", "trainer.val_check_interval=2", "evaluation.clustering=true"]
    arguments = [*CHOOSING, f"dataset.root={small_emoji}", *checkpoints, "trainer.max_steps=4"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    here("train", *arguments, f"hydra.run.dir={whole}")
    here("train", *arguments, "trainer.max_steps=3", f"hydra.run.dir={parts}")
    here("train", f"resume={parts}", "trainer.max_steps=4")
    expected, resumed = last(whole), last(parts)
    assert resumed["chosen_heads"] == expected["chosen_heads"]
    assert all(torch.equal(resumed["state_dict"][name], value) for name, value in expected["state_dict"].items())
    assert metrics(parts)["level0/recall@1"] == metrics(whole)["level0/recall@1"]
    for name in ("val/h_ap", "val/level0/nmi"):
        validated, again = RunFolder(whole).values(name), RunFolder(parts).values(name)
        assert [*validated] == [2, 4]
        assert {step: again[step] for step in validated} == validated


def test_without_a_choice_all_heads_are_used() -> None:
    for option in ("evaluation.selection=last", "model.heads=[H]", "heads.choose=false"):
        assert loop.build_head_choice(settings_of(compose(*CHOOSING, option))) is None
    assert loop.build_head_choice(settings_of(compose(*CHOOSING))) is not None
