"""The commands that use a trained model: embed, index and search."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_embedders import make_model, write_photos

import dml
from dml.__main__ import dispatch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model().save_pretrained(tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 8)


def test_vectors_are_written(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = dml.load(model).embed(photos)
    for name in ("vectors.npz", "vectors.parquet"):
        dispatch(["embed", str(model), str(photos), "--output", str(tmp_path / name), "--workers", "0"])
        assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / name)
    arrays = np.load(tmp_path / "vectors.npz")
    np.testing.assert_array_equal(arrays["vectors"], expected)
    assert arrays["fingerprint"] == dml.load(model).fingerprint
    table = pq.read_table(tmp_path / "vectors.parquet")
    np.testing.assert_array_equal(np.array(table.column("vector").to_pylist(), np.float32), expected)
    assert table.column("label").to_pylist() == arrays["labels"].tolist() == ["cats"] * 4 + ["dogs"] * 4
    assert table.column("path").to_pylist() == arrays["paths"].tolist() == sorted(map(str, photos.rglob("*.png")))
    assert table.schema.metadata[b"fingerprint"].decode() == dml.load(model).fingerprint


def test_unreadable_images_are_left_out(model: Path, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "broken.png").write_bytes(b"none")
    (folder / "whole.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    output = tmp_path / "vectors.npz"
    with pytest.raises(SystemExit):
        dispatch(["embed", str(model), str(folder), "--output", str(output), "--workers", "0"])
    assert not output.exists()
    dispatch(["embed", str(model), str(folder), "--output", str(output), "--workers", "0", "--on-corrupt", "skip"])
    assert np.load(output)["paths"].tolist() == [str(folder / "whole.png")]


def test_an_index_is_made_extended_and_searched(
    model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, cats, dogs = str(tmp_path / "index"), str(photos / "cats"), str(photos / "dogs")
    dispatch(["index", str(model), cats, "--output", index, "--workers", "0"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{index}: 4 images embedded, 4 in the index"
    dispatch(["index", index, str(photos), "--workers", "0"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{index}: 8 images embedded, 8 in the index"
    query = f"{dogs}/06.png"
    dispatch(["search", index, query, "-k", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == query
    assert lines[1] == f"   1.000  dogs  {query}"
    assert len(lines) == 4
    picture = tmp_path / "found.png"
    dispatch(["search", index, query, f"{cats}/00.png", "-k", "20", "--json", "--picture", str(picture)])
    results = json.loads(capsys.readouterr().out)
    assert [result["query"] for result in results] == [query, f"{cats}/00.png"]
    assert [len(result["neighbors"]) for result in results] == [8, 8]
    scores, paths = dml.Index.load(index).search(query, k=8)
    assert [neighbor["path"] for neighbor in results[0]["neighbors"]] == paths[0].tolist()
    np.testing.assert_allclose([neighbor["score"] for neighbor in results[0]["neighbors"]], scores[0])
    with Image.open(picture) as drawn:
        assert drawn.size[0] == 800
