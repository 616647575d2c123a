"""Images that wait in a batch until the network's device decodes them; here the device is the CPU."""

import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ONE_HEAD, Here, Refused
from PIL import Image, ImageOps
from runs import last
from sklearn.datasets import load_sample_image
from small_embedders import make_model
from torch import Tensor
from torchvision.transforms import v2

from dml.commands.command_parser import CommandParser, add_embedding_options, embedding_options
from dml.data import device_decoding
from dml.data.device_decoding import DeferredPipeline, UndecodedImage, decode_images, join_images
from dml.data.image_files.images import ImageFile, UnreadableImageError
from dml.data.image_files.limits import ImageLimits
from dml.data.table import ImageTable
from dml.data.transforms import Pipeline, RandomResizedCrop, Resize
from dml.runtime.errors import InputError
from dml.training.data import DataModule, LoaderSettings

CPU = torch.device("cpu")
FLIP = v2.RandomHorizontalFlip(0.5)
PHOTO = Image.fromarray(load_sample_image("china.jpg"))
"""A photograph of 640 x 427 pixels."""


def decode_with_pillow(contents: list[bytes], *, device: torch.device) -> list[Tensor]:
    """torchcodec's decoder in another library: it turns what has EXIF, and one bad file spoils the call."""
    try:
        images = [ImageOps.exif_transpose(Image.open(BytesIO(content)).convert("RGB")) for content in contents]
    except OSError as error:
        raise RuntimeError(f"cannot decode\n{error}") from error
    return [torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(device) for image in images]


