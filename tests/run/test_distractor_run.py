"""A test of a run among distractors that ``dml embed`` embedded with its model."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ONE_HEAD, Refused
from PIL import Image
from runs import metrics
from trees.ilias import IMAGES, QUERIES, TREE
from trees.shards import pack

import dml
from dml.__main__ import dispatch
from dml.inference.split_embeddings import read_data_set

SHORT = [*ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=2", "seed=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_emoji: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    dispatch(["train", *SHORT, f"dataset.root={small_emoji}", f"hydra.run.dir={folder}"])
    return folder


def test_a_test_among_distractors_has_both_metrics(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
) -> None:
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)):
        Image.fromarray(pixels).resize((64, 64)).save(tmp_path / "photos" / f"{number}.png")
    file, checkpoint = tmp_path / "far.parquet", f"checkpoint={run / 'checkpoints' / 'best.ckpt'}"
    dispatch(["embed", str(run), str(tmp_path / "photos"), "--output", str(file), "--batch-size", "64"])
    evaluate = [checkpoint, "evaluation.metrics=[recall,ap,map@3,eer]", f"evaluation.distractors={file}"]
    dispatch(["evaluate", *evaluate, f"hydra.run.dir={tmp_path / 'test'}"])
    far = np.stack(pq.read_table(file)["vector"].to_pylist())
    assert f"{len(far):,} distractors, of the tested model" in capfd.readouterr().out
    model = dml.load(run, device="cpu")
    table = read_data_set(model)[1].select_evaluated("test")
    vectors = model.embed(table.paths.tolist())
    found, settings = metrics(tmp_path / "test"), {"metrics": ["recall", "ap", "map@3"]}
    expected = dml.evaluate(vectors, table.labels, distractors=[far], **settings)
    for name, value in expected.items():
        assert found[f"distractors/{name}"] == pytest.approx(value, abs=1e-6)
    assert found["distractors"] == len(far) == 60
    assert found["level0/recall@1"] == metrics(run)["level0/recall@1"]
    assert found["level0/ap"] > found["distractors/level0/ap"]
    assert "distractors/level0/eer" not in found
    assert "level0/eer" in found

    assert len([*(run / "evaluations" / "distractors").glob("*.npz")]) == 1

    for name in ("images", "images_again"):  # embedded once, and the same
        dispatch(
            [
                "evaluate",
                *evaluate[:2],
                f"evaluation.distractors={tmp_path / 'photos'}",
                f"hydra.run.dir={tmp_path / name}",
            ]
        )
        assert "60 distractors, of the tested model" in capfd.readouterr().out
        (kept,) = (run / "evaluations" / "distractors").glob("images-*/*.npy")
        of_images = metrics(tmp_path / name)
        for metric in expected:
            assert of_images[f"distractors/{metric}"] == pytest.approx(found[f"distractors/{metric}"], abs=1e-6)
        if name == "images":
            written = kept.stat().st_mtime_ns
    assert kept.stat().st_mtime_ns == written

    array = tmp_path / "far"
    array.mkdir()
    np.save(array / "0.npy", far.astype(np.float16))
    dispatch(["evaluate", checkpoint, f"evaluation.distractors={array}", f"hydra.run.dir={tmp_path / 'again'}"])
    assert "of a model that not all files name; the tested one is " in capfd.readouterr().out
    message = refused(checkpoint, "evaluation.crops=2", f"evaluation.distractors={file}", command="evaluate")
    assert f"far.parquet: of the model {model.fingerprint}, expected the tested one, " in message
    message = refused(checkpoint, f"evaluation.distractors={tmp_path / 'none'}", command="evaluate")
    assert "no .npy or .parquet file of embeddings" in message


def test_ilias_among_its_tar_files_of_distractors(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """mAP@1k as the official protocol has it: the database is the positives and the images in ``yfcc100m/*.tar``.

    An image beside the tar files is a distractor too. The files of ``dml embed``, of one tar file each, give the same.
    """
    root, rng = tmp_path / "ilias", np.random.default_rng(5)
    root.mkdir()
    TREE.build(root)
    (root / "ilias_core/mug_001/query/Q001_00_bbox.txt").unlink()
    images = [root / "ilias_core" / image for images in IMAGES.values() for image in images]
    members = [f"{number:04}.jpg" for number in range(20)]
    for path in [*images, *(tmp_path / member for member in members)]:
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).resize((64, 64)).save(path)
    (root / "yfcc100m").mkdir()
    for shard in range(2):
        contents = {name: (tmp_path / name).read_bytes() for name in members[shard:-1:2]}
        pack(root / f"yfcc100m/{shard:04}.tar", contents | {f"{shard}.json": b"{}"})
        tar, output = root / f"yfcc100m/{shard:04}.tar", tmp_path / f"far/{shard:04}.parquet"
        output.parent.mkdir(exist_ok=True)
        dispatch(["embed", str(run), str(tar), "--output", str(output)])
    beside = shutil.copy(tmp_path / members[-1], root / "yfcc100m")
    dispatch(["embed", str(run), str(beside), "--output", str(tmp_path / "far/beside.parquet")])
    chosen = ["dataset=ilias", f"dataset.root={root}", "dataset.counts=null", "evaluation.metrics=[recall,map@1000]"]
    for name, far in (("tar", root / "yfcc100m"), ("embedded", tmp_path / "far")):
        capfd.readouterr()
        arguments = [f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", *chosen, f"evaluation.distractors={far}"]
        dispatch(["evaluate", *arguments, f"hydra.run.dir={tmp_path / name}"])
        assert "20 distractors, of the tested model" in capfd.readouterr().out
    model = dml.load(run, device="cpu")
    vectors, distractors = model.embed(images), model.embed([tmp_path / member for member in members])
    objects = np.array([path.parent.parent.name for path in images])
    labels, split = np.unique(objects, return_inverse=True)[1], len(IMAGES[QUERIES])
    settings = {"metrics": ["recall", "map@1000"], "distractors": [distractors]}
    expected = dml.evaluate(vectors[:split], labels[:split], vectors[split:], labels[split:], **settings)
    assert 0 < expected["level0/map@1000"] < 1
    for name in ("tar", "embedded"):
        found = metrics(tmp_path / name)
        for metric in ("level0/map@1000", "level0/recall@1"):
            assert found[f"distractors/{metric}"] == pytest.approx(expected[metric], abs=1e-6)


def test_a_training_refuses_distractors(refused: Refused, tmp_path: Path, small_emoji: Path) -> None:
    message = refused(*SHORT, f"dataset.root={small_emoji}", f"evaluation.distractors={tmp_path}")
    assert "evaluation.distractors: only dml evaluate takes them" in message
