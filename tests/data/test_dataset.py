import logging
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_tables import make_table
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from dml.data.dataset import ImageDataset, collate
from dml.data.table import ImageTable
from dml.data.transforms import Pipeline, RandomResizedCrop, Resize
from dml.runtime.errors import InputError

CLASSES = [0, 1, 0, 1, 0, 2]


@pytest.fixture
def table(tmp_path: Path) -> ImageTable:
    """Six images, that of row i filled with 10 * i."""
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for i, path in enumerate(paths):
        Image.new("RGB", (4, 3), (10 * i,) * 3).save(path)
    return make_table([[c, 7] for c in CLASSES], "train", [str(path) for path in paths])


def same(image: Tensor) -> Tensor:
    return image


def noise(image: Tensor) -> Tensor:
    return (image + torch.randint(0, 200, image.shape)).to(torch.uint8)


def damage(table: ImageTable, *rows: int) -> None:
    for row in rows:
        Path(table.paths[row]).write_text("damaged")


def shade(item: Any) -> int:
    return int(item[0][0, 0, 0]) // 10


def test_a_row(table: ImageTable) -> None:
    dataset = ImageDataset(table, same)
    assert len(dataset) == 6
    image, labels, row = dataset[3]
    assert image.shape == (3, 3, 4)
    assert (image == 30).all()
    assert labels.tolist() == [1, 7]
    assert row == 3


# draws


def test_a_draw_is_a_function_of_its_numbers(table: ImageTable) -> None:
    dataset = ImageDataset(table, noise)
    first = dataset[2, (0, 1, 2, 3)]
    torch.manual_seed(5)
    dataset[1, (4,)], dataset[3]
    again = ImageDataset(table, noise)[2, (0, 1, 2, 3)]
    assert first is not None
    assert again is not None
    assert torch.equal(first[0], again[0])


@pytest.mark.parametrize("seed", [(1, 1, 2, 3), (0, 0, 2, 3), (0, 1, 3, 3), (0, 1, 2, 4), (0, 2, 1, 3)])
def test_each_number_of_a_draw_counts(table: ImageTable, seed: tuple[int, ...]) -> None:
    dataset = ImageDataset(table, noise)
    one, other = dataset[2, (0, 1, 2, 3)], dataset[2, seed]
    assert one is not None
    assert other is not None
    assert not torch.equal(one[0], other[0])


def test_draws_leave_the_global_generator_alone_when_they_fail(table: ImageTable) -> None:
    def fail(image: Tensor) -> Tensor:
        torch.rand(3)
        raise RuntimeError

    state = torch.get_rng_state()
    with pytest.raises(InputError, match="fail raised RuntimeError; debug=true"):
        ImageDataset(table, fail)[0, (0,)]
    assert torch.equal(torch.get_rng_state(), state)


# unreadable images


@pytest.mark.parametrize("index", [2, (2, (0, 1))])
def test_raise(table: ImageTable, index: Any) -> None:
    damage(table, 2)
    with pytest.raises(InputError, match=f"image {table.paths[2]}: cannot be decoded"):
        ImageDataset(table, same)[index]
    assert ImageDataset(table, same)[4] is not None


@pytest.mark.parametrize(("damaged", "row", "stand_in"), [([2], 2, 4), ([4], 4, 0), ([0, 2], 0, 4), ([1], 1, 3)])
def test_replace_takes_the_next_of_the_class(
    table: ImageTable, damaged: list[int], row: int, stand_in: int, caplog: pytest.LogCaptureFixture
) -> None:
    damage(table, *damaged)
    dataset = ImageDataset(table, same, on_corrupt="replace")
    for index in (row, (row, (0, 1))):
        item = dataset[index]
        assert item is not None
        assert (shade(item), item[1].tolist(), item[2]) == (stand_in, [CLASSES[row], 7], stand_in)
    assert len(caplog.records) == len(damaged)
    assert all("skipped: image" in message and "cannot be decoded" in message for message in caplog.messages)


def test_replace_without_another_image(table: ImageTable) -> None:
    damage(table, 1, 3, 5)
    dataset = ImageDataset(table, same, on_corrupt="replace")
    for row in (1, 3, 5):
        with pytest.raises(InputError, match=f"image {table.paths[row]}: not one image of its class can be read"):
            dataset[row]


def test_a_replaced_draw_is_a_function_of_its_numbers(table: ImageTable) -> None:
    damage(table, 2)
    one, other = (ImageDataset(table, noise, on_corrupt="replace")[2, (3, 4)] for _ in range(2))
    direct = ImageDataset(table, noise)[4, (3, 4)]
    assert one is not None
    assert other is not None
    assert direct is not None
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[0], direct[0])


