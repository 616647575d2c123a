"""Parts of images in use: embedded, in an index, and as queries."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_embedders import make_model

import dml
from dml.__main__ import dispatch
from dml.data.images import UnreadableImageError
from dml.inference.image_embedder import ImageEmbedder
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)
EDGES = [(0, 0, 12, 10), (12, 8, 24, 20), (3, 2, 20, 19)]


@pytest.fixture
def listed(photos: Path, tmp_path: Path) -> Path:
    """A list of three parts of an image, and of another whole one."""
    lines = [f"{photos}/cats/00.png,part{i},{','.join(map(str, edges))}" for i, edges in enumerate(EDGES)]
    path = tmp_path / "parts.csv"
    path.write_text("\n".join(["path,label,x_1,y_1,x_2,y_2", *lines, f"{photos}/cats/01.png,whole,,,,"]))
    return path


def locations(photos: Path) -> list[str]:
    parts = [f"{photos}/cats/00.png#{','.join(map(str, edges))}" for edges in EDGES]
    return [*parts, f"{photos}/cats/01.png"]


def test_vectors_are_those_of_crops(model: ImageEmbedder, photos: Path, listed: Path) -> None:
    whole = Image.open(photos / "cats/00.png")
    expected = model.embed([*(whole.crop(edges) for edges in EDGES), Image.open(photos / "cats/01.png")])
    for images in (listed, locations(photos), dml.data.readers.csv.read(listed, test_fraction=0).paths):
        np.testing.assert_array_equal(model.embed(images), expected)
    with pytest.raises(UnreadableImageError, match=r"00\.png#0,0,25,20: the box 0,0,25,20 isn't inside of its 24 x 20"):
        model.embed(f"{photos}/cats/00.png#0,0,25,20")


def test_an_item_of_an_index_is_a_part(model: ImageEmbedder, photos: Path, listed: Path, tmp_path: Path) -> None:
    index = dml.Index.build(model, listed)
    index.save(tmp_path / "index")
    index = dml.Index.load(tmp_path / "index")
    assert index.items.labels.tolist() == ["part0", "part1", "part2", "whole"]
    scores, found = index.search(locations(photos), k=4)
    assert found[:, 0].tolist() == locations(photos)
    np.testing.assert_allclose(scores[:, 0], 1, atol=1e-6)
    with pytest.raises(InputError, match=r"00\.png#0,0,12,10: in the index already"):
        index.add(locations(photos)[:1])
    assert index.upsert(locations(photos)[:1]) == 1
    index.remove(locations(photos)[1])
    assert {*index.items.paths} == {*locations(photos)} - {locations(photos)[1]}
    with pytest.raises(InputError, match=r"cats/00\.png: not in the index"):
        index.remove(f"{photos}/cats/00.png")


def test_commands_take_parts(photos: Path, listed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = make_model().save_pretrained(tmp_path / "saved")
    dispatch(["embed", str(saved), str(listed), "--output", str(tmp_path / "parts.parquet"), "--workers", "0"])
    assert pq.read_table(tmp_path / "parts.parquet").column("path").to_pylist() == locations(photos)
    dml.Index.build(make_model(), listed).save(tmp_path / "index")
    capsys.readouterr()
    search = ["search", str(tmp_path / "index"), "-k", "1", "--json"]
    dispatch([*search, f"{photos}/cats/00.png#12,8,24,20", "--html", str(tmp_path / "found.html")])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["query"] == result["neighbors"][0]["path"] == locations(photos)[1]
