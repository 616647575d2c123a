from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from configurations import compose as composed
from configurations import settings_of
from conftest import PLAIN
from torch import Tensor
from torchvision.transforms import v2

from dml.data.images import ImageFile
from dml.data.transforms import Crops, Resize, and_mirrored, stack
from dml.models.embedding import EmbeddingModel, embed_views
from dml.run import builders, loop
from dml.runtime.errors import InputError
from dml.runtime.imports import quiet
from dml.training.embedders import CHOSEN_HEADS, RawFeatures


def embed(images: Tensor) -> dict[str, Tensor]:
    """Two heads, of 5 and 3 dimensions, of the 12 pixels."""
    generator = torch.Generator().manual_seed(0)
    pixels = images.flatten(1).double()
    return {head: pixels @ torch.randn(12, size, generator=generator).double() for head, size in (("L", 5), ("H", 3))}


def test_an_embedding_is_the_mean_of_the_views_normalized_ones() -> None:
    images = torch.randn(4, 3, 3, 2, 2, generator=torch.Generator().manual_seed(1))  # 4 images in 3 views
    found = embed_views(embed, images)
    for head in ("L", "H"):
        for image in range(4):
            views = [embed(images[image, view][None])[head][0].numpy() for view in range(3)]
            lengths = [np.sqrt((view**2).sum()) for view in views]
            mean = sum(view / length for view, length in zip(views, lengths, strict=True)) / 3
            direction = mean / np.sqrt((mean**2).sum())
            np.testing.assert_allclose(found[head][image].numpy(), direction * np.mean(lengths), rtol=1e-12)
        torch.testing.assert_close(embed_views(embed, images[:, :1])[head], embed(images[:, 0])[head])


def picture(*, channels_last: bool) -> Tensor:
    image = torch.arange(3 * 6 * 8, dtype=torch.uint8).reshape(3, 6, 8)
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1) if channels_last else image


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_views_are_corners_center_and_mirror_images(channels_last: bool) -> None:
    image = picture(channels_last=channels_last)
    corners = [image[:, top : top + 4, left : left + 4] for top in (0, 2) for left in (0, 4)]
    expected = [*corners, image[:, 1:5, 2:6]]
    five, ten = Crops(v2.FiveCrop(4))(image), Crops(v2.TenCrop(4))(image)
    two = Crops(and_mirrored)(image)
    assert torch.equal(five, torch.stack(expected))
    assert torch.equal(two, torch.stack([image, image[:, :, range(7, -1, -1)]]))
    mirrored = {tuple(view[:, :, range(3, -1, -1)].flatten().tolist()) for view in expected}
    assert torch.equal(ten[:5], five)
    assert {tuple(view.flatten().tolist()) for view in ten[5:]} == mirrored
    batch = stack([five, five])
    assert batch.shape == (2, 5, 3, 4, 4)
    assert torch.equal(batch[1], five)
    if channels_last:
        assert batch.movedim(-3, -1).is_contiguous()


def unit(rows: Tensor) -> Tensor:
    return rows / (rows * rows).sum(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)  # a white corner has no features


@pytest.mark.parametrize("crops", [2, 5, 10])
def test_a_test_takes_the_views_and_a_validation_one(small_emoji: Path, crops: int) -> None:
    quiet()
    asked = ["transform=rll", "trainer.accelerator=cpu", "data.eval_batch_size=16", "+trainer.limit_test_batches=2"]
    asked += [f"dataset.root={small_emoji}", "model.heads=[M,H]", f"evaluation.crops={crops}"]
    config = composed(*PLAIN, *asked)
    images = loop.build_data(settings_of(config), builders.build_table(settings_of(config)))
    model: Any = builders.build_model(settings_of(config))
    assert isinstance(model, EmbeddingModel)
    trainer = loop.build_trainer(
        settings_of(config), logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    learner, raw = loop.build_learner(settings_of(config), images, model), RawFeatures(model)
    trainer.test(learner, images, verbose=False)
    trainer.test(raw, images, verbose=False)

    model.eval()
    for row in (0, 7, 20):
        image = Resize("warp", 256)(ImageFile(str(images.table.subset("test").paths[row])))
        corners = [image[:, top : top + 32, left : left + 32] for top in (0, 224) for left in (0, 224)]
        center = image[:, 112:144, 112:144]
        views = torch.stack([center] if crops == 2 else [*corners, center])
        if crops != 5:
            views = torch.cat([views, views.flip(-1)])
        with torch.no_grad():
            heads = {name: unit(unit(rows).mean(dim=0)) for name, rows in model(views).items()}
            features = unit(unit(model.raw_features(views)).mean(dim=0))
        for name, expected in heads.items():
            torch.testing.assert_close(learner.embedded.embeddings[name][row], expected, atol=1e-4, rtol=0)
        together = torch.cat([heads["M"], heads["H"]]) / 2**0.5
        torch.testing.assert_close(learner.embedded.embeddings[CHOSEN_HEADS][row], together, atol=1e-4, rtol=0)
        torch.testing.assert_close(raw.embedded.embeddings["raw"][row], features, atol=1e-4, rtol=0)
    assert next(iter(images.test_dataloader()))[0].shape == (16, crops, 3, 32, 32)
    assert next(iter(images.val_dataloader()))[0].shape == (16, 3, 32, 32)
    assert next(iter(images.training_images()))[0].shape == (16, 3, 32, 32)


def test_views_that_cannot_be_had_are_refused() -> None:
    for overrides, expected in (
        (["evaluation.crops=5"], r"evaluation\.crops=5: .*transform\.test ends with Resize"),
        (["evaluation.crops=3", "transform=rll"], r"evaluation\.crops=3: 1, 2, 5 or 10"),
    ):
        with pytest.raises(InputError, match=expected):
            builders.build_crops_transform(settings_of(composed(*overrides)))
    assert builders.build_crops_transform(settings_of(composed("transform=rll"))) is None
    with pytest.raises(InputError, match=r"evaluation\.crops: .*crop size .*bigger than input size"):
        Crops(v2.FiveCrop(7))(picture(channels_last=True))
