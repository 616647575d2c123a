"""``dml shift``: its files, a training on one of them, and mistakes in one line."""

import csv
import json
from collections.abc import Callable
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

SETTINGS = ["model=small_cnn", "dataset.counts=null", "transform.size=32", "data.num_workers=0", "levels=3"]


@pytest.fixture
def data(small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that read a slice of emoji; work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return ["dataset=emoji", f"dataset.root={small_emoji}", f"data.cache={tmp_path / 'cache'}"]


@pytest.fixture
def shift(here: Here, data: list[str], capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """shift("levels=2") -> what the command prints."""

    def shift(*overrides: str) -> str:
        here("shift", *data, *SETTINGS, "processes=1", *overrides)
        return capfd.readouterr().out

    return shift


def read_sides(file: str) -> dict[str, str]:
    with Path(file).open(newline="") as lines:
        return {row["class"]: row["split"] for row in csv.DictReader(lines)}


def test_levels_are_written_and_a_training_takes_one(
    shift: Callable[..., str], here: Here, refused: Refused, data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    printed = shift("output=found")
    assert "splits of 39 classes" in printed
    assert "dataset.class_splits=found/shift-3.csv" in printed
    written = json.loads(Path("found/shift.json").read_text())
    assert written["components"] == 9  # 19 classes on the smaller side
    assert [entry["file"] for entry in written["levels"]] == [f"shift-{level}.csv" for level in range(4)]
    distances = [entry["distance"] for entry in written["levels"]]
    assert distances == sorted({*distances})
    beginning, last = read_sides("found/shift-0.csv"), read_sides("found/shift-3.csv")
    assert list(beginning.values()).count("test") == list(last.values()).count("test") == 19
    assert written["levels"][-1]["moved_classes"] == sum(beginning[name] != last[name] for name in beginning)

    before = {path.name: path.read_bytes() for path in Path("found").iterdir()}
    assert "embedded" not in shift("output=found")  # the features come from the cache folder
    assert {path.name: path.read_bytes() for path in Path("found").iterdir()} == before

    options = [
        "evaluation.metrics=[recall]",
        "evaluation.recall_at=[1]",
    ]
    here("train", *data, *PLAIN, *options, "dataset.class_splits=found/shift-3.csv", "hydra.run.dir=run")
    assert "splits   20 classes for training, 19 for the test (found/shift-3.csv)" in capfd.readouterr().out
    splits = RunFolder("run").splits()
    assert splits is not None
    assert {*splits["test"]} == {name for name, side in last.items() if side == "test"}
    assert len(splits["val"]) == 4
    Path("moved.csv").write_bytes(Path("found/shift-3.csv").read_bytes())
    here("train", "resume=run", "dataset.class_splits=moved.csv", "trainer.max_steps=7")
    Path("moved.csv").write_bytes(Path("found/shift-0.csv").read_bytes())
    line = refused("resume=run", "trainer.max_steps=8")
    assert f"error: resume={Path('run').absolute()}: the data has changed since the run began: " in line


def test_the_split_of_the_data_set_can_be_the_beginning(shift: Callable[..., str], data: list[str]) -> None:
    shift("output=found", "levels=3")
    shift("output=found", "beginning=data_set", "levels=1")
    assert {path.name for path in Path("found").iterdir()} == {"shift-0.csv", "shift-1.csv", "shift.json"}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[*data, "dataset.counts=null"])
        divided = compose("train", overrides=[*data, "dataset.counts=null", "dataset.class_splits=found/shift-0.csv"])
        counted = compose("train", overrides=[*data, "dataset.class_splits=found/shift-0.csv"])
    table = read_table(settings_of(config).dataset, 1 << 20)
    np.testing.assert_array_equal(read_table(settings_of(divided).dataset, 1 << 20).split, table.split)
    with pytest.raises(InputError, match="published 2419"):  # counts are those of the data set's own splits
        read_table(settings_of(counted).dataset, 1 << 20)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("levels=0", "levels=0: must be a whole number, 1 or more"),
        ("components=half", "components=half: must be a whole number, 1 or more"),
        ("beginning=own", "beginning=own: must be one of drawn, data_set"),
        ("dataset.corrections=audit.csv", "dataset.corrections=audit.csv: dml shift divides the data set as it is"),
        ("levels=500", "can be told apart, with"),
    ],
)
def test_mistakes_are_one_line(refused: Refused, data: list[str], override: str, message: str) -> None:
    assert message in refused(*data, *SETTINGS, "processes=1", override, command="shift")


def test_queries_and_a_gallery_are_refused(refused: Refused, tmp_path: Path) -> None:
    lines = ["path,label,split"]
    for label in range(6):
        for number in range(3):
            name = f"{label}-{number}.png"
            Image.new("RGB", (32, 32), (40 * label, 80 * number, 0)).save(tmp_path / name)
            lines.append(f"{name},class{label},{'train' if label < 4 else 'gallery' if number else 'query'}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    given = ["dataset=csv", f"dataset.root={tmp_path / 'list.csv'}", "transform=imagenet", *SETTINGS[:-1]]
    assert "error: dml shift: the test has queries and a gallery" in refused(*given, "levels=1", command="shift")
    (tmp_path / "splits.csv").write_text(
        "class,split\n" + "".join(f"class{i},train\n" for i in range(5)) + "class5,test\n"
    )
    line = refused(*given, f"dataset.class_splits={tmp_path / 'splits.csv'}", "trainer.max_steps=1")
    assert "error: dataset.class_splits: the test has queries and a gallery, which can't be divided" in line
