"""`ImageEmbedder.from_module`: a network that was trained anywhere, used as a trained model is."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dml
from dml.data.readers import emoji
from dml.evaluation import evaluate
from dml.runtime.errors import InputError

SIZE = 32


class TinyNet(nn.Module):
    """A network in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
        )
        self.embedding = nn.Linear(32 * 7 * 7, 24)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.convolutions(images).flatten(1))
        return embeddings


@pytest.fixture(scope="module")
def table() -> dml.ImageTable:
    test = emoji.read(None).subset("test")
    return test.take(np.flatnonzero(test.labels[:, 0] < np.unique(test.labels[:, 0])[20])).renumber()


@pytest.fixture(scope="module")
def network() -> TinyNet:
    torch.manual_seed(0)
    network = TinyNet()
    network.convolutions[1].running_mean.uniform_()  # type: ignore[union-attr,operator]
    return network


@pytest.fixture(scope="module")
def model(network: TinyNet) -> dml.ImageEmbedder:
    return dml.ImageEmbedder.from_module(network, image_size=SIZE, mean=[0.5] * 3, std=[0.25] * 3, device="cpu")


def test_the_vectors_are_the_networks(model: dml.ImageEmbedder, network: TinyNet, table: dml.ImageTable) -> None:
    paths = table.paths[:5].tolist()
    pixels = torch.stack([model.preprocess(path) for path in paths])
    with torch.inference_mode():
        expected = F.normalize(network.eval()((pixels / 255 - 0.5) / 0.25))
    np.testing.assert_allclose(model.embed(paths), expected.numpy(), atol=1e-5)
    np.testing.assert_array_equal(model.encode(paths), model.embed(paths))
    torch.testing.assert_close(model(pixels), torch.from_numpy(model.embed(paths)), rtol=0, atol=0)
    nn.Linear(24, 2)(model(pixels.float())).sum().backward()
    assert network.train().convolutions[1].training
    assert model.model.backbone.network is not network


def test_it_finds_what_evaluate_says(model: dml.ImageEmbedder, table: dml.ImageTable, tmp_path: Path) -> None:
    vectors = model.embed(table.paths.tolist())
    recall = evaluate(vectors, table.labels, recall_at=(1,))["level0/recall@1"]
    index = dml.Index.build(model, table)
    index.save(tmp_path / "index")
    for opened in (index, dml.Index.load(tmp_path / "index", model)):
        _, neighbors = opened.search(vectors, k=2)
        classes = dict(zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True))
        is_hit = [classes[found[1]] == classes[path] for path, found in zip(classes, neighbors.tolist(), strict=True)]
        assert np.mean(is_hit) == pytest.approx(recall)
    with pytest.raises(InputError, match=r"a TinyNet from Python, .* dml\.load\(FOLDER, module=\.\.\.\)"):
        dml.Index.load(tmp_path / "index")


def test_a_saved_folder_takes_the_module_again(model: dml.ImageEmbedder, table: dml.ImageTable, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    opened = dml.load(tmp_path / "model", module=TinyNet(), device="cpu")
    assert opened.fingerprint == model.fingerprint
    assert opened.settings.name == "TinyNet"
    paths = table.paths[:5].tolist()
    np.testing.assert_array_equal(opened.embed(paths), model.embed(paths))
    card = (tmp_path / "model" / "README.md").read_text()
    assert 'dml.load("FOLDER", module=network)' in card
    assert "not trained by dml" in card
    assert "trained on" not in card
    with pytest.raises(InputError, match="TinyNet from Python"):
        dml.load(tmp_path / "model")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        dml.load(tmp_path / "model", module=nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 24)))


@pytest.mark.pipeline
def test_its_report_has_the_metrics_of_evaluate(
    model: dml.ImageEmbedder, table: dml.ImageTable, tmp_path: Path
) -> None:
    vectors = model.embed(table.paths.tolist())
    path = dml.report(3 * vectors, table, tmp_path / "tiny")
    assert path == tmp_path / "tiny" / "report.html"
    page = path.read_text()
    assert "<h1>tiny</h1>" in page
    assert "24 dimensions, cosine" in page
    assert "training" not in page.partition('<section id="retrieval">')[0].partition("<h1>")[2]
    for name in ("level0/recall@1", "level0/recall@4", "level0/map@r", "level0/nmi", "h_ap"):
        assert f"<td>{100 * evaluate(vectors, table.labels)[name]:.1f}</td>" in page
    with pytest.raises(InputError, match=f"5 embeddings for a table of {len(table)} rows"):
        dml.report(vectors[:5], table, tmp_path / "tiny")


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match=r"image_size=64: TinyNet can't take images \(2, 3, 64, 64\) \(mat1"):
        dml.ImageEmbedder.from_module(TinyNet(), image_size=64)
    with pytest.raises(InputError, match=r"module: Conv2d gives shape \(2, 4, 6, 6\) for images .* \(2, D\)"):
        dml.ImageEmbedder.from_module(nn.Conv2d(3, 4, 3), image_size=8)
