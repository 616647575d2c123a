import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from configurations import settings_of
from hydra import compose, initialize_config_dir
from PIL import Image

from dml.data.dataset import ImageDataset
from dml.data.prepared.cache import CacheFolder
from dml.data.transforms import Pipeline, Resize
from dml.run import builders, prepare_job
from dml.run.config_folders import CONF
from dml.runtime.errors import InputError

COUNTS = "dataset.counts={train:{images:12,class:4,super_class:2},test:{images:12,class:4,super_class:2}}"
Prepare = Callable[..., dict[str, list[str]]]


@pytest.fixture
def sop(tmp_path: Path) -> Path:
    """A miniature of Stanford Online Products: 8 classes of 3 images."""
    root, number = tmp_path / "sop", 0
    rng = np.random.default_rng(0)
    for split, classes in (("train", range(1, 5)), ("test", range(5, 9))):
        lines = ["image_id class_id super_class_id path"]
        for product in classes:
            for i in range(3):
                number += 1
                name = f"kind{product % 2}_final/{product}_{i}.JPG"
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((60 + number, 40)).save(root / name)
                lines.append(f"{number} {product} {product % 2 + 1} {name}")
        (root / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def prepare(sop: Path) -> Prepare:
    """prepare("resize=32") prepares the miniature."""

    def prepare(*overrides: str) -> dict[str, list[str]]:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            given = ["dataset=sop", f"dataset.root={sop}", COUNTS, "processes=1", "sheet.classes=1", *overrides]
            config = compose("prepare", overrides=given)
        return prepare_job.prepare(config, Path(), [])

    return prepare


def test_a_sound_data_set(prepare: Prepare, sop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare() == {}
    printed = capsys.readouterr().out
    assert "24/24" in printed
    for row in (
        "│ train │ images      │    12 │        12 │ same │",
        "│       │ super_class │     2 │         2 │ same │",
    ):
        assert row in printed
    assert printed.count("same") == 6
    assert max(map(len, printed.splitlines())) <= 80 + len(str(sop))
    assert f"written  {sop}/.dml/sop" in printed
    assert sorted(path.name for path in (sop / ".dml" / "sop").iterdir()) == [
        "sheet_test.png",
        "sheet_train.png",
        "table.parquet",
    ]
    rows = pq.read_table(sop / ".dml" / "sop" / "table.parquet").to_pylist()
    assert len(rows) == 24
    assert rows[0]["path"] == "kind1_final/1_0.JPG"
    assert (rows[0]["width"], rows[0]["height"]) == (61, 40)


@pytest.mark.pipeline
def test_the_sheets_show_every_split(prepare: Prepare, sop: Path) -> None:
    prepare("sheet.classes=3", "sheet.pictures=2")
    sheets = {path.stem: path.read_bytes() for path in (sop / ".dml" / "sop").glob("*.png")}
    for name in sheets:
        with Image.open(sop / ".dml" / "sop" / f"{name}.png") as sheet:
            assert sheet.width == 800
            assert 3 * 350 < sheet.height < 3 * 500
    prepare("sheet.classes=3", "sheet.pictures=2")
    assert {path.stem: path.read_bytes() for path in (sop / ".dml" / "sop").glob("*.png")} == sheets


def test_faults_are_collected(prepare: Prepare, sop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(sop / "kind1_final/1_0.JPG", sop / "kind1_final/5_0.JPG")
    for i in range(3):
        (sop / f"kind0_final/2_{i}.JPG").unlink()
        (sop / f"kind0_final/4_{i}.JPG").unlink()
    (sop / "kind1_final/7_1.JPG").write_text("damaged")
    with pytest.raises(InputError, match=r"sop: 9 faults, listed above \(dataset\.verify=false accepts them\)"):
        prepare("dataset.counts.train.images=13")
    printed = capsys.readouterr().out
    assert "1 in the lists\n  12 images in the train split, published 13\n" in printed
    assert f"6 missing files\n  {sop}/kind0_final/2_0.JPG\n" in printed
    assert f"{sop}/kind0_final/4_1.JPG\n  and 1 more\n1 image that can't be decoded" in printed
    assert f"{sop}/kind1_final/7_1.JPG (not an image that Pillow can read)" in printed
    assert f"1 image in training and in test\n  {sop}/kind1_final/5_0.JPG is {sop}/kind1_final/1_0.JPG" in printed
    found = prepare("dataset.counts.train.images=13", "dataset.verify=false")
    assert [len(lines) for lines in found.values()] == [1, 6, 1, 1]


def test_training_finds_the_cache(prepare: Prepare, sop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sop / "kind1_final/7_1.JPG").write_text("damaged")
    with pytest.raises(InputError, match="1 fault, listed above"):
        prepare("resize=32")
    assert "warp-32.*.pixels" in capsys.readouterr().out
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=["dataset=sop", f"dataset.root={sop}/", COUNTS, "dataset.folds=2"])
    table, folder = (
        builders.build_table(settings_of(config)).subset("val"),
        CacheFolder.from_setting("auto", config.dataset.root, "sop"),
    )
    assert folder is not None
    pipeline = Pipeline([Resize("warp", 32)])
    cache = folder.find(table, pipeline.resize)
    assert cache is not None
    for row in range(len(table)):
        cached, read = ImageDataset(table, pipeline, cache=cache)[row], ImageDataset(table, pipeline)[row]
        assert cached is not None
        assert read is not None
        assert torch.equal(cached[0], read[0])


def test_a_data_set_in_the_home_folder(prepare: Prepare, sop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = sop.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(sop.parent))
    assert prepare("resize=8", "dataset.root='~/sop'") == {}
    assert [*(sop / ".dml" / "sop").glob("warp-8.*.pixels")]
    prepare("dataset.root='~/sop'", "data.cache='~/fast'")
    assert [*(sop.parent / "fast").glob("sop-*/table.parquet")]
    assert list(elsewhere.iterdir()) == []  # no folder that is called ~


def test_an_archive(small_emoji: Path, tmp_path: Path) -> None:
    shutil.copy(small_emoji, tmp_path / "mine.zip")
    given = [f"dataset.root={tmp_path}/mine.zip", "dataset.counts=null", "processes=1", "sheet.classes=1", "resize=64"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("prepare", overrides=given)
    assert prepare_job.prepare(config, Path(), []) == {}
    assert [*(tmp_path / ".dml" / "mine").glob("warp-64.*.pixels")]


def test_a_data_set_without_a_root(small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "assets").mkdir()
    shutil.copy(small_emoji, tmp_path / "assets" / "emoji.zip")
    monkeypatch.setattr("dml.data.readers.emoji.resources.files", lambda _: tmp_path)
    emoji = ["dataset=emoji", "dataset.counts=null", "processes=1", "sheet.classes=1"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("prepare", overrides=emoji)
        resizing = compose("prepare", overrides=[*emoji, "resize=64"])
        elsewhere = compose("prepare", overrides=[*emoji, "resize=64", f"data.cache={tmp_path}/fast"])
    assert prepare_job.prepare(config, Path(), []) == {}
    assert (tmp_path / "dml" / "emoji" / "table.parquet").exists()
    with pytest.raises(InputError, match=r"^resize=64: without dataset\.root, a training looks for no .* of emoji; "):
        prepare_job.prepare(resizing, Path(), [])
    assert prepare_job.prepare(elsewhere, Path(), []) == {}
    assert builders.find_cache_folder(elsewhere) == CacheFolder(tmp_path / "fast" / "emoji", None)
    assert [*(tmp_path / "fast" / "emoji").glob("warp-64.*.pixels")]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.cache=null"], "data.cache=null: auto, or the folder to write to"),
        (["data.cache=/dev/null"], r"/dev/null/sop-\w+: can't be written to; give data\.cache=FOLDER, also to "),
        (["resize=abc"], "resize size='abc': must be a whole number, 1 or more"),
        (["resize=8", "mode=both"], "resize mode=both: must be one of warp, shorter, longer"),
    ],
)
def test_errors(prepare: Prepare, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(*overrides)


def test_the_command(here: Any, refused: Any, sop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    given = ["dataset=sop", f"dataset.root={sop}", "processes=1", "sheet.classes=1"]
    here("prepare", *given, COUNTS, "resize=16")
    assert [*(sop / ".dml" / "sop").glob("warp-16.*.pixels")]
    assert "sop: 6 faults" in refused(*given, command="prepare")
    assert "dataset=sob: no such choice; nearest: sop" in refused("dataset=sob", command="prepare")
    assert not [*Path().iterdir()], "nothing is left where it is run"
