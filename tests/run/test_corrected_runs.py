"""A training on corrected data: what it holds, what a changed file does, and mistakes in one line."""

from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, Here, Refused
from hydra import compose, initialize_config_dir
from PIL import Image

from dml.run.config_folders import CONF
from dml.run.table_reading import read_table
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from tests.configurations import settings_of

SHORT = [*PLAIN, "trainer.max_steps=2", "trainer.val_check_interval=1"]
SHORT += [
    "sampler.classes_per_batch=2",
    "evaluation.selection=last",
    "transform=imagenet",
    "transform.size=32",
]
HEADER = "issue,path,label,other_path,other_label,action,new_label\n"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four training, two validation and four test classes of three images."""
    for label in range(10):
        folder = tmp_path / "photos" / ("train" if label < 4 else "val" if label < 6 else "test") / f"class{label}"
        folder.mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng((label, i)).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "photos"


def test_a_run_takes_the_corrected_data_and_notices_another_correction(
    here: Here, refused: Refused, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "audit.csv", tmp_path / "run"
    file.write_text(
        HEADER
        + "odd_image,train/class0/0.png,class0,,,drop,\n"
        + "doubtful_label,train/class1/0.png,class1,,class2,relabel,\n"
        + "mixed_classes,,class8,,class9,same_class,\n"
    )
    data = ["dataset=folder", f"dataset.root={photos}"]
    here("train", *data, *SHORT, f"dataset.corrections={file}", f"hydra.run.dir={run}")
    printed = capfd.readouterr().out
    assert f"corrections  dropped 1 image, relabeled 1, merged 1 class into others ({file})" in printed
    splits = RunFolder(run).splits()
    assert splits is not None
    sizes = {name: int(text.split()[0]) for split in splits.values() for name, text in split.items()}
    assert sizes == {"class0": 2, "class1": 2, "class2": 4, "class3": 3, "class4": 3, "class5": 3} | {
        "class6": 3,
        "class7": 3,
        "class8": 6,
    }
    moved = tmp_path / "elsewhere.csv"
    moved.write_text(file.read_text())
    here("train", f"resume={run}", "trainer.max_steps=3", f"dataset.corrections={moved}")
    moved.write_text(HEADER + "odd_image,train/class0/0.png,class0,,,drop,\n")  # which the run took last
    line = refused(f"resume={run}", "trainer.max_steps=4")
    assert f"error: resume={run}: the data has changed since the run began: " in line
    assert "class9" in line


def test_published_counts_are_those_of_the_data_without_corrections(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "audit.csv"
    file.write_text(HEADER + "odd_image,train/class0/0.png,class0,,,drop,\n")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = ["dataset=folder", f"dataset.root={photos}", f"dataset.corrections={file}"]
        config = compose("train", overrides=[*overrides, "+dataset.counts.train.images=12"])
        wrong = compose("train", overrides=[*overrides, "+dataset.counts.train.images=11"])
    assert len(read_table(settings_of(config).dataset, 1 << 20)) == 29
    with pytest.raises(InputError, match="12 images in the train split, published 11"):
        read_table(settings_of(wrong).dataset, 1 << 20)


def test_a_class_that_corrections_leave_in_two_splits_is_a_fault(refused: Refused, photos: Path) -> None:
    file = photos.parent / "audit.csv"
    file.write_text(HEADER + "mixed_classes,,class0,,class9,same_clas,\n")
    given = ["dataset=folder", f"dataset.root={photos}", *SHORT, f"dataset.corrections={file}"]
    assert "line 2: unknown action 'same_clas'; the actions are" in refused(*given)
    assert "dataset.corrections=/none.csv: no such file" in refused(*given[:-1], "dataset.corrections=/none.csv")
