"""A model as ONNX and as a program of torch.export: the same vectors, or no file."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import ROOT
from numpy.typing import NDArray
from PIL import Image
from small_embedders import SETTINGS, write_photos

import dml
from dml.__main__ import dispatch
from dml.inference import exporting
from dml.inference.exported_graph import EmbeddingGraph, describe_graph
from dml.inference.exporting import ExportReport, GraphResult, refuse_difference
from dml.inference.model_settings import ModelSettings
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)
pytestmark = pytest.mark.pipeline  # exporting traces a network, as compiling does

USING = ROOT / "docs" / "using.md"
POOL = {"_target_": "dml.models.heads.PoolHead", "_partial_": True}


def change_model(**changes: Any) -> ModelSettings:
    model = {**SETTINGS.config["model"], "taps": {"L": "pool1", "H": "pool2"}, "head": {"L": POOL, "H": POOL}}
    return replace(SETTINGS, config={**SETTINGS.config, "model": {**model, "heads": ["L", "H"], **changes}})


def build(settings: ModelSettings, heads: list[str] | None = None) -> dml.ImageEmbedder:
    torch.manual_seed(0)
    return dml.ImageEmbedder(settings.build_model(), settings, heads, "cpu")


BGR = {"_target_": "dml.models.small_cnn.small_cnn", "channels": "bgr", "scale": 1.0, "mean": [104, 117, 128]}
VARIANTS = {
    "heads": (change_model(), None),
    "one head": (change_model(), ["H"]),
    "heads in another order": (change_model(), ["H", "L"]),
    "raw concatenation": (change_model(concatenation="raw"), None),
    "Caffe's pixels": (change_model(backbone=BGR), None),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 8)


@pytest.fixture(scope="module")
def exported(model: dml.ImageEmbedder, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    folder = tmp_path_factory.mktemp("exported") / "new"
    return model.export(folder / "model.onnx", probe=photos, quantize="int8", batch_size=3)


def pixels_of(model: dml.ImageEmbedder, photos: Path) -> NDArray[np.uint8]:
    paths = sorted(photos.rglob("*.png"))
    return np.stack([model.preprocess(path).permute(1, 2, 0).numpy() for path in paths])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_graph_gives_what_embed_gives(name: str, photos: Path) -> None:
    model = build(*VARIANTS[name])
    expected = model.embed(photos)
    pixels = torch.from_numpy(pixels_of(model, photos))
    np.testing.assert_allclose(EmbeddingGraph(model)(pixels).detach().numpy(), expected, atol=1e-6)


def test_onnx_is_within_1e_5_for_any_batch(model: dml.ImageEmbedder, photos: Path, exported: ExportReport) -> None:
    session = onnxruntime.InferenceSession(exported.file)
    (given,), (returned,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(uint8)", ["batch", 28, 28, 3])
    assert (returned.name, returned.type, returned.shape) == ("vectors", "tensor(float)", ["batch", 8])
    expected, pixels = model.embed(photos), pixels_of(model, photos)
    for size in (1, 2, 7, 8):
        (vectors,) = session.run(None, {"images": pixels[:size]})
        assert np.abs(vectors - expected[:size]).max() < 1e-5


def test_the_report_compares_the_files(model: dml.ImageEmbedder, photos: Path, exported: ExportReport) -> None:
    expected = model.embed(photos)
    similarity = expected @ expected.T - 2 * np.eye(8)
    recall = (similarity.argmax(axis=1) // 4 == np.arange(8) // 4).mean()
    assert exported.images == 8
    assert exported.model.recall == exported.exported.recall == pytest.approx(recall)
    assert (exported.model.max_difference, exported.model.min_cosine) == (0, pytest.approx(1))
    assert 0 <= exported.exported.max_difference < 1e-5
    assert exported.quantized is not None
    assert 1e-5 < exported.quantized.max_difference < 0.2
    assert min(exported.model.images_per_second, exported.exported.images_per_second) > 0
    assert sorted(path.name for path in exported.file.parent.iterdir()) == [
        *("model.int8.onnx", "model.onnx", "model.onnx.json")
    ]


def test_another_librarys_resizing_states_its_own_interpolation(model: dml.ImageEmbedder) -> None:
    resize = {"_target_": "torchvision.transforms.v2.Resize", "size": [28, 28]}
    pipeline = {"_target_": "dml.data.transforms.Pipeline", "steps": [resize]}
    settings = replace(SETTINGS, config={**SETTINGS.config, "transform": {"test": pipeline}})
    facts = describe_graph(dml.ImageEmbedder(model.model, settings), 28, 28, ())
    assert (facts["preprocessing"], "interpolation" in facts) == ([resize], False)


def test_files_hold_facts_and_no_path_of_the_machine(model: dml.ImageEmbedder, exported: ExportReport) -> None:
    facts = json.loads(exported.file.with_name("model.onnx.json").read_text())
    assert facts["fingerprint"] == model.fingerprint
    assert facts["preprocessing"] == [SETTINGS.config["transform"]["test"]]
    assert (facts["dimension"], facts["heads"]) == (8, ["H"])
    assert set(facts) >= {"dml_version", "name", "levels", "input", "output", "interpolation"}
    for name in ("model.onnx", "model.int8.onnx"):
        path = exported.file.with_name(name)
        stored = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
        written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items()}
        assert stored == written | ({"quantization": "int8, dynamic"} if "int8" in name else {})
        assert {"": facts["opset"]}.items() <= {
            part.domain: part.version for part in onnx.load(path).opset_import
        }.items()
        content = path.read_bytes()
        assert b"site-packages" not in content
        assert b"/dml/" not in content


def test_a_graph_of_a_model_of_several_views_has_the_fingerprint_of_one_view(
    model: dml.ImageEmbedder, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(SETTINGS, config={**SETTINGS.config, "evaluation": {"crops": 2, "selection": "best"}})
    mirrored = dml.ImageEmbedder(model.model, settings, device="cpu")
    assert np.abs(mirrored.embed(photos) - model.embed(photos)).max() > 1e-3
    mirrored.export(tmp_path / "model.pt2")
    facts = json.loads((tmp_path / "model.pt2.json").read_text())
    assert facts["fingerprint"] == model.fingerprint != mirrored.fingerprint
    assert "evaluation.crops=2" in caplog.text


def test_a_program_of_torch_export(model: dml.ImageEmbedder, photos: Path, tmp_path: Path) -> None:
    report = model.export(tmp_path / "model.pt2")  # compares on random pixels
    assert report.exported.recall is None
    assert report.exported.max_difference < 1e-6
    extra = {"dml.json": ""}
    program = torch.export.load(report.file, extra_files=extra).module()
    assert json.loads(extra["dml.json"]) == json.loads((tmp_path / "model.pt2.json").read_text())
    vectors = program(torch.from_numpy(pixels_of(model, photos))).detach().numpy()
    np.testing.assert_allclose(vectors, model.embed(photos), atol=1e-6)
    assert b"site-packages" not in report.file.read_bytes()


def test_a_file_with_other_vectors_is_not_written(
    model: dml.ImageEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exporting.open_graph
    monkeypatch.setattr(exporting, "open_graph", lambda *place: lambda images: -whole(*place)(images))
    with pytest.raises(InputError, match=r"model.pt2: not written, .* least cosine is -1.000000"):
        model.export(tmp_path / "model.pt2")
    assert [*tmp_path.iterdir()] == []


def test_another_recall_is_refused() -> None:
    model = GraphResult(Path("m.onnx"), 0.0, 1.0, 0.5, 1.0)
    refuse_difference(model, replace(model, min_cosine=0.9999))
    for change in ({"recall": 0.49}, {"min_cosine": 0.9998}, {"min_cosine": float("nan")}):
        with pytest.raises(InputError, match="not written"):
            refuse_difference(model, replace(model, **change))  # type: ignore[arg-type]


def test_images_of_several_sizes_are_refused(tmp_path: Path) -> None:
    shorter = {"test": {"_target_": "dml.data.transforms.Resize", "mode": "shorter", "size": 28}}
    model = build(replace(SETTINGS, config={**SETTINGS.config, "transform": shorter}))
    with pytest.raises(InputError, match=r"transform.test: gives images of several sizes"):
        model.export(tmp_path / "model.pt2")


def test_mistakes_are_one_line(
    model: dml.ImageEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("saved")
    for name in ("there.onnx", "here.onnx.json"):
        Path(name).write_text("")
    Path("empty").mkdir()
    for arguments, line in {
        "model.tflite": "model.tflite: the name must end with .onnx or .pt2",
        "there.onnx": "/there.onnx: exists",
        "here.onnx": "/here.onnx.json: exists",
        "model.pt2 --quantize int8": "quantize=int8",
        "model.onnx --probe empty": "empty: no image in it",
        "model.onnx": "probe images: ",
        "model.onnx --heads X": "heads=['X']",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            dispatch(["export", "saved", "--output", *arguments.split()])
        (printed,) = capsys.readouterr().err.splitlines()
        assert line in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "here.onnx.json", "saved", "there.onnx"]


def test_the_command_prints_the_comparison(
    model: dml.ImageEmbedder, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, file = model.save_pretrained(tmp_path / "saved"), tmp_path / "model.pt2"
    dispatch(["export", str(saved), "--output", str(file), "--probe", str(photos), "--batch-size", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "|  | largest difference | least cosine | recall@1 | images/s | MB |"
    assert re.match(r"\| PyTorch \|  \|  \| [\d.]+ \| [\d,.]+ \|  \|$", lines[2])
    assert re.match(r"\| model.pt2 \| \S+ \| 1.000000 \| [\d.]+ \| [\d,.]+ \| [\d.]+ \|$", lines[3])
    assert lines[4:] == ["8 images, on the CPU, network alone", str(file)]


def test_the_snippet_of_the_docs_gives_the_same_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One photograph is decoded at a reduced size and stands upright by its EXIF data; the other is small."""
    monkeypatch.chdir(tmp_path)
    steps = [
        {"_target_": "dml.data.transforms.Resize", "mode": "warp", "size": 31},
        {"_target_": "torchvision.transforms.v2.CenterCrop", "size": 24},
    ]
    transform = {"test": {"_target_": "dml.data.transforms.Pipeline", "steps": steps}}
    settings = change_model(image_size=24)
    model = build(replace(settings, config={**settings.config, "transform": transform}))
    pixels = np.random.default_rng(0).integers(0, 256, (60, 45, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).resize((450, 600)).save("one.jpg", exif=exif)
    Image.fromarray(pixels[:20]).save("other.png")
    model.export("model.onnx")
    code = USING.read_text().partition("## Export")[2].split("```python\n")[1].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "using.md", "exec"), names)
    for name in ("one.jpg", "other.png"):
        np.testing.assert_array_equal(names["preprocess"](name), model.preprocess(name).permute(1, 2, 0).numpy())
    np.testing.assert_allclose(names["vectors"], model.embed(["one.jpg", "other.png"]), atol=1e-5)
