"""Runs on a GPU: what they can be told to do, that they repeat and go on bit for bit, and how they stop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLAIN, ROOT, Here, Refused
from every_loss import LOSSES
from runs import last, metrics
from torch import nn

import dml
from dml.models.small_cnn import small_cnn
from dml.training.gradient_cache import embed_in_chunks

FLOAT16 = "trainer.precision=16-mixed"
OPTIONS = {
    "plain": [],
    "float16": [FLOAT16],
    "bfloat16": ["trainer.precision=bf16-mixed"],
    "weights of 16 bits": ["trainer.precision=bf16-true"],
    "clipped": ["trainer.gradient_clip_val=1.0"],
    "clipped float16": [FLOAT16, "trainer.gradient_clip_val=1.0"],
    "gradient cache": ["training.gradient_cache=3"],
    "gradient cache in float16": ["training.gradient_cache=3", FLOAT16],
    "accumulated": ["trainer.accumulate_grad_batches=2"],
    "averaged": ["training.ema=0.9"],
    "TF32": ["training.matmul_precision=high", "trainer.benchmark=true", "trainer.deterministic=false"],
    "compiled": ["training.compile={backend: aot_eager}"],
    "heads alone": ["training.frozen=true", "data.cache=null"],
    "a batch on one process of several": ["trainer=ddp", "trainer.devices=1"],
    "sharded": ["trainer=ddp", "trainer.devices=1", "loss=happier"],
    "deterministic": ["trainer.deterministic=true"],
    "stored embeddings": ["loss=tuplet_drift"],
    "recurrent": [
        "recurrent=lstm",
        "+stages.first.recurrent=null",
        "+stages.second.recurrent.neighbors=4",
        "+stages.second.recurrent.recurrent.hidden_size=4",
    ],
    "hard classes": ["sampler=hard_class"],
    "worker processes": ["data.num_workers=2"],
    "clusters": ["evaluation.clustering=true"],
    "report": ["evaluation.report={neighbors: 10, map: true, seed: 0}"],
    "raw features": ["evaluation.raw=true"],
    "heads that begin as components": ["heads.initial=half_whitened_components"],
    "chosen heads": ["heads.choose=true", "checkpoints.beginning=true"],
    "a ranking anew": ["evaluation.reranking=k_reciprocal"],
    "views": ["evaluation.crops=2"],
    "stages": ["+stages.heads.training.frozen=true", "+stages.all={}", "data.cache=null"],
}


@pytest.fixture
def arguments(small_emoji: Path, device: str) -> list[str]:
    return [f"dataset.root={small_emoji}", *PLAIN, f"trainer.accelerator={device}", "trainer.val_check_interval=2"]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_trains(option: str, device: str, arguments: list[str], here: Here, tmp_path: Path) -> None:
    if device == "cpu" and FLOAT16 in OPTIONS[option]:
        pytest.skip("CPUs don't train in float16")
    here("train", *arguments, *OPTIONS[option], "trainer.max_steps=4", f"hydra.run.dir={tmp_path}")
    assert last(tmp_path)["global_step"] == 4
    assert 0 < metrics(tmp_path)["level0/recall@1"] <= 1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_trains(loss: str, arguments: list[str], here: Here, tmp_path: Path) -> None:
    here("train", *arguments, f"loss={loss}", "trainer.max_steps=2", f"hydra.run.dir={tmp_path}")
    assert last(tmp_path)["global_step"] == 2
    assert 0 < metrics(tmp_path)["level0/recall@1"] <= 1


MODELS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


@pytest.mark.parametrize("model", [name for name in MODELS if name != "timm"])
def test_a_network_trains(model: str, arguments: list[str], here: Here, tmp_path: Path) -> None:
    size = 160 if "inception" in model or "googlenet" in model else 96  # the least that their lower heads take
    network = [f"model={model}", "model.backbone.weights=null", f"transform.size={size}"]
    length = ["trainer.precision=bf16-mixed", "trainer.max_steps=2"]
    here("train", *arguments, *network, *length, f"hydra.run.dir={tmp_path}")
    assert last(tmp_path)["global_step"] == 2


@pytest.mark.parametrize(
    "options", [[], ["training.gradient_cache=3"], ["training.ema=0.9"], ["trainer.precision=bf16-mixed"]]
)
def test_a_deterministic_run_repeats_and_resumes_bit_for_bit(
    options: list[str], arguments: list[str], here: Here, tmp_path: Path
) -> None:
    runs = [*arguments, *options, "trainer.deterministic=true", "scheduler=constant", "trainer.val_check_interval=null"]
    once, again, parts = (tmp_path / name for name in ("once", "again", "parts"))
    for folder in (once, again):
        here("train", *runs, f"hydra.run.dir={folder}", "trainer.max_steps=4")
    here("train", *runs, f"hydra.run.dir={parts}", "trainer.max_steps=2")
    here("train", f"resume={parts}", "trainer.max_steps=4")
    expected = last(once)["state_dict"]
    for folder in (again, parts):
        found = last(folder)["state_dict"]
        assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
        assert metrics(folder) == metrics(once)


def test_a_checkpoint_of_a_gpu_is_tested_without_one(arguments: list[str], here: Here, tmp_path: Path) -> None:
    run, tested = tmp_path / "run", tmp_path / "tested"
    here("train", *arguments, "trainer.max_steps=2", f"hydra.run.dir={run}")
    checkpoint = run / "checkpoints" / "last.ckpt"
    here("evaluate", f"checkpoint={checkpoint}", "trainer.accelerator=cpu", f"hydra.run.dir={tested}")
    for name, value in metrics(run).items():
        if name.startswith("level"):
            assert metrics(tested)[name] == pytest.approx(value, abs=5e-3), name


def test_a_diverging_run_stops_in_the_step_that_diverged(arguments: list[str], refused: Refused) -> None:
    line = refused(*arguments, "optimizer.lr=1e30", "trainer.max_steps=6")
    assert "became NaN or infinite" in line


class Dropout(nn.Module):
    """A network with dropout, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.dropout, self.head = small_cnn(), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.backbone(images)[0].flatten(1)[:, :8]
        return {"H": self.head(self.dropout(features))}


def test_the_gradient_cache_draws_the_same_dropout_twice(device: str) -> None:
    model = Dropout().to(device)
    images = torch.randint(0, 256, (10, 3, 32, 32), dtype=torch.uint8, device=device)
    torch.manual_seed(7)
    embeddings = embed_in_chunks(model, images, 4)["H"]
    embeddings.square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.manual_seed(7)
    parts = [model(chunk)["H"] for chunk in images.split(4)]
    torch.testing.assert_close(torch.cat(parts), embeddings)
    torch.cat(parts).square().sum().backward()
    for gradient, expected in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_photographs_are_embedded_as_on_the_cpu(
    precision: str, device: str, arguments: list[str], here: Here, tmp_path: Path
) -> None:
    here("train", *arguments, "trainer.max_steps=1", f"hydra.run.dir={tmp_path}")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (40, 50, 3), dtype=np.uint8) for _ in range(5)]
    on_cpu = dml.load(tmp_path, device="cpu").embed(images)
    on_gpu = dml.load(tmp_path, device=device).embed(images, precision=precision)
    tolerance = 1e-4 if precision == "32" else 0.02
    np.testing.assert_allclose(on_gpu, on_cpu, atol=tolerance)
