"""A run whose test searches a gallery that another run's model embedded, and the index that it may then search."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ONE_HEAD, Here, Refused
from runs import metrics
from safetensors.torch import load_file

import dml
from dml.__main__ import dispatch
from dml.inference.image_embedder import ImageEmbedder
from dml.inference.split_embeddings import read_data_set
from dml.runtime.errors import InputError

SHORT = [*ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=2", "seed=1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, small_emoji: Path) -> tuple[Path, Path]:
    """The folders of an old run, and of a new one of other preprocessing that began with its weights."""
    old, new = (tmp_path_factory.mktemp("runs") / name for name in ("old", "new"))
    data = f"dataset.root={small_emoji}"
    dispatch(["train", *SHORT, data, "data.background=white", "evaluation.crops=2", f"hydra.run.dir={old}"])
    begin = [f"training.init={old / 'checkpoints' / 'last.ckpt'}", f"evaluation.gallery={old}"]
    dispatch(["train", *SHORT, data, *begin, "optimizer.lr=1e-5", f"hydra.run.dir={new}"])
    return old, new


def test_the_old_run_may_be_of_a_version_that_lacked_a_key(runs: tuple[Path, Path], here: Here, tmp_path: Path) -> None:
    old, new = runs
    checkpoint = torch.load(old / "checkpoints" / "last.ckpt", weights_only=True)
    del checkpoint["run"]["config"]["dataset"]["queries_in_gallery"]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    arguments = [f"checkpoint={new / 'checkpoints' / 'best.ckpt'}", f"evaluation.gallery={tmp_path / 'old.ckpt'}"]
    here("evaluate", *arguments, f"hydra.run.dir={tmp_path / 'test'}")
    assert metrics(tmp_path / "test")["gallery_fingerprint"] == metrics(new)["gallery_fingerprint"]


def embed(folder: Path) -> tuple[ImageEmbedder, Any, Any]:
    model = dml.load(folder, device="cpu")
    table = read_data_set(model)[1].select_evaluated("test")
    return model, model.embed(table.paths.tolist()).astype(np.float64), table.labels


def loop(queries: Any, gallery: Any, labels: Any) -> tuple[Any, Any]:
    """Recall@1 and MAP@R of each query, without its own image."""
    recalls, precisions = [], []
    for row, query in enumerate(queries):
        similarities = gallery @ query
        similarities[row] = -np.inf
        order = np.argsort(-similarities, kind="stable")[:-1]
        right = labels[order] == labels[row]
        recalls.append(float(right[0]))
        total = int(right.sum())
        precisions.append(sum(right[: place + 1].mean() * right[place] for place in range(total)) / total)
    return np.array(recalls), np.array(precisions)


def test_the_test_has_rows_of_both_models_in_the_old_gallery(runs: tuple[Path, Path]) -> None:
    old, new = runs
    found = metrics(new)
    model, queries, labels = embed(new)
    other, gallery, _ = embed(old)
    assert other.settings.views == 2
    assert found["gallery_fingerprint"] == other.fingerprint != model.fingerprint
    fine = labels[:, 0]
    values = {
        "old_old": loop(gallery, gallery, fine),
        "new_old": loop(queries, gallery, fine),
        "new_new": loop(queries, queries, fine),
    }
    for pair, of_queries in values.items():
        for name, column in zip(("recall@1", "map@r"), of_queries, strict=True):
            assert found[f"asymmetric/{pair}/level0/{name}"] == pytest.approx(column.mean(), abs=2e-3)
    assert found["asymmetric/new_new/level0/recall@1"] == found["level0/recall@1"]
    for place, name in enumerate(("level0/recall@1", "level0/map@r")):
        gain = found[f"asymmetric/new_old/{name}"] - found[f"asymmetric/old_old/{name}"]
        assert found[f"asymmetric/gain/{name}"] == pytest.approx(gain, abs=1e-12)
        assert found[f"asymmetric/holds/{name}"] == float(gain > 0)
        differences = values["new_old"][place] - values["old_old"][place]
        sums = [differences[fine == label].sum() for label in np.unique(fine)]
        sizes = np.unique(fine, return_counts=True)[1]
        rng = np.random.default_rng(1)
        draws = [rng.integers(len(sums), size=len(sums)) for _ in range(4000)]
        means = [np.array(sums)[draw].sum() / sizes[draw].sum() for draw in draws]
        ends = [found[f"asymmetric/{end}/{name}"] for end in ("gain_low", "gain_high")]
        np.testing.assert_allclose(ends, np.quantile(means, [0.025, 0.975]), atol=0.02)
    is_same, is_own = fine[:, None] == fine, np.eye(len(fine), dtype=bool)
    for pair, left in (("old_old", gallery), ("new_old", queries)):
        distances = 1 - left @ gallery.T
        assert found[f"asymmetric/same_class/{pair}"] == pytest.approx(distances[is_same & ~is_own].mean(), abs=1e-5)
        assert found[f"asymmetric/other_class/{pair}"] == pytest.approx(distances[~is_same].mean(), abs=1e-5)


def test_a_checkpoint_is_tested_again_in_a_gallery(
    runs: tuple[Path, Path], here: Here, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old, new = runs
    checkpoint = f"checkpoint={new / 'checkpoints' / 'last.ckpt'}"
    here("evaluate", checkpoint, "evaluation.report={neighbors:2,map:false,seed:0}", f"hydra.run.dir={tmp_path}")
    printed = capfd.readouterr().out
    assert "% in the gallery of" in " ".join(printed.split())
    assert "M(n, o) > M(o, o) doesn't hold" in " ".join(printed.split())
    assert "in its gallery" in printed
    assert "other model" in (tmp_path / "report.html").read_text()
    again, before = metrics(tmp_path), metrics(new)
    assert {name for name in before if name.startswith("asymmetric/")} == {
        name for name in again if name.startswith("asymmetric/")
    }
    assert again["asymmetric/new_old/level0/map@r"] == before["asymmetric/new_old/level0/map@r"]
    own = tmp_path / "own"
    file = f"evaluation.gallery={new / 'checkpoints' / 'last.ckpt'}"  # a checkpoint is as good as a folder
    here("evaluate", checkpoint, file, f"hydra.run.dir={own}")
    found = metrics(own)
    assert found["asymmetric/new_old/level0/map@r"] == found["asymmetric/old_old/level0/map@r"]
    assert found["asymmetric/holds/level0/map@r"] == 0  # strict
    assert old.is_dir()


def test_what_cannot_be_searched_is_told_before_the_training(
    runs: tuple[Path, Path], refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    old, new = runs
    given = [*SHORT, f"dataset.root={small_emoji}", f"hydra.run.dir={tmp_path / 'run'}"]
    gallery = f"evaluation.gallery={old}"
    line = refused(*given, gallery, "model.embed_dim=4")
    assert f"{gallery}: its vectors have 8 dimensions, those of the tested model 4" in line
    heads = ["model.heads=[M,H]", "heads.choose=true", "model.embed_dim=4"]
    assert "heads.choose=true may choose vectors of another size; heads.choose=false" in refused(
        *given, gallery, *heads
    )
    assert "no run with a checkpoint is there" in refused(*given, f"evaluation.gallery={tmp_path / 'none'}")
    line = refused(
        f"checkpoint={new / 'checkpoints' / 'last.ckpt'}", f"evaluation.gallery={tmp_path}", command="evaluate"
    )
    assert "no run with a checkpoint is there" in line
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_unknown_code_of_the_other_run_is_refused(
    runs: tuple[Path, Path], refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    file = tmp_path / "foreign.ckpt"
    checkpoint = torch.load(runs[0] / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["run"]["config"]["transform"]["test"] = {"_target_": "os.system", "command": "echo"}
    torch.save(checkpoint, file)
    line = refused(
        *SHORT, f"dataset.root={small_emoji}", f"evaluation.gallery={file}", f"hydra.run.dir={tmp_path / 'r'}"
    )
    assert "transform.test._target_=os.system is not known and could run any code; trust=true if you trust" in line


def test_an_index_is_searched_by_a_model_that_answers_in_its_space(
    runs: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old, new = runs
    teacher, gallery, _ = embed(old)
    table = read_data_set(teacher)[1].select_evaluated("test")
    index = dml.Index.build(teacher, vectors=gallery, paths=table.paths.tolist())
    index.save(tmp_path / "index")
    student = dml.load(dml.load(new, device="cpu").save_pretrained(tmp_path / "student"), device="cpu")
    assert student.answers_in == teacher.fingerprint
    assert teacher.answers_in is None
    crossed = dml.Index.load(tmp_path / "index", student)
    assert repr(crossed).endswith(f"fingerprint={student.fingerprint}), vectors of the model {teacher.fingerprint})")
    assert repr(index).count("fingerprint=") == 1
    assert crossed.threshold is None
    paths = table.paths[:5].tolist()
    nearest = np.argsort(-(student.embed(paths).astype(np.float64) @ gallery.T), axis=1)[:, :3]
    np.testing.assert_array_equal(crossed.search(paths, k=3)[1], table.paths[nearest])
    with pytest.raises(InputError, match=f"vectors of the model {teacher.fingerprint}; open it with that model to add"):
        crossed.upsert(paths)

    crossed[:6].save(tmp_path / "smaller")
    opened = dml.Index.load(tmp_path / "smaller")
    assert (opened.space, opened.model.fingerprint) == (teacher.fingerprint, student.fingerprint)
    assert {*load_file(tmp_path / "student" / "model.safetensors")} == {*student.model.state_dict()}
    for arguments in (
        ["search", str(tmp_path / "smaller"), paths[0]],
        ["search", str(tmp_path / "index"), paths[0], "--model", str(tmp_path / "student")],
    ):
        dispatch(arguments)
        line = f"queries of the model {student.fingerprint}, vectors of {teacher.fingerprint}"
        assert line in capfd.readouterr().out
    dispatch(["search", str(tmp_path / "index"), paths[0]])
    assert "queries of the model" not in capfd.readouterr().out


def test_a_model_that_finds_too_little_is_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = runs
    teacher, student = (dml.load(folder, device="cpu") for folder in (old, new))
    dml.Index.build(teacher, vectors=np.eye(8), paths=[f"{row}.png" for row in range(8)]).save(tmp_path / "index")
    for changed in (
        {"asymmetric/new_old/level0/recall@1": 0.3, "asymmetric/old_old/level0/recall@1": 0.7},
        {"asymmetric/new_old/level0/recall@1": 0.0, "asymmetric/old_old/level0/recall@1": 0.0},
        {"gallery_fingerprint": "another"},
    ):
        settings = replace(student.settings, metrics={**student.settings.metrics, **changed})
        with pytest.raises(InputError, match=f"its vectors are of the model {teacher.fingerprint}, not of"):
            dml.Index.load(tmp_path / "index", ImageEmbedder(student.model, settings, device="cpu"))
