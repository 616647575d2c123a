"""A trained model in use: loaded from a run, a checkpoint or a saved folder, it embeds as the run's test did."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import SMALL
from manifests import seal
from PIL import Image
from runs import metrics
from small_embedders import make_model

import dml
from dml.commands import main
from dml.data.images import UnreadableImageError, read_image
from dml.data.readers.emoji import read
from dml.data.table import ImageTable, hold_out_classes
from dml.evaluation import evaluate
from dml.inference.serving.image_search import ImageSearch
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder

SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2", "evaluation.raw=false", "evaluation.clustering=false"]
RUN = [*SMALL, "model.heads=[L,H]", "model.normalize=false", "evaluation.threshold.wrong_share=0.5", *SHORT]


def train(folder: Path, small_emoji: Path, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        run = [f"dataset.root={small_emoji}", *RUN, *arguments, f"hydra.run.dir={folder}"]
        patched.setattr("sys.argv", ["train.py", *run])
        main("train")


@pytest.fixture(scope="module")
def run(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, small_emoji)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> dml.ImageEmbedder:
    return dml.load(run)


@pytest.fixture(scope="module")
def tested(small_emoji: Path) -> ImageTable:
    return read(small_emoji).subset("test")


@pytest.fixture(scope="module")
def paths(tested: ImageTable, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten test images as files of their own, so that a folder holds them."""
    folder = tmp_path_factory.mktemp("images")
    for number, path in enumerate(tested.paths[:10].tolist()):
        Image.fromarray(read_image(path).permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def test_the_metrics_are_those_of_the_runs_test(run: Path, model: dml.ImageEmbedder, tested: ImageTable) -> None:
    vectors = model.embed(tested.paths.tolist())
    assert vectors.shape == (len(tested), 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    expected = metrics(run)
    for name, value in evaluate(vectors, tested.labels, clustering=False).items():
        if isinstance(value, float):
            assert value == expected[name], name


def test_the_threshold_is_the_runs(
    run: Path, model: dml.ImageEmbedder, small_emoji: Path, tested: ImageTable, tmp_path: Path
) -> None:
    """It is chosen on the validation classes: as a user would find it, with the vectors of the opened model."""
    metrics = RunFolder(run).metrics()
    assert model.threshold == metrics["threshold/similarity"]
    assert model.nearest_threshold == metrics["threshold/nearest_similarity"]
    assert model.threshold_errors["fnmr"] == metrics["threshold/fnmr"]
    validated = hold_out_classes(read(small_emoji)).subset("val")
    for table, names in ((validated, ("val_fmr", "val_fnmr")), (tested, ("fmr", "fnmr"))):
        vectors, labels = model.embed(table.paths.tolist()), table.labels[:, 0]
        pairs = np.triu(np.ones((len(labels), len(labels)), dtype=bool), 1)
        is_same, passes = (labels[:, None] == labels)[pairs], (vectors @ vectors.T >= model.threshold)[pairs]
        assert passes[~is_same].mean() == pytest.approx(model.threshold_errors[names[0]], abs=2 / (~is_same).sum())
        assert 1 - passes[is_same].mean() == pytest.approx(model.threshold_errors[names[1]], abs=2 / is_same.sum())
        similarities = vectors @ vectors.T - 9 * np.eye(len(labels))
        assert model.nearest_threshold is not None
        accepted = similarities.max(axis=1) >= model.nearest_threshold
        wrong = labels[similarities.argmax(axis=1)][accepted] != labels[accepted]
        share = model.threshold_errors[names[0].replace("fmr", "wrong_share")]
        assert wrong.mean() == pytest.approx(share, abs=2 / accepted.sum())
    assert model.threshold_errors["val_fmr"] <= model.threshold_errors["wanted_fmr"]
    assert model.calibration is not None
    assert model.calibration.slope == metrics["threshold/calibration_slope"] > 0
    assert (dml.load(run, heads=["H"]).threshold, dml.load(run, heads=["H"]).calibration) == (None, None)
    saved = dml.load(model.save_pretrained(tmp_path / "saved"))
    assert saved.threshold_errors == model.threshold_errors
    card = (tmp_path / "saved" / "README.md").read_text()
    assert f"`model.threshold` = {model.threshold:.4f}" in card
    assert f"| all pairs | {100 * metrics['threshold/ece']:.3g} |" in card


def test_of_a_folder_of_runs_the_newest_is_taken(
    run: Path, model: dml.ImageEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    assert repr(dml.load(run.parent)) == repr(model)
    assert caplog.messages == [f"{run.parent}: the newest run in it is taken, {run}"]


def test_one_head_is_the_runs_head(run: Path, tested: ImageTable) -> None:
    vectors = dml.load(run, heads=["H"]).embed(tested.paths.tolist())
    assert evaluate(vectors, tested.labels, clustering=False)["level0/map@r"] == metrics(run)["heads/H/level0/map@r"]


def test_what_an_image_is_makes_no_difference(model: dml.ImageEmbedder, paths: list[Path]) -> None:
    expected = model.embed(paths)
    pictures = [Image.open(path) for path in paths]
    arrays = [np.asarray(picture.convert("RGB")) for picture in pictures]
    tensors = [torch.from_numpy(array.copy()).permute(2, 0, 1) for array in arrays]
    for images in (map(str, paths), pictures, arrays, tensors, np.stack(arrays), torch.stack(tensors), paths[0].parent):
        np.testing.assert_array_equal(model.embed(images), expected)
    np.testing.assert_allclose(model.embed(paths[3]), expected[3:4], atol=1e-6)
    np.testing.assert_allclose(model.embed(paths, batch_size=3, num_workers=1), expected, atol=1e-6)


def test_views_are_averaged_as_in_a_test(model: dml.ImageEmbedder, paths: list[Path]) -> None:
    array = np.asarray(Image.open(paths[0]).convert("RGB"))
    mirrored = model.embed([array, array[:, ::-1].copy()])
    both = model.embed([array], views=2)[0]
    for columns in (slice(0, 8), slice(8, 16)):  # heads L and H
        mean = sum(rows / np.linalg.norm(rows) for rows in mirrored[:, columns])
        part = both[columns]
        np.testing.assert_allclose(part / np.linalg.norm(part), mean / np.linalg.norm(mean), atol=1e-5)
    with pytest.raises(InputError, match="crops=3: 1, 2, 5 or 10 views"):
        model.embed([array], views=3)


def test_the_views_are_those_of_the_runs_test(model: dml.ImageEmbedder, paths: list[Path], tmp_path: Path) -> None:
    """The threshold and the metrics are of vectors of so many views."""
    evaluation = {**model.settings.config["evaluation"], "crops": 2}
    settings = replace(model.settings, config={**model.settings.config, "evaluation": evaluation})
    tested = dml.ImageEmbedder(model.model, settings)
    expected = model.embed(paths, views=2)
    for one in (tested, dml.load(tested.save_pretrained(tmp_path / "saved"))):
        np.testing.assert_array_equal(one.embed(paths), expected)
        np.testing.assert_array_equal(one.embed(paths, views=1), model.embed(paths))
    assert np.abs(expected - model.embed(paths)).max() > 0.01
    assert tested.fingerprint != model.fingerprint
    index = dml.Index.build(tested, paths)
    with pytest.raises(InputError, match="views=1: queries have 2, as in the test of the run; leave it out"):
        index.upsert(paths[:1], views=1)
    score = ImageSearch(index).find_similar_to_item(0, k=1)[0].score  # of the vector in the index
    assert score == pytest.approx(1.0, abs=1e-5)
    assert index.search(paths[0], k=1)[0][0, 0] == pytest.approx(1.0, abs=1e-5)


def test_unreadable_images_are_named_or_skipped(
    model: dml.ImageEmbedder, paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(paths[0].read_bytes()[:40])
    images = [paths[0], broken, tmp_path / "none.png", paths[1]]
    with pytest.raises(UnreadableImageError, match=r'broken.png: cannot be decoded .* \(on_corrupt="skip" leaves it'):
        model.embed(images)
    vectors = model.embed(images, on_corrupt="skip")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_allclose(vectors[[0, 3]], model.embed(paths[:2]), atol=1e-6)
    assert "broken.png" in caplog.text
    assert "none.png: no such file" in caplog.text


def test_a_vector_of_nan_is_no_unreadable_image(paths: list[Path]) -> None:
    embedder = make_model()
    for weights in embedder.model.heads.parameters():
        weights.data.fill_(torch.nan)
    for precision in ("32", "bf16"):
        for images, name in [
            (paths[:2], re.escape(str(paths[0]))),
            (np.zeros((4, 4, 3), np.uint8), "an image of type"),
        ]:
            with pytest.raises(InputError, match=f"{name}.*NaN or infinite"):
                embedder.embed(images, precision=precision, on_corrupt="skip")


def test_other_things_than_images_are_refused(model: dml.ImageEmbedder) -> None:
    cases: list[tuple[Any, str]] = [
        ([], "images: there is none"),
        ([np.zeros((4, 4, 3))], r"images\[0\]: ndarray \(4, 4, 3\) of float64"),
        ([torch.zeros(4, 4, 3, dtype=torch.uint8)], r"images\[0\]: Tensor \(4, 4, 3\)"),
        ([b"bytes"], r"images\[0\]: bytes"),
        (b"bytes", r"images\[0\]: bytes"),
        (None, r"images\[0\]: NoneType"),
        (Image.new("La", (40, 30)), r"images\[0\]: cannot be decoded"),
    ]
    for images, line in cases:
        with pytest.raises(InputError, match=line):
            model.embed(images)


def test_options_are_checked(model: dml.ImageEmbedder, paths: list[Path]) -> None:
    wrong = {"on_corrupt": "drop", "precision": "fp16", "batch_size": 0, "num_workers": -1}
    for options in (*({name: value} for name, value in wrong.items()), {"batch_size": 1.5}):
        (named,) = options.items()
        with pytest.raises(InputError, match="{}={}".format(*named)):
            model.embed(paths, **options)  # type: ignore[arg-type]


def test_threads_get_the_vectors_of_their_own_images(model: dml.ImageEmbedder) -> None:
    """The network keeps the maps of its layers in itself, where two threads at a time would mix them up."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 40, 40, 3), dtype=np.uint8)
    alone = [model.embed(images) for images in pixels]
    with ThreadPoolExecutor(4) as threads:
        together = [*threads.map(model.embed, [*pixels] * 20)]
    for position, vectors in enumerate(together):
        np.testing.assert_array_equal(vectors, alone[position % 4])


def test_the_callers_random_numbers_stay_as_they_are(run: Path, paths: list[Path]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    dml.load(run).embed(paths[:2])
    assert torch.rand(1) == expected


def test_bf16_changes_little(model: dml.ImageEmbedder, paths: list[Path]) -> None:
    exact, rough = model.embed(paths), model.embed(paths, precision="bf16")
    assert rough.dtype == np.float32
    assert (exact * rough).sum(axis=1).min() > 0.99
    assert not np.array_equal(exact, rough)


def test_a_saved_model_is_the_same_model(model: dml.ImageEmbedder, paths: list[Path], tmp_path: Path) -> None:
    saved = model.save_pretrained(tmp_path / "saved")
    moved = tmp_path / "elsewhere" / "model"
    shutil.copytree(saved, moved)
    shutil.rmtree(saved)
    loaded = dml.load(moved)
    assert loaded.fingerprint == model.fingerprint
    np.testing.assert_array_equal(loaded.embed(paths), model.embed(paths))
    again = loaded.save_pretrained(tmp_path / "again")
    for name in ("model.json", "config.yaml", "model.safetensors", "README.md", "retrieval.png"):
        assert (again / name).read_bytes() == (moved / name).read_bytes(), name


def test_a_saved_model_keeps_its_heads(run: Path, paths: list[Path], tmp_path: Path) -> None:
    high = dml.load(run, heads=["H"])
    loaded = dml.load(high.save_pretrained(tmp_path / "saved"))
    assert loaded.heads == ("H",)
    assert loaded.dimension == 8
    np.testing.assert_array_equal(loaded.embed(paths), high.embed(paths))
    assert dml.load(tmp_path / "saved", heads=["L", "H"]).fingerprint == dml.load(run).fingerprint


def test_the_card_of_some_heads_has_their_metrics(run: Path, tmp_path: Path) -> None:
    high = dml.load(run, heads=["H"])
    folder = high.save_pretrained(tmp_path / "saved")
    assert not (folder / "retrieval.png").exists()
    text = (folder / "README.md").read_text()
    assert "retrieval.png" not in text
    results = yaml.safe_load(text.split("---\n", 2)[1])["model-index"][0]["results"][0]["metrics"]
    recall = {entry["type"]: entry["value"] for entry in results}["level0/recall@1"]
    assert recall == round(metrics(run)["heads/H/level0/recall@1"], 4)
    joint = {name: value for name, value in high.settings.metrics.items() if not name.startswith("heads/")}
    high.settings = replace(high.settings, metrics=joint)
    assert "recall@" not in (high.save_pretrained(tmp_path / "saved") / "README.md").read_text()


def test_the_card_states_what_a_user_needs(model: dml.ImageEmbedder, run: Path, tmp_path: Path) -> None:
    text = (model.save_pretrained(tmp_path / "saved", license="mit") / "README.md").read_text()
    _, facts, body = text.split("---\n", 2)
    front = yaml.safe_load(facts)
    assert (front["license"], front["library_name"]) == ("mit", "dml")
    results = {entry["type"]: entry["value"] for entry in front["model-index"][0]["results"][0]["metrics"]}
    assert results["level0/recall@1"] == round(metrics(run)["level0/recall@1"], 4)
    shown = ("heads L + H", "16 dimensions", "RankedListLoss", model.fingerprint, "32 x 32 pixels", "retrieval.png")
    assert [fact for fact in shown if fact not in body] == []
    description = json.loads((tmp_path / "saved" / "model.json").read_text())
    splits = RunFolder(run).splits() or {}
    assert description["class_names"] == sorted(splits["train"])
    assert description["val_class_names"] == sorted(splits["val"])
    assert dml.load(tmp_path / "saved").settings.seen_classes == {*splits["train"], *splits["val"]}


def test_saving_replaces_a_saved_model_and_nothing_else(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model.save_pretrained(folder)
    (folder / "stale.txt").write_text("")
    model.save_pretrained(folder)
    assert not (folder / "stale.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    with pytest.raises(InputError, match="holds something else"):
        model.save_pretrained(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    model.save_pretrained(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (folder / "model.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "saved"]


def test_values_of_another_kind_are_refused(model: dml.ImageEmbedder, tmp_path: Path) -> None:
    folder = model.save_pretrained(tmp_path / "saved")
    cases: list[tuple[str, tuple[str, ...], Any]] = [
        ("model.json", ("heads",), 3),
        ("model.json", ("chosen_heads",), None),
        ("model.json", ("training",), 3),
        ("config.yaml", ("data", "eval_batch_size"), "many"),
        ("config.yaml", ("transform",), {}),
        ("config.yaml", ("evaluation",), {"crops": "many"}),
        ("config.yaml", ("evaluation",), [1]),
    ]
    for file, keys, value in cases:
        text = (folder / file).read_text()
        content = part = yaml.safe_load(text)  # JSON is YAML
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        (folder / file).write_text(json.dumps(content))
        seal(folder / "model.json")
        with pytest.raises(InputError, match="not as save_pretrained wrote it"):
            dml.load(folder)
        (folder / file).write_text(text)
    seal(folder / "model.json")
    assert dml.load(folder).fingerprint == model.fingerprint


def test_a_place_without_a_model_is_named(tmp_path: Path) -> None:
    for place in ("", "missing"):
        with pytest.raises(InputError, match=r"(neither a run with|nothing is there)"):
            dml.load(tmp_path / place)


def test_unknown_heads_and_devices_are_named(run: Path) -> None:
    for options, line in (({"heads": ["X"]}, r"heads=\['X'\]"), ({"device": "gpu"}, "device=gpu")):
        with pytest.raises(InputError, match=line):
            dml.load(run, **options)


def test_the_tested_checkpoint_is_taken(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    assert dml.load(copied).fingerprint == dml.load(copied / "checkpoints" / "best.ckpt").fingerprint
    last = copied / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    checkpoint["state_dict"] = {name: value + 1 for name, value in checkpoint["state_dict"].items()}
    torch.save(checkpoint, last)
    assert dml.load(copied).fingerprint == dml.load(run).fingerprint
    (copied / "checkpoints" / "best.ckpt").unlink()
    assert dml.load(copied).fingerprint != dml.load(run).fingerprint


def test_a_checkpoint_of_another_run_has_no_threshold(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps may be as many as those of the run in whose folder it was copied."""
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    assert dml.load(copied).threshold is not None
    assert caplog.messages == []
    best = copied / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(best, weights_only=True)
    torch.save({**checkpoint, "history": "0" * 64}, best)
    model = dml.load(copied)
    assert (model.threshold, model.calibration, model.settings.metrics) == (None, None, {})
    (message,) = caplog.messages
    assert message.startswith(f"{best}: not of the run in whose folder it lies, or metrics.csv has changed")


def test_a_recurrent_model_is_refused(run: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    checkpoint["run"]["config"]["recurrent"] = {"_target_": "dml.models.recurrent.RecurrentModel"}
    torch.save(checkpoint, tmp_path / "recurrent.ckpt")
    with pytest.raises(InputError, match="embeds an image by its neighbors"):
        dml.load(tmp_path / "recurrent.ckpt")
