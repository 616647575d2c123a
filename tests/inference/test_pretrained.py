"""`dml.pretrained`: a network's own features, used as a trained model's embeddings are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import dml
from dml.__main__ import dispatch
from dml.evaluation import evaluate
from dml.models.heads import RawHead
from dml.runtime.errors import InputError

IMAGES = [*np.random.default_rng(0).integers(0, 256, (3, 40, 48, 3), dtype=np.uint8)]


@pytest.fixture(scope="module")
def model() -> dml.ImageEmbedder:
    return dml.pretrained("tf_efficientnet_lite0", image_size=32, device="cpu")


def test_the_vectors_are_the_features_of_the_backbone(model: dml.ImageEmbedder) -> None:
    vectors = model.embed(IMAGES)
    with torch.inference_mode():
        features = model.model.raw_features(torch.stack([model.preprocess(image) for image in IMAGES]))
    assert vectors.shape == (3, 1280)
    np.testing.assert_allclose(vectors, F.normalize(features).numpy(), atol=1e-6)


def test_it_is_saved_and_searched_as_a_trained_model(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    opened = dml.load(tmp_path / "model", device="cpu")
    assert opened.fingerprint == model.fingerprint
    np.testing.assert_array_equal(opened.embed(IMAGES), model.embed(IMAGES))


def test_evaluate_has_the_digits_of_its_vectors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    labels, paths = np.arange(24) % 6, [tmp_path / f"{number}.png" for number in range(24)]
    for path, label in zip(paths, labels, strict=True):
        noise = np.random.default_rng(int(path.stem)).integers(0, 160, (40, 40, 3))
        Image.fromarray((noise + 16 * label).astype(np.uint8)).save(path)
    rows = [f"{path},{label},test" for path, label in zip(paths, labels, strict=True)]
    (tmp_path / "images.csv").write_text("\n".join(["path,label,split", *rows]))
    data = ["dataset=csv", f"dataset.root={tmp_path / 'images.csv'}", "dataset.reader.test_fraction=null"]
    words = [*data, "transform.size=32", f"hydra.run.dir={tmp_path / 'run'}"]
    dispatch(["evaluate", "checkpoint=pretrained:tf_efficientnet_lite0", *words])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    model = dml.pretrained("tf_efficientnet_lite0", image_size=32, device="cpu")
    expected = evaluate(torch.from_numpy(model.embed(paths)), torch.from_numpy(labels))
    assert metrics["level0/map@r"] == pytest.approx(expected["level0/map@r"], abs=1e-6)
    assert metrics["level0/recall@1"] == pytest.approx(expected["level0/recall@1"])
    assert (metrics.get("step"), metrics["split"]) == (None, "test")  # there was no training
    assert "unchanged" not in capfd.readouterr().out


def test_commands_take_its_name(tmp_path: Path) -> None:
    place = "pretrained:tf_efficientnet_lite0"
    model = dml.load(place, device="cpu")
    assert model.fingerprint == dml.pretrained("tf_efficientnet_lite0").fingerprint
    Image.fromarray(IMAGES[0]).save(tmp_path / "photo.png")
    dispatch(["embed", place, str(tmp_path), "--output", str(tmp_path / "vectors.npz"), "--workers", "0"])
    with np.load(tmp_path / "vectors.npz") as arrays:
        np.testing.assert_array_equal(arrays["vectors"], model.embed(IMAGES[:1]))
    model.save_pretrained(tmp_path / "model")
    assert "not trained by dml" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(InputError, match="no_such_network"):
        dml.load("pretrained:no_such_network")
    with pytest.raises(InputError, match="this model has the heads H"):
        dml.load(place, heads=["M"])


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="no_such_network"):
        dml.pretrained("no_such_network")
    with pytest.raises(InputError, match=r"embed_dim=8 for features of shape \(16, 1, 1\)"):
        RawHead((16, 1, 1), embed_dim=8)
