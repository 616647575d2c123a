"""Images without labels: the reader, and what trains on them by two views of each."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dml.data.dataset import ImageDataset
from dml.data.readers.unlabeled import read
from dml.data.stream import BatchStream
from dml.data.table import UNKNOWN
from dml.data.transforms import RandomResizedCrop
from dml.run.config_folders import compose_training
from dml.runtime.errors import InputError
from dml.samplers.class_balanced import ClassBalancedSampler


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(6):
        pixels = generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / ("deep" if number % 2 else "") / f"{number}.png")
    return folder


def test_folders_and_lists_are_read_without_labels(photos: Path) -> None:
    paths = sorted(str(path) for path in photos.rglob("*.png"))
    (photos / "list.txt").write_text("\n".join(str(Path(path).relative_to(photos)) for path in paths))
    (photos / "list.csv").write_text("\n".join(["path", *(str(Path(path).relative_to(photos)) for path in paths)]))
    for root in (photos, photos / "list.txt", photos / "list.csv"):
        table = read(root)
        assert sorted(table.paths.tolist()) == paths
        assert {*table.split.tolist()} == {"train"}
        assert (table.labels == UNKNOWN).all()
        assert table.is_unlabeled.all()
        separate = table.separate_unlabeled()
        assert sorted(separate.labels[:, 0].tolist()) == [*range(6)]
        assert separate.name_class(separate.labels[2, 0]) == table.paths[2]


def test_labels_that_there_are_count(photos: Path) -> None:
    lines = ["path,label,split", "0.png,,train", "2.png,owl,train", "4.png,robin,test", "deep/1.png,robin,test"]
    (photos / "list.csv").write_text("\n".join(lines))
    table = read(photos / "list.csv")
    assert [table.name_class(label) for label in table.labels[:, 0]] == ["", "owl", "robin", "robin"]
    assert table.is_unlabeled.tolist() == [True, False, False, False]
    assert table.subset("train").separate_unlabeled().renumber().labels[:, 0].tolist() == [1, 0]
    (photos / "list.csv").write_text("\n".join([*lines, "deep/3.png,,test"]))
    with pytest.raises(InputError, match=r"3.png of test has no label, which only images of train may lack"):
        read(photos / "list.csv")


def test_a_batch_has_two_different_views_of_an_image_also_when_it_is_resumed(photos: Path) -> None:
    table = read(photos).separate_unlabeled()
    dataset = ImageDataset(table, RandomResizedCrop(16, scale=(0.2, 1.0)))

    def stream() -> BatchStream:
        sampler = ClassBalancedSampler(
            table.labels, 4, compose_training(["dataset=unlabeled"]).sampler.images_per_class
        )
        return BatchStream(dataset, sampler, seed=3)

    whole, resumed = iter(stream()), stream()
    batches = [next(whole) for _ in range(5)]
    resumed.load_state_dict({"position": 4})
    images, _, rows = batches[4]
    assert rows[::2].tolist() == rows[1::2].tolist()
    assert all(not torch.equal(first, second) for first, second in zip(images[::2], images[1::2], strict=True))
    assert torch.equal(next(iter(resumed))[0], images)


def test_sup_con_of_two_views_is_nt_xent() -> None:
    from hydra.utils import instantiate

    config = compose_training(["dataset=unlabeled", "dataset.root=photos"])
    assert config.sampler.images_per_class == 2
    assert config.sampler.short_classes == "repeat"
    embeddings = torch.nn.functional.normalize(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).double())
    labels = torch.arange(4).repeat_interleave(2)
    similarities = embeddings @ embeddings.T / config.loss.loss.temperature
    expected = []
    for anchor in range(8):  # SimCLR, Eq. 1
        others = [other for other in range(8) if other != anchor]
        expected.append(torch.logsumexp(similarities[anchor, others], dim=0) - similarities[anchor, anchor ^ 1])
    loss = instantiate(config.loss)(embeddings, labels)
    torch.testing.assert_close(loss.double(), torch.stack(expected).mean(), rtol=1e-6, atol=0)