@pytest.fixture(params=["pillow", "torchcodec"], autouse=True)
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torchcodec":
        pytest.importorskip("torchcodec.decoders", reason="the extra dml-retrieval[decode] is not installed")
        return
    monkeypatch.setitem(sys.modules, "torchcodec", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", SimpleNamespace(decode_jpeg=decode_with_pillow))


def write(path: Path, image: Image.Image = PHOTO, kind: str = "JPEG", **options: Any) -> str:
    image.save(path, kind, **options)
    return str(path)


def both(path: str, steps: list[Any], seed: int = 0) -> tuple[Tensor, Tensor]:
    """The image as a worker makes it, and as it becomes later, from draws of another place."""
    torch.manual_seed(seed)
    plain = Pipeline(steps)(ImageFile(path))
    torch.manual_seed(seed)
    waiting = DeferredPipeline(steps)(ImageFile(path))
    assert isinstance(waiting, UndecodedImage)
    state = torch.manual_seed(seed + 1).get_state()
    (later,) = decode_images(join_images([waiting]), CPU)
    assert torch.equal(torch.get_rng_state(), state)
    return plain, later


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_and_draws_are_the_workers(tmp_path: Path, orientation: int, subsampling: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = write(tmp_path / "1.jpg", exif=exif, subsampling=subsampling)
    for location in (path, f"{path}#40,60,340,300"):
        for seed in range(3):
            plain, later = both(location, [RandomResizedCrop(200, (0.3, 1.0)), FLIP], seed)  # too large to reduce
            assert torch.equal(plain, later)


def test_orientation_in_xmp(tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    plain, later = both(write(tmp_path / "1.jpg", xmp=xmp), [Resize("shorter", 400)])
    assert torch.equal(plain, later)
    assert later.shape == (3, 599, 400)


@pytest.mark.parametrize("steps", [[Resize("warp", 64)], [Resize("shorter", 100)], [RandomResizedCrop(56), FLIP]])
def test_reduced_images_differ_by_a_few_levels(tmp_path: Path, steps: list[Any]) -> None:
    plain, later = both(write(tmp_path / "1.jpg"), steps)
    difference = (plain.float() - later.float()).abs()
    assert 0 < difference.mean() < 4  # not 0: workers decode at 1/2 or 1/4, and move a crop by up to half a pixel of it
    assert difference.quantile(0.99) <= 20


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (PHOTO, "PNG", {}),
        (PHOTO, "JPEG", {"progressive": True}),
        (PHOTO.convert("L"), "JPEG", {}),
        (PHOTO.convert("CMYK"), "JPEG", {}),
        (PHOTO, "JPEG", {"keep_rgb": True}),
    ],
)
def test_other_files_stay_with_the_workers(tmp_path: Path, image: Image.Image, kind: str, options: Any) -> None:
    steps = [Resize("warp", 64)]
    baseline = DeferredPipeline(steps)(ImageFile(write(tmp_path / "1.jpg")))
    file = ImageFile(write(tmp_path / "image", image, kind, **options))
    made = DeferredPipeline(steps)(file)
    assert torch.equal(made, steps[0](file))
    batch = decode_images(join_images([made, baseline, made]), CPU)
    assert torch.equal(batch[0], made)
    assert torch.equal(batch[2], made)
    assert not torch.equal(batch[1], made)


def test_workers_refuse_what_the_head_tells(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jpg")
    with pytest.raises(UnreadableImageError, match=r"data\.max_pixels=273280 reads it"):
        DeferredPipeline([Resize("warp", 64)])(ImageFile(path, ImageLimits(max_pixels=1000)))
    with pytest.raises(UnreadableImageError, match="would be scaled to"):
        DeferredPipeline([Resize("warp", 600)])(ImageFile(path, ImageLimits(max_pixels=300_000)))
    Path(path).write_bytes(Path(path).read_bytes()[:-1000])  # cut off, which a decoder may not tell
    with pytest.raises(UnreadableImageError, match="truncated"):
        DeferredPipeline([Resize("warp", 64)])(ImageFile(path))


def test_a_file_that_the_device_cannot_decode_is_read_by_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decoders = sys.modules["torchcodec.decoders"]
    bad, decode, steps = (
        ImageFile(write(tmp_path / "bad.jpg", PHOTO.rotate(90))),
        decoders.decode_jpeg,
        [Resize("warp", 64)],
    )

    def decode_most(contents: list[bytes], **options: Any) -> list[Tensor]:
        if bad.content in contents:
            raise RuntimeError("nvjpegDecode failed: 6")
        return decode(contents, **options)

    monkeypatch.setattr(decoders, "decode_jpeg", decode_most)
    files = [ImageFile(write(tmp_path / "1.jpg")), bad, ImageFile(write(tmp_path / "2.jpg", PHOTO.rotate(180)))]
    waiting = [DeferredPipeline(steps)(file) for file in files]
    batch = decode_images(waiting, CPU)
    assert torch.equal(batch[1], steps[0](ImageFile(bad.path)))
    assert torch.equal(batch[0], decode_images(waiting[:1], CPU)[0])
    assert torch.equal(batch[2], decode_images(waiting[2:], CPU)[0])
    assert caplog.text.count("bad.jpg: decoded on the CPU, as torchcodec can't (nvjpegDecode failed: 6)") == 1
    assert all(image.file._decoded is None for image in waiting)  # a batch doesn't hold all pixels at full size


def test_an_image_that_cannot_be_read_later_is_told_with_the_way_out(tmp_path: Path) -> None:
    waiting = DeferredPipeline([Resize("warp", 64)])(ImageFile(write(tmp_path / "1.jpg")))
    waiting.file.content = b"\xff\xd8\xff"
    (tmp_path / "1.jpg").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"1\.jpg: cannot be decoded \(empty file\) \(decode=workers with on_corrupt=skip "
    ):
        decode_images([waiting], CPU)


class OnGPU(Tensor):
    """A tensor that says that it isn't on the CPU, and scales no uint8."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.is_cpu.__get__:
            return False
        if func is torch.nn.functional.interpolate:
            assert args[0].is_floating_point()
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_gpu_scales_as_the_cpu_but_for_rounding() -> None:
    image = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)
    scaled = Resize("warp", 100)(image.as_subclass(OnGPU)).as_subclass(Tensor)
    assert scaled.dtype == torch.uint8
    difference = (scaled.int() - Resize("warp", 100)(image).int()).abs()
    assert difference.max() <= 1


def write_classes(folder: Path, classes: int = 6, images: int = 4) -> Path:
    """Write photographs of 64 x 48 pixels in folders of classes; every fifth is a PNG."""
    for number in range(classes * images):
        left, top = 20 * number, 15 * number
        path = folder / f"class{number // images}" / str(number)
        path.parent.mkdir(exist_ok=True, parents=True)
        write(path.with_suffix(".jpg"), PHOTO.crop((left, top, left + 64, top + 48)), "JPEG" if number % 5 else "PNG")
    return folder


def read_batches(table: ImageTable, decode: str, workers: int, first: int) -> list[Any]:
    settings = LoaderSettings(num_workers=workers, decode=decode)
    images = DataModule(
        table,
        train_transform=Pipeline([RandomResizedCrop(40, (0.8, 1.0)), FLIP]),
        sampler=lambda labels: _Halves(len(labels)),
        test_transform=Resize("warp", 32),
        settings=settings,
    )
    stream = images.train_dataloader()
    stream.load_state_dict({"position": first})
    loaded = iter(stream)
    batches = [images.on_after_batch_transfer(next(loaded), 0) for _ in range(first, 5)]
    stream.close()
    return batches + [images.on_after_batch_transfer(batch, 0) for batch in images.training_images()]


class _Halves:
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def set_epoch(self, epoch: int) -> None:
        self.order = np.random.default_rng(epoch).permutation(self.rows)

    def __iter__(self) -> Any:
        return iter(half.tolist() for half in np.split(self.order, 2))

    def __len__(self) -> int:
        return 2


def test_batches_are_the_workers_with_any_number_of_them_and_from_any_step(tmp_path: Path) -> None:
    paths = np.array(sorted(map(str, write_classes(tmp_path).rglob("*.*"))))
    labels = np.arange(len(paths))[:, None] // 4
    table = ImageTable(paths, labels, np.full(len(paths), "train"), ("class",))
    plain = read_batches(table, "workers", 0, 0)
    for workers, first in ((0, 0), (2, 3)):
        for batch, expected in zip(read_batches(table, "device", workers, first), plain[first:], strict=True):
            assert all(map(torch.equal, batch, expected))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_model_embeds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
    model, folder = make_model(), write_classes(tmp_path)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    options: dict[str, Any] = {"num_workers": num_workers, "on_corrupt": "skip", "views": 2}
    plain = model.embed(folder, **options)
    monkeypatch.setattr("dml.inference.image_embedder.decodes_on_device", lambda key, value, has_gpu: value == "device")
    np.testing.assert_array_equal(model.embed(folder, **options, decode="device"), plain)
    assert np.isnan(plain).any(axis=1).sum() == 1


def test_a_run_is_that_of_the_workers(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "dataset=folder",
        f"dataset.root={write_classes(tmp_path / 'photos')}",
        *ONE_HEAD,
        "data.num_workers=1",
    ]
    arguments += ["loss=rll", "transform=imagenet", "sampler.classes_per_batch=2"]
    here("train", *arguments, f"hydra.run.dir={tmp_path / 'workers'}")
    monkeypatch.setattr("dml.data.device_decoding.check_installed", lambda *_, **__: None)
    monkeypatch.setattr("dml.training.hardware.uses_cuda", lambda _: True)
    decoded: list[int] = []
    decode = sys.modules["torchcodec.decoders"].decode_jpeg
    monkeypatch.setattr(
        sys.modules["torchcodec.decoders"],
        "decode_jpeg",
        lambda contents, **options: decoded.append(len(contents)) or decode(contents, **options),
    )
    here("train", *arguments, f"hydra.run.dir={tmp_path / 'device'}", "data.decode=device", "data.pin_memory=false")
    assert sum(decoded) > 6 * 4  # steps, and validations
    weights, expected = (last(tmp_path / name)["state_dict"] for name in ("device", "workers"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_it_is_refused_in_a_line_where_it_cannot_be(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("data.decode=device").endswith("data.decode=device: no CUDA device; workers")
    with pytest.raises(InputError, match=r"^decode=device: no CUDA device; workers$"):
        make_model().embed(torch.zeros(3, 8, 8, dtype=torch.uint8), decode="device")
    with pytest.raises(InputError, match=r"^decode=gpu: workers or device$"):
        make_model().embed(torch.zeros(3, 8, 8, dtype=torch.uint8), decode="gpu")
    add_embedding_options(parser := CommandParser("embed", "", {}))
    assert embedding_options(parser.parse_args(["--decode", "device"]))["decode"] == "device"
    monkeypatch.setattr("dml.runtime.errors.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"^torchcodec: not installed; pip install 'dml-retrieval\[decode\]'$"):
        device_decoding.decodes_on_device("data.decode", "device", has_gpu=True)
