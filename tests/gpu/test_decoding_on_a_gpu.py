"""JPEG files that a GPU decodes and transforms."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torchvision.transforms import v2

from dml.data.device_decoding import DeferredPipeline, decode_images
from dml.data.image_files.images import ImageFile
from dml.data.transforms import Pipeline, RandomResizedCrop

pytest.importorskip("torchcodec.decoders", reason="the extra dml-retrieval[decode] is not installed")


class Noise(nn.Module):
    """A step that draws where the pixels are."""

    def forward(self, image: Tensor) -> Tensor:
        return image + torch.randint_like(image, 2)


def test_pixels_are_the_cpus_but_for_rounding_and_draws_repeat(device: str, tmp_path: Path) -> None:
    steps = [RandomResizedCrop(180, (0.5, 1.0)), v2.RandomHorizontalFlip(0.5), Noise()]
    exif = Image.Exif()
    paths = [tmp_path / f"{orientation}.jpg" for orientation in range(1, 9)]
    for exif[0x0112], path in enumerate(paths, 1):
        Image.fromarray(load_sample_image("china.jpg")).save(path, exif=exif)
    waiting, plain = [], []
    for seed, path in enumerate(paths):
        torch.manual_seed(seed)
        waiting.append(DeferredPipeline(steps)(ImageFile(str(path))))
        plain.append(Pipeline(steps)(ImageFile(str(path))))
    place = torch.empty(0, device=device).device
    batch = decode_images(waiting, place)
    assert batch.device == place
    assert (batch.cpu().float() - torch.stack(plain).float()).abs().mean() < 2
    assert torch.equal(decode_images(waiting, place), batch)
