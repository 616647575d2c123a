"""What a run begins with: heads at principal components, and a validation before the first step."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from configurations import settings_of
from conftest import ONE_HEAD, Here
from omegaconf import OmegaConf
from pytorch_lightning import seed_everything
from pytorch_lightning.trainer.states import TrainerFn
from runs import last

from dml.run import builders, loop
from dml.runtime.run_folder import RunFolder
from dml.training.callbacks.checkpoints import BestCheckpoint

BEGINNING = [*ONE_HEAD, "heads.initial=principal_components", "checkpoints.beginning=true"]
UNMOVED = ["optimizer=sgd", "optimizer.lr=0", "scheduler=constant"]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("option", [[], ["training.ema=0.9"]])
def test_heads_begin_at_the_components_of_what_their_network_gives(
    here: Here, small_emoji: Path, tmp_path: Path, option: list[str]
) -> None:
    heads = ["model.heads=[L,M,H]", *option]
    here("train", *BEGINNING, *UNMOVED, *heads, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")
    weights = last(tmp_path)["state_dict"]
    config = OmegaConf.load(tmp_path / ".hydra" / "config.yaml")
    seed_everything(config.seed, verbose=False)
    images = loop.build_data(settings_of(config), builders.build_table(settings_of(config)))
    model = builders.build_model(settings_of(config)).eval()
    with torch.no_grad():
        inputs = [model.pool_maps(model.backbone(pixels)[1]) for pixels, _, _ in images.training_images()]
    for head in config.model.heads:
        unit = F.normalize(torch.cat([part[head].flatten(1) for part in inputs]).double(), dim=1)
        best = torch.linalg.svdvals(unit)[: config.model.embed_dim].square().sum()
        weight = F.normalize(weights[f"model.heads.{head}.embedding.weight"].double(), dim=1)
        torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight)).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close((unit @ weight.T).square().sum(), best, rtol=1e-4, atol=0)
    # the validation before the first step saw these weights, those of a moving average too
    values = RunFolder(tmp_path).values("val/level0/recall@1")
    assert [*values] == [0, 3, 6]
    assert len({*values.values()}) == 1


def test_a_training_that_only_harms_keeps_its_beginning(
    here: Here, small_emoji: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm = ["optimizer=sgd", "optimizer.lr=100", "scheduler=constant", "loss=triplet"]
    here("train", *BEGINNING, *harm, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path}")
    folder = RunFolder(tmp_path)
    values = folder.values("val/level0/map@r")
    assert values[0] == max(values.values()) > values[6]
    assert folder.metrics()["step"] == 0
    assert "no validation was better than the one before the first step" in " ".join(capsys.readouterr().out.split())


def test_a_run_resumes_bit_for_bit(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [*BEGINNING, f"dataset.root={small_emoji}", "trainer.val_check_interval=1", "scheduler=constant"]
    here("train", *arguments, "trainer.max_steps=1", f"hydra.run.dir={tmp_path / 'parts'}")
    here("train", *arguments, "trainer.max_steps=2", f"hydra.run.dir={tmp_path / 'whole'}")
    here("train", f"resume={tmp_path / 'parts'}", "trainer.max_steps=2")
    whole, parts = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert all(torch.equal(value, parts["state_dict"][name]) for name, value in whole["state_dict"].items())
    histories = [RunFolder(tmp_path / name).values("val/level0/map@r") for name in ("whole", "parts")]
    assert [*histories[0]] == [0, 1, 2]
    assert histories[0] == histories[1]


@pytest.mark.parametrize(
    ("mode", "validations", "best"),
    [
        ("max", [(1.0, 0.2), (1.0, 0.5), (1.0, 0.4)], 1),
        ("max", [(0.8, 0.2), (0.9, 0.1), (0.9, 0.1)], 1),
        ("max", [(0.8, 0.2), (0.7, 0.9), (0.8, 0.1)], 0),
        ("max", [(float("nan"), 0.9), (0.1, 0.1), (float("nan"), 0.9)], 1),
        ("max", [(0.8, float("nan")), (0.8, 0.1)], 1),
        ("min", [(0.8, 0.9), (0.7, 0.1), (0.9, 0.9), (0.7, 0.2)], 3),
    ],
)
def test_the_tie_breaker_decides_between_equal_validations(
    mode: str, validations: list[tuple[float, float]], best: int, tmp_path: Path
) -> None:
    callback, chosen = BestCheckpoint("level0/recall@1", mode, tie_breaker="level0/map@r"), []
    for index, (recall, tie) in enumerate(validations):
        trainer: Any = SimpleNamespace(
            callback_metrics={"val/level0/recall@1": torch.tensor(recall), "val/level0/map@r": torch.tensor(tie)},
            strategy=SimpleNamespace(broadcast=lambda decision: decision),
            state=SimpleNamespace(fn=TrainerFn.FITTING),
            save_checkpoint=lambda path, index=index: chosen.append((index, Path(path).name)),
            sanity_checking=False,
            default_root_dir=tmp_path,
            min_steps=None,
            global_step=index,
            max_steps=9,
            should_stop=False,
        )
        callback.on_validation_end(trainer, cast(Any, SimpleNamespace(validated_on="val")))
        resumed = BestCheckpoint("level0/recall@1", mode, tie_breaker="level0/map@r")
        resumed.load_state_dict(callback.state_dict())  # it knows all that it knew
        callback = resumed
    assert chosen[-1] == (best, "best.ckpt")
