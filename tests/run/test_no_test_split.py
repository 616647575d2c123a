import json
from pathlib import Path

import pytest
from conftest import ONE_HEAD, PLAIN, Here, Refused
from PIL import Image

SHORT = ["trainer.max_steps=2", "trainer.val_check_interval=2"]
SMALL = [*(value for value in ONE_HEAD if not value.startswith("dataset.")), *SHORT]


def make_photos(folder: Path) -> Path:
    """Make a folder of 12 classes with four small images each."""
    for number in range(12):
        (folder / f"class{number}").mkdir(parents=True)
        for image in range(4):
            Image.new("RGB", (40, 40), (20 * number, 60 * image, 128)).save(folder / f"class{number}" / f"{image}.png")
    return folder


def test_a_run_on_all_classes_is_tested_on_its_validation_classes(tmp_path: Path, here: Here, refused: Refused):
    photos, run = make_photos(tmp_path / "photos"), tmp_path / "run"
    data = ["dataset=folder", f"dataset.root={photos}", "dataset.reader.test_fraction=0"]
    here("train", *data, *SMALL, "evaluation.raw=true", f"hydra.run.dir={run}")
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["split"] == "val"
    assert {"level0/recall@1", "raw/level0/recall@1"} <= {*metrics}
    checkpoint = f"checkpoint={run / 'checkpoints' / 'best.ckpt'}"
    here("evaluate", checkpoint, f"hydra.run.dir={tmp_path / 'again'}")
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    repeated = {*again}
    assert {"split", "selection", "level0/recall@1"} <= repeated
    assert {name: again[name] for name in repeated} == {name: metrics[name] for name in repeated}
    line = refused(checkpoint, "split=test", f"hydra.run.dir={tmp_path / 'none'}", command="evaluate")
    assert "split=test: the data set has no image of it; it has train, val" in line
    line = refused(*data, *SMALL, "dataset.reader.val_fraction=0", f"hydra.run.dir={tmp_path / 'none'}")
    assert "neither a test nor a validation is possible" in line
    line = refused(*data, *SMALL, "evaluation.selection=test", f"hydra.run.dir={tmp_path / 'none'}")
    assert "evaluation.selection=test: no class is held out as test" in line


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("choice", ["val", "test"])
def test_a_test_of_a_fold_is_repeated_with_its_threshold(tmp_path: Path, here: Here, choice: str):
    photos, run = make_photos(tmp_path / "photos"), tmp_path / "run"
    data = ["dataset=folder", f"dataset.root={photos}", "dataset.folds=2", "dataset.fold=1"]
    small = [value for value in PLAIN if not value.startswith("dataset.")]
    here(
        "train",
        *data,
        *small,
        *SHORT,
        "model.heads=[M,H]",
        "sampler.classes_per_batch=2",
        "evaluation.threshold.fmr=0.1",
        f"evaluation.selection={choice}",
        f"hydra.run.dir={run}",
    )
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={tmp_path / 'again'}")
    tested, again = (json.loads((folder / "metrics.json").read_text()) for folder in (run, tmp_path / "again"))
    assert again["selection"] == choice  # a choice on the test split is said again
    assert "threshold/fmr" in tested
    names = {name for name in tested if not name.startswith("raw/")} - {"configuration"}
    assert {name: again.get(name) for name in names} == {name: tested[name] for name in names}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("option", ["checkpoints.beginning=true", "training.frozen=true", "quick=true"])
def test_a_run_without_validation_classes_tests_its_last_checkpoint(tmp_path: Path, here: Here, option: str):
    photos, run = make_photos(tmp_path / "photos"), tmp_path / "run"
    data = ["dataset=folder", f"dataset.root={photos}", "dataset.reader.val_fraction=0"]
    here("train", *data, *SMALL, option, f"hydra.run.dir={run}")
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["split"], metrics["selection"]) == ("test", "last")


def test_a_training_of_a_search_looks_at_no_test_class(tmp_path: Path, here: Here, refused: Refused):
    photos, run = make_photos(tmp_path / "photos"), tmp_path / "run"
    lines = ["path,label,split"]
    for number in range(12):
        split = ("train", "train", "val", "test")[number % 4]
        lines += [f"class{number}/{image}.png,class{number},{split}" for image in range(4)]
        if split == "test":  # a look at one of them would be an error
            for file in (photos / f"class{number}").iterdir():
                file.write_bytes(b"no image")
    (photos / "list.csv").write_text("\n".join(lines) + "\n")
    data = ["dataset=csv", f"dataset.root={photos / 'list.csv'}", "data.check_images=0", "evaluation.split=val"]
    here("train", *data, *SMALL, "evaluation.raw=true", f"hydra.run.dir={run}")
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["split"] == "val"
    assert {"level0/recall@1", "raw/level0/recall@1"} <= {*metrics}
    none = f"hydra.run.dir={tmp_path / 'none'}"
    assert "evaluation.split=val: keeps the test classes unseen, and evaluation.selection=test" in refused(
        *data, *SMALL, "evaluation.selection=test", none
    )
    assert "evaluation.fixed_neighbors looks at them" in refused(*data, *SMALL, "evaluation.fixed_neighbors=2", none)
    assert "evaluation.split=train" in refused(*data, *SMALL, "evaluation.split=train", none)
