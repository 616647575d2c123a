"""The stored features of a backbone: computed once, and anew as soon as anything differs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_arrays import stored_arrays
from torch import Tensor, nn

from dml.data.prepared.cache import CacheFolder
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.training.frozen import FeatureCache


@dataclass
class Features:
    """load() returns features of five rows, of which two show the same image, and counts the computations."""

    root: Path
    table: ImageTable
    backbone: nn.Linear
    settings: dict[str, Any] = field(default_factory=lambda: {"size": 8})
    calls: int = 0
    warnings: list[str] = field(default_factory=list)
    unreadable: str = ""

    def compute(self, images: ImageTable, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
        self.calls += 1
        assert {*images.split.tolist()} == {"test"}
        letters = [Path(path).name[0] for path in images.paths.tolist()]
        rows = torch.tensor([row for row, letter in enumerate(letters) if letter not in self.unreadable])
        codes = torch.tensor([[float(ord(letter)), 1.0] for letter in letters])[rows]
        return {name: codes if name == "raw" else codes[:, :, None] * 2 for name in names}, rows

    @property
    def cache(self) -> FeatureCache:
        return FeatureCache(CacheFolder(self.root / "cache", str(self.root)), self.warnings.append)

    def load(self, cache: FeatureCache | None = None) -> Tensor:
        settings = {"raw": self.settings}
        return (cache or self.cache).load(self.table, self.backbone, settings, self.compute)["raw"]

    @property
    def file(self) -> Path:
        (path,) = (self.root / "cache").glob("features-*.npz")
        return path


@pytest.fixture
def features(tmp_path: Path) -> Features:
    (tmp_path / "cache").mkdir()
    names = ["d.png", "a.png", "c.png", "a.png", "b.png"]
    for name in names:
        (tmp_path / name).write_text(name)
    paths = np.array([str(tmp_path / name) for name in names])
    split = np.array(["train", "test", "test", "test", "test"])
    labels = np.array([[0], [1], [1], [1], [1]])
    return Features(tmp_path, ImageTable(paths, labels, split, ("class",)), nn.Linear(2, 2))


def test_the_second_call_computes_nothing(features: Features) -> None:
    first = features.load()
    assert first[:, 0].tolist() == [ord(name) for name in "dacab"]
    torch.testing.assert_close(features.load(), first, atol=0, rtol=0)
    assert (features.calls, features.warnings) == (1, [])


CHANGES: list[Callable[[Features], Any]] = [
    lambda features: os.utime(features.root / "a.png", ns=(1, 1)),
    lambda features: features.backbone.bias.data.add_(1),
    lambda features: features.settings.update(size=9),
    lambda features: setattr(features, "table", features.table.take(np.arange(4))),
]


def test_files_of_one_size_and_time_that_were_swapped_are_seen(features: Features) -> None:
    one, other = features.root / "a.png", features.root / "b.png"
    for path in (one, other):
        os.utime(path, ns=(10**18, 10**18))
    features.load()
    one.rename(features.root / "kept")
    other.rename(one)
    (features.root / "kept").rename(other)
    features.load()
    assert features.calls == 2


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_decides_the_features_computes_them_anew(
    features: Features, change: Callable[[Features], Any]
) -> None:
    features.load()
    change(features)
    features.load()
    assert (features.calls, features.warnings) == (2, [])
    assert len([*(features.root / "cache").glob("features-*.npz")]) == 2


def flip(content: bytes) -> bytes:
    place = content.rindex(np.float32(100.0).tobytes())  # in the first feature of d.png
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], flip, lambda content: b""])
def test_a_damaged_file_is_computed_anew_with_one_line(features: Features, damage: Callable[[bytes], bytes]) -> None:
    first = features.load()
    features.file.write_bytes(damage(features.file.read_bytes()))
    torch.testing.assert_close(features.load(), first, atol=0, rtol=0)
    assert features.calls == 2
    assert len(features.warnings) == 1
    assert f"{features.file}: damaged (" in features.warnings[0]
    features.load()
    assert features.calls == 2


def test_a_link_is_refused(features: Features) -> None:
    features.load()
    target = features.file.rename(features.root / "elsewhere.npz")
    name = "features-" + str(stored_arrays(target)["fingerprint"])[:16] + ".npz"
    (features.root / "cache" / name).symlink_to(target)
    with pytest.raises(InputError, match="is a link to"):
        features.load()


def test_names_that_are_not_stored_are_computed_together(features: Features) -> None:
    asked: list[list[str]] = []

    def compute(images: ImageTable, names: Sequence[str]) -> tuple[Mapping[str, Tensor], Tensor]:
        asked.append([*names])
        return features.compute(images, names)

    features.load()
    settings = {name: {**features.settings, "tap": name} for name in ("L", "M")} | {"raw": features.settings}
    loaded = features.cache.load(features.table, features.backbone, settings, compute)
    assert asked == [["L", "M"]]
    torch.testing.assert_close(loaded["M"], 2 * loaded["raw"][:, :, None])
    again = features.cache.load(features.table, features.backbone, settings, compute)
    torch.testing.assert_close(again, loaded, atol=0, rtol=0)
    assert len(asked) == 1


def test_what_cannot_be_stored_stays_in_memory(features: Features) -> None:
    features.unreadable = "c"
    cache = features.cache
    first = features.load(cache)
    assert first[:, 0].isnan().tolist() == [False, False, True, False, False]
    torch.testing.assert_close(features.load(cache), first, equal_nan=True)
    assert features.calls == 1
    assert not [*(features.root / "cache").iterdir()]
    features.unreadable = ""
    without_folder = FeatureCache(None, features.warnings.append)
    assert features.load(without_folder)[:, 0].tolist() == [ord(name) for name in "dacab"]
    features.load(without_folder)
    assert features.calls == 2
