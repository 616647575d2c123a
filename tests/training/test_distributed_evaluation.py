"""A split that the processes don't divide is embedded as one process embeds it, also within a training."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gloo import on_processes
from pytorch_lightning import Trainer
from torch import Tensor, nn

from dml.data.readers.emoji import read
from dml.data.table import ImageTable
from dml.evaluation import Evaluator, MetricConfig
from dml.losses.rll import RankedListLoss
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.runtime.imports import quiet
from dml.samplers.class_balanced import ClassBalancedSampler
from dml.training.data import DataModule, LoaderSettings
from dml.training.embedders import Embedded
from dml.training.module import MetricLearner
from dml.training.optimizers import ParameterGroups, optimizer_by_role

pytestmark = pytest.mark.distributed

PROCESSES = 3
TRAIN, VAL, TEST = 30, 2, 7  # images; of the validation's one process has none, of the test's one has more than others
COSINE = "level0/cosine"


class Found(NamedTuple):
    embedded: Embedded
    stored: Embedded
    untrained: float
    trained: float


def table(archive: Path) -> ImageTable:
    whole = read(archive)
    rows = np.lexsort((np.arange(len(whole)), whole.labels[:, 0]))[: TRAIN + VAL + TEST]  # class by class
    part = whole.take(rows)
    return replace(part, split=np.repeat(["val", "train", "test"], [VAL, TRAIN, TEST]))


def small(image: Tensor) -> Tensor:
    return image[:, ::4, ::4]


def model() -> EmbeddingModel:
    """With batch normalization, whose statistics DistributedDataParallel sends round before it is called."""
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *pooled)
    backbone = Backbone(network, mean=(0.5,) * 3, std=(0.5,) * 3)
    return EmbeddingModel(backbone, taps={"H": "2"}, head={"H": PoolHead}, heads=["H"], embed_dim=4, image_size=16)


def pass_over(archive: Path, count: int) -> Found:
    quiet()

    def optimizer(roles: ParameterGroups) -> torch.optim.Optimizer:
        return optimizer_by_role(roles, optimizer=torch.optim.SGD, lr=0.1)

    images = DataModule(
        table(archive),
        train_transform=small,
        test_transform=small,
        sampler=lambda labels: ClassBalancedSampler(labels, 3, 2),
        settings=LoaderSettings(eval_batch_size=1),
    )
    evaluator = Evaluator(images.table.select_evaluated("val"), MetricConfig(("recall",), recall_at=(1,)))

    def evaluate(embeddings: Tensor, rows: Tensor | None) -> dict[str, float]:
        """The recall of two images of one class is always 1; their cosine depends on every digit of both."""
        first, second = torch.nn.functional.normalize(embeddings.double())
        return evaluator(embeddings, rows) | {COSINE: float(first @ second)}

    module = MetricLearner(model(), {"H": RankedListLoss()}, optimizer=optimizer, schedule=None, evaluate=evaluate)
    trainer = Trainer(
        max_steps=4,
        max_epochs=-1,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        accelerator="cpu",
        devices=count,
        strategy="ddp" if count > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.test(module, images, verbose=False)
    embedded = module.embedded
    module.eval()
    with torch.no_grad():
        batches = [(module.embed_for_bank(pixels), rows) for pixels, _, rows in images.training_images() if len(rows)]
    stored = module.gather_split(batches)
    module.train()
    [untrained] = trainer.validate(module, images, verbose=False)
    trainer.fit(module, images)
    return Found(embedded, stored, untrained[f"val/{COSINE}"], float(trainer.callback_metrics[f"val/{COSINE}"]))


@pytest.fixture(scope="module")
def of_three(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("evaluation")
    return on_processes(PROCESSES, folder, pass_over, small_emoji, PROCESSES)


@pytest.fixture(scope="module")
def of_one(small_emoji: Path) -> Found:
    return pass_over(small_emoji, 1)


def test_every_process_has_the_embeddings_of_one(of_one: Found, of_three: list[Any]) -> None:
    assert of_one.embedded.rows.tolist() == list(range(TEST))
    assert len(of_three) == PROCESSES
    for found in of_three:
        for own, other in zip(found[:2], of_one[:2], strict=True):
            assert torch.equal(own.rows, other.rows)
            assert own.embeddings.keys() == other.embeddings.keys()
            for name, rows in other.embeddings.items():
                assert torch.equal(own.embeddings[name], rows), name


def test_a_validation_in_which_a_process_has_no_image_is_the_same_for_all(of_one: Found, of_three: list[Any]) -> None:
    """Untrained, that of one process; trained, with batches of their own, one value for all."""
    values = [Found(*found) for found in of_three]
    assert [found.untrained for found in values] == [of_one.untrained] * PROCESSES
    assert of_one.untrained < 1
    assert len({found.trained for found in values}) == 1
    assert values[0].trained != of_one.untrained
