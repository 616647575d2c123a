"""Every loss trains heads on stored features, as on a frozen network that embeds images in each step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import settings_of
from every_loss import LOSSES, compose_loss
from pytorch_lightning import Callback, Trainer
from torch import Tensor
from trainers import small_trainer

from dml.data.dataset import ImageDataset
from dml.data.table import ImageTable
from dml.models.embedding import EmbeddingModel
from dml.models.heads import GeMHead, NormalizedPoolHead, PoolHead
from dml.models.small_cnn import small_cnn
from dml.run import loop
from dml.run.stored import Stage
from dml.runtime.errors import InputError
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates, find_bank_users
from dml.training.callbacks.process_state import StepSeed
from dml.training.frozen import (
    FeatureDataset,
    FeatureEmbedder,
    FrozenDataModule,
    FrozenLearner,
)

COUNT = 24
TABLE = ImageTable(
    paths=np.array([f"{row}.png" for row in range(COUNT)]),
    labels=np.stack([np.arange(COUNT) // 4, np.arange(COUNT) // 8], axis=1),
    split=np.full(COUNT, "train"),
    levels=("class", "group"),
)
PIXELS = torch.randint(0, 256, (COUNT, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()


def make_model(head_l: Any = PoolHead) -> EmbeddingModel:
    torch.manual_seed(0)
    heads = {"L": head_l, "H": NormalizedPoolHead}
    taps = {"L": "relu1", "H": "pool2"}
    return EmbeddingModel(small_cnn(), taps=taps, head=heads, heads=["L", "H"], embed_dim=6, image_size=8).eval()


def pool(model: EmbeddingModel) -> dict[str, Tensor]:
    with torch.no_grad():
        return model.pool_maps(model.backbone(PIXELS)[1])


def make_learner(model: EmbeddingModel, loss: str = "rll", **changes: Any) -> tuple[FrozenLearner, FrozenDataModule]:
    config = compose_loss(loss)
    config.training.frozen = True
    config.model.heads = ["L", "H"]
    config.sampler.classes_per_batch, config.sampler.images_per_class = 3, 4
    for key, value in changes.items():
        config.training[key] = value
    images = loop.build_data(settings_of(config), TABLE)
    loop.count_in_steps(Stage("", config), len(images.sampler))
    learner = loop.build_learner(settings_of(config), images, model)
    assert isinstance(images, FrozenDataModule)
    assert isinstance(learner, FrozenLearner)
    inputs = pool(model)
    images.load_inputs = lambda table: inputs
    return learner, images


class NothingLoggedBefore(Callback):
    """Asserts that no step before the last logs its losses, as the loggers are off: Lightning would read them."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        assert trainer.callback_metrics.keys() == set() or trainer.global_step == trainer.max_steps


@pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.pipeline
def test_each_loss_trains_the_heads_alone(loss: str) -> None:
    model = make_model()
    learner, images = make_learner(model, loss)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bank = [EmbeddingBankUpdates()] if find_bank_users(images.sampler, learner) else []
    trainer = small_trainer(2, callbacks=[StepSeed(0), *bank, NothingLoggedBefore()])
    trainer.fit(learner, datamodule=images)
    assert "loss" in trainer.callback_metrics  # of the last step
    for name, value in model.state_dict().items():
        assert value.isfinite().all()
        assert torch.equal(value, before[name]) == name.startswith("backbone."), name


@pytest.mark.parametrize("head_l", [PoolHead, GeMHead])
def test_embeddings_and_gradients_are_those_of_the_images(head_l: Any) -> None:
    model = make_model(head_l)
    learner, _ = make_learner(model, gradient_cache=5)
    rows = torch.arange(12)

    def gradients(embeddings: Mapping[str, Tensor]) -> list[Tensor]:
        model.zero_grad()
        sum(
            learner.losses[head](part, torch.from_numpy(TABLE.labels)[rows]) for head, part in embeddings.items()
        ).backward()
        return [parameter.grad for parameter in model.heads.parameters() if parameter.grad is not None]

    expected = model(PIXELS[rows])
    inputs = learner.embed_for_loss({head: part[rows] for head, part in pool(model).items()}, rows)
    torch.testing.assert_close(inputs, expected)
    torch.testing.assert_close(gradients(inputs), gradients(expected))
    torch.testing.assert_close(learner.embed_images(PIXELS[rows]), expected)  # of several crops


def test_an_unreadable_image_is_replaced_or_dropped_as_among_images(tmp_path: Path) -> None:
    values = torch.rand(COUNT, 5)
    values[[1, 2, 7]] = torch.nan
    replaced = FeatureDataset(TABLE, {"H": values}, "replace")
    features, labels, rows = replaced.__getitems__([0, (1, (0, 0)), 2, (7, (0, 1))])
    images = ImageDataset(TABLE, lambda image: image, "replace")
    candidates = [next(row for row in images._candidates(row) if not values[row].isnan().any()) for row in (0, 1, 2, 7)]
    assert rows.tolist() == candidates == [0, 3, 3, 4]
    torch.testing.assert_close(features["H"], values[rows])
    assert labels.tolist() == TABLE.labels[rows].tolist()
    assert FeatureDataset(TABLE, {"H": values}, "drop").__getitems__([0, 1, 2, 3])[2].tolist() == [0, 3]
    values[:4] = torch.nan
    with pytest.raises(InputError, match=r"image 0\.png: not one image of its class can be read"):
        FeatureDataset(TABLE, {"H": values}, "replace")


def test_features_beyond_the_memory_are_refused() -> None:
    model = make_model(GeMHead)
    embedder = FeatureEmbedder(model, ["L", "H"], count=10**12)
    with pytest.raises(InputError, match=r"training.frozen=true: the features of 1,000,000,000,000 images take "):
        embedder.embed_images(PIXELS[:2])
