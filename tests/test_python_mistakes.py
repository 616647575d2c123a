"""Mistakes in Python end in an `InputError` of one line that names what is wrong; what is reasonable works."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import dml
from dml.losses.rll import RankedListLoss
from dml.models import networks

HALF = (0.5, 0.5, 0.5)
FAST = [
    *("model=small_cnn", "model.heads=[H]", "model.embed_dim=4", "transform.size=16", "trainer.max_steps=1"),
    *("sampler.classes_per_batch=2", "sampler.images_per_class=2", "data.num_workers=0", "evaluation.raw=false"),
    *("trainer.val_check_interval=null", "evaluation.report=null", "evaluation.sheet=null"),
    *("evaluation.clustering=false", "dataset.reader.val_fraction=0"),
]


def make_network() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 16))


class Frame(SimpleNamespace):
    """As much of a pandas DataFrame as dml reads; pandas is no dependency."""

    def __getitem__(self, column: str) -> Any:
        return self.values[column]

    def __len__(self) -> int:
        return len(next(iter(self.values.values()), []))


def make_frame(**values: list[str]) -> Frame:
    return Frame(columns=[*values], values=values)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, photographs, their vectors and an index of them."""
    folder = tmp_path_factory.mktemp("mistakes")
    for number in range(6):
        (folder / "photos" / f"c{number}").mkdir(parents=True)
        for image in range(3):
            pixels = np.random.default_rng((number, image)).integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"c{number}" / f"{image}.png")
    torch.manual_seed(0)
    model = dml.ImageEmbedder.from_module(make_network(), image_size=16, mean=HALF, std=HALF, device="cpu")
    paths = [str(path) for path in sorted((folder / "photos").rglob("*.png"))]
    frame: Any = make_frame(path=paths, label=[Path(path).parent.name for path in paths])
    index = dml.Index.build(model, folder / "photos")
    return SimpleNamespace(
        folder=folder,
        photo=paths[0],
        paths=paths,
        frame=frame,
        table=dml.ImageTable.from_frame(frame),
        model=model,
        vectors=model.embed(paths),
        index=index,
    )


def wrap(module: Any = None, **arguments: Any) -> Any:
    settings: dict[str, Any] = {"image_size": 16, "mean": HALF, "std": HALF} | arguments
    return dml.ImageEmbedder.from_module(make_network() if module is None else module, **settings)


anything: Any = None
"""For what type checkers would refuse before a user runs it."""

