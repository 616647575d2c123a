"""The geometry of a run: what its tests rank embeddings by."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from configurations import compose, settings_of
from conftest import PLAIN, Here

from dml.evaluation.evaluator import Evaluator
from dml.losses.hyperbolic import to_ball
from dml.ops.poincare import Ball
from dml.run.evaluators import find_ball
from dml.runtime.errors import InputError
from dml.training.embedders import CHOSEN_HEADS, Embedded, ModelEmbedder


@pytest.mark.parametrize(
    ("overrides", "ball"),
    [
        ([], None),
        (["loss=hyperbolic"], Ball(0.1, 2.3)),
        (["loss=hyperbolic", "loss.curvature=0.5", "loss.clip=1"], Ball(0.5, 1)),
        (["loss=hyperbolic", "loss.curvature=0"], None),
        (["loss=hyperbolic", "evaluation.geometry=null"], None),
        (["loss=threshold_consistent_margin", "loss@loss.terms.base=hyperbolic"], Ball(0.1, 2.3)),
        (["evaluation.geometry={curvature:1.0,clip:2.0}"], Ball(1.0, 2.0)),
    ],
)
def test_the_ball_follows_the_loss_unless_it_is_given(overrides: list[str], ball: Ball | None) -> None:
    assert find_ball(settings_of(compose(*overrides))) == ball


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluation.geometry=poincare"], "evaluation.geometry=poincare: auto, null"),
        (["evaluation.geometry={curvature:1.0}"], "evaluation.geometry="),
        (["evaluation.geometry={curvature:-1.0,clip:2.0}"], r"geometry\.curvature=-1\.0"),
        (["loss=hyperbolic", "recurrent=lstm"], "geometry: with recurrent"),
        (["loss=hyperbolic", "evaluation.fixed_neighbors=3"], r"geometry: with evaluation\.fixed_neighbors"),
    ],
)
def test_a_geometry_that_cannot_be_used_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_ball(settings_of(compose(*overrides)))


def test_heads_become_points_alone_and_together() -> None:
    model: Any = torch.nn.Identity()
    model.chosen_heads = ("L", "M", "H")
    embedder = ModelEmbedder(model, head_sets=("L+H",))
    embedder.ball = Ball(0.1, 2.3)
    heads = {name: torch.randn(5, 3, generator=torch.Generator().manual_seed(i)) for i, name in enumerate("LMH")}
    points = embedder.finalize(Embedded(heads, torch.arange(5))).embeddings
    assert {*points} == {CHOSEN_HEADS, "L+H", *"LMH"}
    assert torch.equal(points["M"], to_ball(heads["M"], 0.1, 2.3))
    assert torch.equal(points["L+H"], to_ball(torch.cat([heads["L"], heads["H"]], dim=1) / 2**0.5, 0.1, 2.3))
    assert points[CHOSEN_HEADS].shape == (5, 9)


def test_a_run_is_tested_by_poincare_distance_again_and_by_cosine_on_request(
    here: Here, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curvatures: list[float] = []
    evaluate = Evaluator.evaluate

    def watch(self: Evaluator, *args: Any, **kwargs: Any) -> Any:
        curvatures.append(self.config.curvature)
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(Evaluator, "evaluate", watch)
    trained, again, by_cosine = (tmp_path / name for name in ("trained", "again", "by_cosine"))
    given = [*PLAIN, "loss=hyperbolic", f"dataset.root={small_emoji}"]
    here("train", *given, f"hydra.run.dir={trained}")
    assert {*curvatures} == {0.1}
    checkpoint = f"checkpoint={trained / 'checkpoints' / 'best.ckpt'}"
    here("evaluate", checkpoint, f"hydra.run.dir={again}")
    assert {*curvatures} == {0.1}
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (trained, again)]
    for name in ("level0/recall@1", "h_ap"):
        assert metrics[0][name] == metrics[1][name]
    here("evaluate", checkpoint, "evaluation.geometry=null", f"hydra.run.dir={by_cosine}")
    assert curvatures[-1] == 0.0
