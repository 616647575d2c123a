"""``dml inspect``: its tables and metrics against loops over a tiny folder, its cache, and mistakes in one line."""

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from conftest import Here, Refused
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image

from dml.commands.backbones import describe_gains
from dml.data.table import ImageTable
from dml.evaluation import near_duplicates
from dml.evaluation.raw_features import hold_out_classes, measure_gains
from dml.models.embedding import EmbeddingModel
from dml.run.config_folders import CONF
from dml.training.frozen import FeatureEmbedder

SETTINGS = ["model=small_cnn", "transform=imagenet", "transform.size=16", "processes=1", "data.num_workers=0"]
SETTINGS += ["sheet.classes=2", "sheet.pictures=2"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve classes of four colored pictures in the folders train/ and test/; work in the folder above."""
    rng = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "mine" / ("train" if number < 6 else "test") / f"class{number}"
        folder.mkdir(parents=True)
        color = rng.integers(0, 60, 3)
        for i in range(4):
            pixels = (color + rng.integers(0, 196, (20, 24, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(near_duplicates, "NEIGHBORS", 1)  # in noise each pair is compared part by part
    return tmp_path / "mine"


@pytest.fixture
def inspect(here: Here, mine: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """inspect("max_images=9") -> what the command prints."""

    def inspect(*overrides: str) -> str:
        here("inspect", "dataset=folder", f"dataset.root={mine}", *SETTINGS, *overrides)
        return capfd.readouterr().out

    return inspect


def embed_by_hand(mine: Path, split: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Resize, crop and embed each image alone -> L2-normalized features, labels."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("inspect", overrides=["dataset=folder", *SETTINGS])
    torch.manual_seed(config.seed)
    model: EmbeddingModel = instantiate(config.model).eval()
    transform, table = instantiate(config.transform.test), instantiate(config.dataset.reader)(str(mine)).subset(split)
    features = []
    for path in table.paths.tolist():
        pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
        with torch.no_grad():
            features.append(model.raw_features(transform(pixels)[None])[0].double().numpy())
    stacked = np.stack(features)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True), table.labels[:, 0]


def rank_by_hand(features: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> tuple[float, float]:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    recalls, precisions = [], []
    for query in range(len(unit)):
        order = sorted((i for i in range(len(unit)) if i != query), key=lambda i: -float(unit[query] @ unit[i]))
        hits = [labels[i] == labels[query] for i in order]
        recalls.append(hits[0])
        precisions.append(sum(sum(hits[: k + 1]) / (k + 1) for k in range(3) if hits[k]) / 3)
    return float(np.mean(recalls)), float(np.mean(precisions))


def find_row(printed: str, name: str) -> tuple[float, float]:
    (row,) = re.findall(rf"^ *{re.escape(name)} +([\d.]+) +([\d.]+) *$", printed, flags=re.MULTILINE)
    return float(row[0]), float(row[1])


def test_metrics_are_those_of_loops_and_a_second_call_embeds_nothing(
    inspect: Callable[..., str], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = inspect("components=2")
    train, _ = embed_by_hand(mine, "train")
    test, labels = embed_by_hand(mine, "test")
    _, values, directions = np.linalg.svd(train - train.mean(axis=0), full_matrices=False)
    projected = (test - train.mean(axis=0)) @ directions[:2].T
    expected = {"raw": test, "PCA 2": projected, "PCA 2, whitened": projected / values[:2]}
    for name, features in expected.items():
        assert find_row(printed, f"small_cnn, {name}") == pytest.approx(
            [round(100 * value, 1) for value in rank_by_hand(features, labels)], abs=0.051
        )
    assert "│ images         │    16 │     8 │    24 │" in printed
    assert "│ median size    │ 24x20 │ 24x20 │ 24x20 │" in printed
    assert "warning" not in printed
    assert max(map(len, printed.splitlines())) <= 80 + len(str(mine))
    names = sorted(re.sub("[0-9a-f]{16}", "*", path.name) for path in (mine / ".dml" / "folder").iterdir())
    assert names == [*["features-*.npz"] * 4, "findings.csv", "sheet.png", "table.parquet"]

    def fail(*arguments: object) -> None:
        raise AssertionError("a second call embeds images")

    monkeypatch.setattr(FeatureEmbedder, "embed_images", fail)
    monkeypatch.setattr("dml.commands.inspect.read_small_pictures", fail)
    again = inspect("components=2")
    assert find_row(again, "small_cnn, raw") == find_row(printed, "small_cnn, raw")
    told = re.sub("scaled down.*\n", "", printed)
    assert again.partition("what the splits hold")[2] == told.partition("what the splits hold")[2]


def test_copies_across_splits_and_unreadable_files_are_warnings(inspect: Callable[..., str], mine: Path) -> None:
    shutil.copy(mine / "train/class0/0.png", mine / "test/class7/copy.png")
    (mine / "test/class8/0.png").write_text("damaged")
    printed = inspect()
    assert (
        f"warning  1 file in test with the content of a file in train, such as {mine}/test/class7/copy.png" in printed
    )
    assert "│ unreadable     │     0 │     0 │     1 │" in printed
    assert "warning  missing and unreadable files are left out below" in printed
    assert "% of 24 queries" in " ".join(printed.split())  # 24 images, one of them damaged, and the copy

    sheet = mine / ".dml" / "folder" / "sheet.png"
    with Image.open(sheet) as picture:
        height = picture.height
    inspect("sheet.findings=0")
    with Image.open(sheet) as picture:
        assert picture.height < height


def draw(label: int, number: int) -> Image.Image:
    """A picture of its class's colors, with noise of its own."""
    rng = np.random.default_rng((label, number))
    colors = np.random.default_rng(label).integers(0, 256, (4, 4, 3))
    pixels = np.kron(colors, np.ones((12, 12, 1))) + rng.normal(0, 12, (48, 48, 3)) + rng.integers(-20, 20, 3)
    return Image.fromarray(
        (pixels + np.kron(rng.normal(0, 25, (6, 6, 3)), np.ones((8, 8, 1)))).clip(0, 255).astype("u1")
    )


def test_planted_copies_near_duplicates_and_swapped_labels_are_listed_and_shown(
    inspect: Callable[..., str], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "NEIGHBORS", 10)  # as ever: many pairs, of which one is near
    shutil.rmtree(mine)
    for label in range(8):
        folder = mine / ("train" if label < 4 else "test") / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(6):
            draw(label, number).save(folder / f"{number}.png")
    shutil.move(mine / "train/class0/0.png", mine / "train/class1/swapped.png")
    shutil.copy(mine / "train/class3/2.png", mine / "train/class3/copy.png")
    draw(2, 5).resize((40, 40)).save(mine / "test/class4/near.jpg", quality=80)
    (mine / "test/class5/0.png").write_text("damaged")
    before = {path: path.read_bytes() for path in mine.rglob("*.*")}
    printed = inspect("transform.size=32", "sheet.findings=5", "sheet.pictures=8")
    folder = mine / ".dml" / "folder"
    with (folder / "findings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    issues = [row["issue"] for row in rows]
    assert issues == sorted(issues, key=["copy", "near_duplicate", "doubtful_label"].index)
    assert issues.count("copy") == issues.count("near_duplicate") == 1
    copy, near, *doubtful = rows
    assert {copy["path"], copy["other_path"]} == {"train/class3/2.png", "train/class3/copy.png"}
    assert copy["score"] == "1.000"
    near_paths = (near["path"], near["other_path"])
    assert near_paths == ("train/class2/5.png", "test/class4/near.jpg")  # the test keeps its own
    assert (near["label"], near["other_label"]) == ("class2", "class4")
    assert re.search("; in (train|val) and in test; of two classes$", near["remark"])
    assert ("train/class1/swapped.png", "class1", "class0") in [
        (row["path"], row["label"], row["other_label"]) for row in doubtful
    ]
    assert {row["path"] for row in doubtful} <= {"train/class1/swapped.png", "test/class4/near.jpg"}
    scores = [float(row["score"]) for row in doubtful]
    assert scores == sorted(scores, reverse=True)
    for line in ("copy: 1, the first train/class3/", "near duplicate: 1, ", f"doubtful label: {len(doubtful)}, "):
        assert line in printed
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "sheet.png").exists()


def test_a_part_of_each_class_is_not_taken_for_the_data_set(inspect: Callable[..., str], mine: Path) -> None:
    printed = inspect("max_images=24")
    assert "part     24 of 48 images" in printed
    assert "│ smallest class │     2 │     2 │     2 │" in printed
    table = mine / ".dml" / "folder" / "table.parquet"
    inspect("quick=true")
    assert not table.exists()
    assert " val " in inspect("dataset.reader.val_fraction=0", "dataset.folds=2")
    with pq.ParquetFile(table) as file:
        assert set(file.read(columns=["split"])["split"].to_pylist()) == {"train", "test"}  # without folds


def test_several_backbones_one_of_ones_own_and_one_without_weights(inspect: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    shutil.copy(CONF / "model" / "tf_efficientnet_lite0.yaml", tmp_path / "my_conf" / "model" / "mine.yaml")
    given = [f"hydra.searchpath=[{tmp_path}/my_conf]", "transform.size=32", "components=4", "sheet=null"]
    missing = f"model.backbone.weights={tmp_path}/none.pth"
    printed = inspect(*given, "backbones=[mine,small_cnn]", missing)
    assert "warning  backbone small_cnn is left out: model.backbone.weights=" in printed
    assert "mine, PCA 4, whitened" in printed
    assert "small_cnn, raw" not in printed
    assert "sheet.png" not in printed.partition("written")[2]
    assert not [*(tmp_path / "mine").rglob("sheet*.png")]


def test_a_test_of_one_class_says_nothing(inspect: Callable[..., str], mine: Path) -> None:
    for folder in [*(mine / "test").iterdir()][1:]:
        shutil.rmtree(folder)
    printed = " ".join(inspect("transform.size=32", "components=4", "sheet=null").split())
    assert "All images of the test split are of one class, so that every neighbor is right." in printed
    assert "finds most" not in printed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("backbones=[resnet19]", "backbones=resnet19: no such model; nearest: resnet18"),
        ("backbones=resnet18", "backbones=resnet18: must be a valid list"),
        ("max_images=0", "max_images=0: must be greater than or equal to 1"),
        ("data.cache=null", "data.cache=null: auto, or the folder to write to"),
    ],
)
def test_mistakes_are_one_line(refused: Refused, mine: Path, override: str, message: str) -> None:
    line = refused("dataset=folder", f"dataset.root={mine}", *SETTINGS, override, command="inspect")
    assert re.search(message, line), line
    assert not (mine / ".dml").exists()


