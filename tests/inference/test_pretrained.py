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
from dml.runtime.errors import InputError

IMAGES = [*np.random.default_rng(0).integers(0, 256, (3, 40, 48, 3), dtype=np.uint8)]


@pytest.fixture(scope="module")
def model() -> dml.ImageEmbedder:
    return dml.pretrained("tf_efficientnet_lite0", image_size=32, device="cpu")


@pytest.mark.networks
def test_the_vectors_are_the_features_of_the_backbone(model: dml.ImageEmbedder) -> None:
    vectors = model.embed(IMAGES)
    with torch.inference_mode():
        features = model.model.raw_features(torch.stack([model.preprocess(image) for image in IMAGES]))
    assert vectors.shape == (3, 1280)
    np.testing.assert_allclose(vectors, F.normalize(features).numpy(), atol=1e-6)


@pytest.mark.networks
def test_it_is_saved_and_searched_as_a_trained_model(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    opened = dml.load(tmp_path / "model", device="cpu")
    assert opened.fingerprint == model.fingerprint
    np.testing.assert_array_equal(opened.embed(IMAGES), model.embed(IMAGES))


@pytest.mark.networks
def test_evaluate_has_the_digits_of_its_vectors(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    labels, paths = np.arange(24) % 6, [tmp_path / f"{number}.png" for number in range(24)]
    for path, label in zip(paths, labels, strict=True):
        noise = np.random.default_rng(int(path.stem)).integers(0, 160, (40, 40, 3))
        Image.fromarray((noise + 16 * label).astype(np.uint8)).save(path)
    rows = [f"{path},{label},test" for path, label in zip(paths, labels, strict=True)]
    (tmp_path / "images.csv").write_text("\n".join(["path,label,split", *rows]))
    data = ["dataset=csv", f"dataset.root={tmp_path / 'images.csv'}", "dataset.reader.test_fraction=null"]
    words = [*data, "transform.size=32", "evaluation.report=null", f"hydra.run.dir={tmp_path / 'run'}"]
    dispatch(["evaluate", "checkpoint=pretrained:tf_efficientnet_lite0", *words])
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    expected = evaluate(torch.from_numpy(model.embed(paths)), torch.from_numpy(labels))
    assert metrics["level0/map@r"] == pytest.approx(expected["level0/map@r"], abs=1e-6)
    assert metrics["level0/recall@1"] == pytest.approx(expected["level0/recall@1"])
    assert (metrics.get("step"), metrics["split"]) == (None, "test")  # there was no training


@pytest.mark.networks
def test_load_takes_its_name(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    opened = dml.load("pretrained:tf_efficientnet_lite0", device="cpu")
    assert opened.embed(IMAGES[:1]).shape == (1, model.dimension)
    assert opened.fingerprint != model.fingerprint  # other sizes of images
    opened.save_pretrained(tmp_path / "model")
    assert "not trained by dml" in (tmp_path / "model" / "README.md").read_text()
    for place, heads in (("pretrained:no_such_network", None), ("pretrained:tf_efficientnet_lite0", ["M"])):
        with pytest.raises(InputError, match=r"(no_such_network|has the heads H)"):
            dml.load(place, heads=heads)


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="no_such_network"):
        dml.pretrained("no_such_network")