def test_drop(table: ImageTable, caplog: pytest.LogCaptureFixture) -> None:
    damage(table, 2)
    dataset = ImageDataset(table, same, on_corrupt="drop")
    assert dataset[2] is None
    assert dataset[2, (0, 1)] is None
    assert dataset[3] is not None
    assert table.paths[2] in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_skipped_file_is_reported_once_by_all_workers_in_all_epochs(table: ImageTable, tmp_path: Path) -> None:
    table = table.take(np.array([0, 1, 2, 3, 4, 5, 2]))  # the image of row 2 is in two lists
    damage(table, 1, 2)
    dataset = ImageDataset(table, same, on_corrupt="drop")
    handler = logging.FileHandler(tmp_path / "log")  # workers append to it too
    logging.getLogger("dml.data.dataset").addHandler(handler)
    try:
        for batches in ([[1, 2], [0]], [[0], [6, 1]]):  # one worker reads the damaged files, then the other one
            loader = DataLoader(
                dataset,
                batch_sampler=batches,
                collate_fn=dataset.collate,
                num_workers=2,
                multiprocessing_context="fork",
            )
            assert [row for _, _, rows in loader for row in rows.tolist()] == [0]
    finally:
        logging.getLogger("dml.data.dataset").removeHandler(handler)
        handler.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"image {table.paths[row]}" for row in (1, 2)]
    assert not any("on_corrupt" in line for line in lines)


def test_a_spawned_worker_knows_which_files_are_reported(table: ImageTable, caplog: pytest.LogCaptureFixture) -> None:
    damage(table, 1, 2)
    dataset = ImageDataset(table, same, on_corrupt="drop")
    sent = ForkingPickler.loads(ForkingPickler.dumps(dataset))
    assert [dataset[1], sent[1], sent[2], dataset[2]] == [None] * 4
    assert [message.split(": ")[1] for message in caplog.messages] == [f"image {table.paths[row]}" for row in (1, 2)]


@pytest.mark.parametrize("first", [Resize("warp", 8), RandomResizedCrop(8), same])
def test_damage_that_only_decoding_finds(table: ImageTable, first: Any, caplog: pytest.LogCaptureFixture) -> None:
    Image.effect_noise((90, 70), 50).save(table.paths[2], "JPEG")
    Path(table.paths[2]).write_bytes(Path(table.paths[2]).read_bytes()[:1500])
    pipeline = Pipeline([first, noise])
    replaced, direct = (ImageDataset(table, pipeline, on_corrupt="replace")[row, (5, 6)] for row in (2, 4))
    assert replaced is not None
    assert direct is not None
    assert replaced[2] == 4
    assert torch.equal(replaced[0], direct[0])
    assert ImageDataset(table, pipeline, on_corrupt="drop")[2] is None
    assert len(caplog.records) == 2
    with pytest.raises(InputError, match=f"image {table.paths[2]}: cannot be decoded"):
        ImageDataset(table, pipeline)[2]


@pytest.mark.parametrize("error", [InputError("too small"), ValueError("a bug")])
def test_what_a_transform_raises_is_no_unreadable_image(table: ImageTable, error: Exception) -> None:
    def fail(image: Tensor) -> Tensor:
        raise error

    for on_corrupt in ("replace", "drop"):
        with pytest.raises(ValueError, match=str(error)):
            ImageDataset(table, fail, on_corrupt=on_corrupt)[2, (0,)]


# batches


def test_collate(table: ImageTable) -> None:
    dataset = ImageDataset(table, same)
    images, labels, rows = collate([dataset[4], dataset[1]])
    assert images.shape == (2, 3, 3, 4)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == [40, 10]
    assert labels.tolist() == [[0, 7], [1, 7]]
    assert rows.tolist() == [4, 1]


@pytest.mark.parametrize("turned", [same, Tensor.contiguous])
def test_collate_keeps_the_layout_in_memory(table: ImageTable, turned: Any) -> None:
    """Whatever it is, the pixels are at their places."""
    photos = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 5, 4, 3).permute(0, 3, 1, 2)
    labels = torch.zeros(1, dtype=torch.long)
    images, _, _ = collate([(turned(photo), labels, 0) for photo in photos])
    assert torch.equal(images, photos)
    assert images.is_contiguous() == (turned is not same)
    assert images.is_contiguous(memory_format=torch.channels_last) == (turned is same)


def test_collate_of_two_layouts(table: ImageTable) -> None:
    photos = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 5, 4, 3).permute(0, 3, 1, 2)
    labels = torch.zeros(1, dtype=torch.long)
    for first, second in ((photos[0], photos[1].contiguous()), (photos[0].contiguous(), photos[1])):
        assert torch.equal(collate([(first, labels, 0), (second, labels, 0)])[0], photos)


def test_collate_leaves_out_what_is_missing(table: ImageTable) -> None:
    dataset = ImageDataset(table, same)
    _, labels, rows = collate([None, dataset[4], None, dataset[1]])
    assert rows.tolist() == [4, 1]
    assert labels.tolist() == [[0, 7], [1, 7]]


def test_collate_with_all_missing_is_empty(table: ImageTable) -> None:
    empty, full = collate([None, None]), collate([ImageDataset(table, same)[0]])
    assert [len(part) for part in empty] == [0, 0, 0]
    assert [(part.dtype, part.ndim) for part in empty] == [(part.dtype, part.ndim) for part in full]