def test_a_list_of_files_that_are_elsewhere_is_told_as_such(refused: Refused, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"old/{i}.jpg,{'abcdef'[i // 2]}\n" for i in range(12)))
    line = refused("dataset=csv", f"dataset.root={listed}", "processes=1", command="inspect")
    first = f"{tmp_path}/old/0.jpg: no such file"
    assert line == f"error: {listed}: none of 12 images can be read, the first: {first}"


def test_a_linear_map_says_whether_a_training_pays(inspect: Callable[..., str], mine: Path) -> None:
    printed = " ".join(inspect("sheet=null").split())
    assert "a linear map" not in printed  # six classes are too few
    for number in range(6, 10):
        (mine / "test" / f"class{number}").rename(mine / "train" / f"class{number}")
    printed = " ".join(inspect("sheet=null").split())
    line = r"small_cnn: a linear map that was learned from other classes changes MAP@R by [+-]\S+ ± \S+ points, by 10 "
    assert re.search(line, printed)


def test_gains_are_those_of_classes_that_the_map_does_not_know() -> None:
    """Where noise along one axis hides the classes, the map finds them; where all axes are alike, it can't."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    table = ImageTable(
        np.array([f"{i}.png" for i in range(120)]),
        labels[:, None],
        np.where(labels < 9, "train", "val"),
        ("class",),
    )
    means = 0.3 * generator.normal(size=(12, 64))[labels]
    noise = 0.5 * generator.normal(size=(120, 64))
    hidden = means + noise * np.array([20.0, *[1.0] * 63])
    groups = hold_out_classes(labels)
    gains = measure_gains(table, groups, torch.from_numpy(hidden).float())
    assert len(gains) == 12
    assert np.mean(gains) > 0.1
    assert "Train the whole network" in describe_gains(gains)
    alike = measure_gains(table, groups, torch.from_numpy(means + noise).float())
    assert "That can't tell whether a training pays" in describe_gains(alike)