MISTAKES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a text of overrides": ("loss=rll", lambda kit: dml.train(anything or "loss=rll")),
    "overrides that are numbers": ("overrides", lambda kit: dml.train(anything or [1])),
    "overrides in a mapping": ("overrides", lambda kit: dml.train(anything or {"loss": "rll"})),
    "an option": ("--help", lambda kit: dml.train(["--help"])),
    "objects in a list": ("objects", lambda kit: dml.train(objects=anything or [RankedListLoss()])),
    "a class as an object": ("objects.*loss.*RankedListLoss", lambda kit: dml.train(objects={"loss": RankedListLoss})),
    "a name as an object": ("objects.*loss", lambda kit: dml.train(objects={"loss": "rll"})),
    "no optimizer's function": ("optimizer", lambda kit: dml.train(objects={"optimizer": nn.Linear(1, 1).weight})),
    "an object and its key": (
        "loss.margin=1",
        lambda kit: dml.train(["loss.margin=1"], objects={"loss": RankedListLoss()}),
    ),
    "an evaluation's typo": ("recal_at", lambda kit: dml.evaluate(kit.vectors, kit.table.labels, recal_at=(1,))),
    "a report without neighbors": (
        "neighbors=0",
        lambda kit: dml.report(kit.vectors, kit.frame, kit.folder / "no", neighbors=0),
    ),
    "a network without heads": ("objects.*model", lambda kit: dml.train(objects={"model": make_network()})),
    "a folder as a table": ("table='photos'", lambda kit: dml.train(table="photos")),
    "paths as a table": ("table=", lambda kit: dml.train(table=kit.paths)),
    "a data set beside a table": ("dataset=emoji", lambda kit: dml.train(["dataset=emoji"], table=kit.table)),
    "a root beside a table": ("dataset.root=a", lambda kit: dml.train(["dataset.root=a"], table=kit.frame)),
    "a number as a folder": ("3: no path", lambda kit: dml.train(["dataset=emoji"], folder=anything or 3)),
    "a precision of another name": (
        "trainer.precision=fp16.*bf16-mixed",
        lambda kit: dml.train(["trainer.precision=fp16"], table=kit.table, quiet=True),
    ),
    "no run": ("nothere", lambda kit: dml.Run("nothere")),
    "a folder of photographs as a run": ("photos", lambda kit: dml.Run(kit.folder / "photos").metrics),
    "a size as a text": ("image_size='16'", lambda kit: dml.pretrained("small_cnn", image_size=anything or "16")),
    "a size of nothing": ("image_size=0", lambda kit: dml.pretrained("small_cnn", image_size=0)),
    "a fractional size": ("image_size=16.5", lambda kit: dml.pretrained("small_cnn", image_size=anything or 16.5)),
    "no name": ("name=None", lambda kit: dml.pretrained(anything)),
    "a name for a module": ("module='resnet18'", lambda kit: wrap("resnet18")),
    "a class for a module": ("module=.*Linear", lambda kit: wrap(nn.Linear)),
    "a module's size as a text": ("image_size='16'", lambda kit: wrap(image_size="16")),
    "a mean of bytes": ("mean=", lambda kit: wrap(mean=(123, 116, 103))),
    "a negative mean": ("mean=", lambda kit: wrap(mean=(-0.5, 0, 0))),
    "a mean of two channels": ("mean=", lambda kit: wrap(mean=(0.5, 0.5))),
    "a mean that is one number": ("mean=0.5", lambda kit: wrap(mean=0.5)),
    "deviations of nothing": ("std=", lambda kit: wrap(std=(0, 0, 0))),
    "deviations of bytes": ("std=", lambda kit: wrap(std=(58, 57, 57))),
    "a frame without labels": ("label", lambda kit: dml.ImageTable.from_frame(make_frame(path=["a.png"]))),
    "an empty frame": ("table", lambda kit: dml.ImageTable.from_frame(make_frame(path=[], label=[]))),
    "no frame": ("table=", lambda kit: dml.ImageTable.from_frame(kit.paths)),
    "batches of nothing": ("batch_size=0", lambda kit: kit.model.embed(kit.photo, batch_size=0)),
    "a precision of an embedder": ("precision=fp16", lambda kit: kit.model.embed(kit.photo, precision="fp16")),
    "a photograph as a model": ("0.png", lambda kit: dml.load(kit.photo)),
    "the path of a model": ("model='outputs'", lambda kit: dml.Index.build(anything or "outputs", kit.paths)),
    "a kind without its comma": (
        "IVF2Flat.*IVF2,Flat",
        lambda kit: dml.Index.build(kit.model, kit.paths, factory="IVF2Flat"),
    ),
    "a number as a kind": ("factory=3", lambda kit: dml.Index.build(kit.model, kit.paths, factory=anything or 3)),
    "a number as parameters": (
        "parameters=3",
        lambda kit: dml.Index.build(kit.model, kit.paths, parameters=anything or 3),
    ),
    "an upgrade by a path": ("model='outputs'", lambda kit: kit.index.upgrade("outputs")),
    "no neighbors": ("k=0", lambda kit: kit.index.search(kit.photo, k=0)),
    "neighbors as a text": ("k='3'", lambda kit: kit.index.search(kit.photo, k="3")),
    "a report of other vectors": (
        "3 embeddings",
        lambda kit: dml.report(kit.vectors[:3], kit.frame, kit.folder / "no"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, kit: SimpleNamespace) -> None:
    named, make = MISTAKES[mistake]
    with pytest.raises(dml.InputError, match=named) as raised:
        make(kit)
    assert "\n" not in str(raised.value)


@pytest.mark.pipeline
def test_a_frame_is_a_table(kit: SimpleNamespace, tmp_path: Path) -> None:
    run = dml.train(FAST, table=kit.frame, folder=tmp_path / "run", quiet=True)
    assert run.metrics["step"] == 1
    for frame in (kit.frame, make_frame(path=kit.paths)):
        index = dml.Index.build(kit.model, frame)
        assert index.items.paths.tolist() == kit.paths
    np.testing.assert_array_equal(kit.model.embed(kit.frame), kit.vectors)
    assert dml.report(kit.vectors, kit.frame, tmp_path / "report").is_file()
    assert "\n" not in repr(kit.table)


@pytest.mark.pipeline
def test_a_model_of_ones_own_trains(kit: SimpleNamespace, tmp_path: Path) -> None:
    model = dml.train(FAST, table=kit.frame, folder=tmp_path / "first", quiet=True).load(device="cpu").model
    words = [word for word in FAST if not word.startswith("model")]
    run = dml.train(words, table=kit.frame, objects={"model": model}, folder=tmp_path / "second", quiet=True)
    assert run.load(device="cpu").dimension == 4


@pytest.mark.pipeline
def test_an_own_loss_raises_its_own_error(kit: SimpleNamespace, tmp_path: Path) -> None:
    class OwnLoss(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.sum() + {}["nothing"]

    with pytest.raises(KeyError, match="nothing") as raised:
        dml.train(FAST, table=kit.table, objects={"loss": OwnLoss()}, folder=tmp_path / "run", quiet=True)
    assert raised.traceback[-1].name == "forward"


def test_whole_numbers_are_vectors(kit: SimpleNamespace) -> None:
    query = np.arange(16)[None] - 8
    scores, paths = kit.index.search(query, k=2)
    for same in (query.astype(np.float32), torch.from_numpy(query), query.tolist()):
        np.testing.assert_array_equal(kit.index.search(same, k=2)[0], scores)
    assert paths.shape == (1, 2)


def test_more_neighbors_than_images(kit: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores, _ = kit.index.search(kit.photo, k=1000)
    assert scores.shape == (1, 18)
    assert len(caplog.records) == 1
    assert "k=1000" in caplog.text


def test_without_a_connection_a_download_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(dml.InputError, match="weights=download"):
        networks.timm_backbone("resnet10t", "download")
