"""The commands that use a trained model: embed, index and search."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import Refused
from manifests import seal
from PIL import Image, ImageColor
from small_embedders import make_model, write_photos

import dml
from dml.__main__ import dispatch
from dml.report.pictures import COLORS, OTHER, SAME

pytestmark = pytest.mark.pipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model().save_pretrained(tmp_path_factory.mktemp("model") / "saved")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 8)


def test_an_index_to_extend_keeps_its_kind(model: Path, photos: Path, tmp_path: Path, refused: Refused) -> None:
    index = dml.Index.build(dml.load(model), photos / "cats").save(tmp_path / "index")
    for option, value in [("--factory", "HNSW32"), ("--parameters", "nprobe=4")]:
        assert refused(index, photos, option, value, command="index").startswith(
            f"error: {option}: not for an index to"
        )
    assert refused(model, photos, "--output", index, command="index").startswith(f"error: --output {index}: an index")
    assert len(dml.Index.load(index)) == 4
    dispatch(["index", str(index), str(photos), "--output", f"{index}/../index", "--workers", "0"])
    assert len(dml.Index.load(index)) == 8


def test_a_network_of_ones_own_is_trusted_on_request(
    model: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    refused: Refused,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the working folder is added to it
    monkeypatch.chdir(tmp_path)
    embedder = make_model()
    config = {**embedder.settings.config, "transform": {"test": {"_target_": "own_code_of_tests.resize"}}}
    Path("own_code_of_tests.py").write_text(
        "from dml.data.transforms import Resize\ndef resize():\n    return Resize(mode='warp', size=28)\n"
    )
    saved = shutil.copytree(model, tmp_path / "saved")
    (saved / "config.yaml").write_text(yaml.safe_dump(config))
    seal(saved / "model.json")
    image = photos / "cats" / "00.png"
    advice = "could run any code, or write anywhere; trust=True, or --trust of a command, if you trust these files"
    assert refused(saved, photos, "--output", "index", command="index").endswith(advice)
    line = refused(saved, photos, "--output", "index", "--trust", command="index")
    own = re.search(r"fingerprint (\w+),", line)
    assert own is not None, line
    seal(saved / "model.json", fingerprint=own[1])
    dispatch(["index", "saved", str(photos), "--output", "index", "--trust", "--workers", "0"])
    dispatch(["embed", "saved", str(photos), "--output", "vectors.npz", "--trust", "--workers", "0"])
    assert refused("index", image, command="search").endswith(advice)
    dispatch(["search", "index", str(image), "-k", "1", "--trust"])
    assert capfd.readouterr().out.splitlines()[-1] == f"   1.000  cats  {image}"
    for command in (["serve", "index", "--port", "0"], ["export", "saved", "--output", "model.pt2", "--probe", image]):
        assert refused(*command[1:], command=command[0]).endswith(advice)


def test_what_was_found_is_printed_whatever_a_picture_takes(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    photos, picture = write_photos(tmp_path / "photos", 26), tmp_path / "new" / "found.png"
    index = dml.Index.build(dml.load(model), photos).save(tmp_path / "index")
    query = str(photos / "cats" / "00.png")
    monkeypatch.chdir(photos)
    dispatch(["search", str(index), query, "-k", "26", "--picture", str(picture)])
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == [query, "   1.000  cats  cats/00.png"]  # short below the working folder
    assert len(lines) == 27
    with Image.open(picture) as drawn:
        assert drawn.size[0] == 30 + 22 + 27 * 42  # tiles of 32 pixels, the smallest, and the gap behind the query
    Path(query).unlink()
    line = refused(index, query, command="search")
    assert line == f"error: image {query}: no such file"
    query = str(photos / "cats" / "01.png")
    with pytest.raises(SystemExit):
        dispatch(["search", str(index), query, "-k", "26", "--picture", str(picture)])
    printed = capfd.readouterr()
    assert len(printed.out.splitlines()) == 27
    assert "no such file" in printed.err


def test_an_index_is_made_extended_and_searched(
    model: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index, cats, dogs = str(tmp_path / "index"), str(photos / "cats"), str(photos / "dogs")
    dispatch(["index", str(model), cats, "--output", index, "--workers", "0"])
    assert capfd.readouterr().out.splitlines()[-1] == f"{index}: 4 images embedded, 4 in the index"
    dispatch(["index", index, str(photos), "--workers", "0"])
    assert capfd.readouterr().out.splitlines()[-1] == f"{index}: 8 images embedded, 8 in the index"
    query = f"{dogs}/06.png"
    dispatch(["search", index, query, "-k", "3"])
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == query
    assert lines[1] == f"   1.000  dogs  {query}"
    assert len(lines) == 4
    picture = tmp_path / "found.png"
    dispatch(["search", index, query, f"{cats}/00.png", "-k", "20", "--json", "--picture", str(picture)])
    results = json.loads(capfd.readouterr().out)
    assert [result["query"] for result in results] == [query, f"{cats}/00.png"]
    assert [len(result["neighbors"]) for result in results] == [8, 8]
    scores, paths = dml.Index.load(index).search(query, k=8)
    assert [neighbor["path"] for neighbor in results[0]["neighbors"]] == paths[0].tolist()
    np.testing.assert_allclose([neighbor["score"] for neighbor in results[0]["neighbors"]], scores[0], atol=1e-6)
    with Image.open(picture) as drawn:
        assert drawn.size[0] == 800


HOSTILE = ["<script>alert(1)<", '"><img src=x onerror=alert(1)>.png', "a\x1b[31mb\n.png", "{{ 7 * 7 }}&amp;.png"]
HOSTILE += ["\u202e.png"]
"""Names that mean something to HTML, to a terminal and to jinja2: a folder, and files in it."""


def test_a_page_of_the_neighbors_is_one_file(photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    embedder = make_model()
    calibration = {"calibration_slope": 40.0, "calibration_intercept": -36.0, "calibration_prior": 0.05}
    chosen = {"similarity": 0.99999, "wanted_wrong_share": 0.05}
    metrics = {f"threshold/{name}": value for name, value in {**chosen, **calibration}.items()}
    settings = replace(embedder.settings, metrics=metrics)
    folder = tmp_path / "private" / HOSTILE[0]
    folder.mkdir(parents=True)
    for name, photo in zip(HOSTILE[1:], sorted(photos.rglob("*.png")), strict=False):
        (folder / name).write_bytes(photo.read_bytes())
    model = dml.inference.ImageEmbedder(embedder.model, settings)
    index = dml.Index.build(model, folder.parent).save(tmp_path / "<b>index")
    odd = tmp_path / os.fsdecode(b"\xff.png")  # no UTF-8
    odd.write_bytes((folder / HOSTILE[1]).read_bytes())
    queries, page = [*(str(folder / name) for name in HOSTILE[1:]), str(odd)], tmp_path / "new" / "found.html"
    dispatch(["search", str(index), *queries, "-k", "3", "--html", str(page)])
    capfd.readouterr()
    dispatch(["search", str(index), str(odd), "--json"])
    assert json.loads(capfd.readouterr().out)[0]["query"] == str(odd)
    text = page.read_text(encoding="utf-8")
    assert text.count('<li class="query-result">') == len(queries)
    assert text.count('<figure class="picture same"') == len(queries)  # each finds itself
    assert "picture other" not in text  # what is below the threshold is unsure, and never crossed out
    assert text.count('<figure class="picture "') == 3 * len(queries)  # two others, and the query itself
    assert f"1.000 same {100 / (1 + np.exp(-4) * 0.95 / 0.05):.0f} %" in text  # the one label tells no share of pairs
    assert "if 5 % of all pairs of images are of one class" in text
    assert "from 1.000 on, where the share of wrong &#34;same&#34; among the nearest is 5 % on the validation" in text
    for dangerous in ("<script", "<img", "<b>", "\x1b", "\u202e", "49&amp;", "private", str(tmp_path)):
        assert dangerous not in text, dangerous
    for escaped in ("&lt;script&gt;alert(1)&lt; ", "&gt;&lt;img src=x", "{{ 7 * 7 }}&amp;amp;.png"):
        assert escaped in text, escaped
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    assert text.count("data:image/webp;base64,") == 1  # the pictures are in the page


def test_a_search_replaces_no_photograph(model: Path, photos: Path, tmp_path: Path, refused: Refused) -> None:
    index = str(dml.Index.build(dml.load(model), photos).save(tmp_path / "index"))
    query, photo = str(min(photos.rglob("*.png"))), tmp_path / "photo.png"
    shutil.copy(query, photo)
    for option, name in (("--picture", "photo.png"), ("--picture", "found.jpg"), ("--html", "photo.png")):
        line = refused(index, query, option, tmp_path / name, command="search")
        assert line.startswith(f"error: {option} {tmp_path / name}: ")
    assert photo.read_bytes() == Path(query).read_bytes()
    for _ in range(2):  # a sheet of an earlier search is replaced
        dispatch(["search", index, query, "--picture", str(tmp_path / "found.png")])


def test_neighbors_above_the_threshold_are_the_same(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder = make_model()
    vectors = embedder.embed(photos)
    scores = np.sort(vectors[0] @ vectors.T)[::-1]
    threshold = float(scores[2:4].mean())
    settings = replace(embedder.settings, metrics={"threshold/similarity": threshold, "level0/recall@1": 1.0})
    model = dml.inference.ImageEmbedder(embedder.model, settings)
    index = str(dml.Index.build(model, photos).save(tmp_path / "index"))
    query = min(map(str, photos.rglob("*.png")))
    dispatch(["search", index, query, "-k", "5", "--picture", str(tmp_path / "found.png")])
    lines = capfd.readouterr().out.splitlines()[1:]
    assert [line.split()[1] == "same" for line in lines] == [True] * 3 + [False] * 2
    assert len({line.index("cats" if "cats" in line[:30] else "dogs") for line in lines}) == 1  # columns stay aligned
    assert "other" not in "".join(lines)
    with Image.open(tmp_path / "found.png") as drawn:
        shown = np.asarray(drawn)
    assert [(shown == ImageColor.getrgb(COLORS[mark])).all(axis=2).any() for mark in (SAME, OTHER)] == [True, False]
    dispatch(["search", index, query, "-k", "5", "--json"])
    neighbors = json.loads(capfd.readouterr().out)[0]["neighbors"]
    assert [neighbor["same"] for neighbor in neighbors] == [True] * 3 + [False] * 2
    assert "probability" not in neighbors[0]  # a model of a version that fitted none


def test_without_a_threshold_the_probability_stands_alone(
    photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder = make_model()
    calibration = {"calibration_slope": 0.0, "calibration_intercept": 0.0, "calibration_prior": 0.25}
    metrics = {f"threshold/{name}": value for name, value in {"wanted_wrong_share": 0.05, **calibration}.items()}
    model = dml.inference.ImageEmbedder(embedder.model, replace(embedder.settings, metrics=metrics))
    index = str(dml.Index.build(model, sorted(photos.rglob("*.png"))).save(tmp_path / "index"))
    dispatch(["search", index, str(min(photos.rglob("*.png"))), "-k", "2", "--html", str(tmp_path / "found.html")])
    lines = capfd.readouterr().out.splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["25%"] * 2
    assert "surely" not in (tmp_path / "found.html").read_text(encoding="utf-8")


def test_an_upload_takes_no_options_of_an_index(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    for option, value in (("--output", "x"), ("--factory", "Flat")):
        line = refused(model, photos, "--to", "lancedb:vectors", option, value, command="index")
        assert line == f"error: {option}: not with --to"
    for option, value in (("--recall", "0.9"), ("--root", ".")):
        assert refused(model, photos, option, value, command="index").startswith(f"error: {option}: only with --")
