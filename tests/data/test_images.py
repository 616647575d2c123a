import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image
from torch import Tensor

from dml.data.contents import Box
from dml.data.images import (
    ImageFile,
    ImageLimits,
    MissingImageError,
    PixelValueError,
    UnreadableImageError,
    decode_opened,
    read_image,
)
from dml.runtime.errors import InputError

COLORS = np.array(
    [[[250, 0, 0], [0, 250, 0], [0, 0, 250]], [[0, 0, 0], [250, 250, 250], [250, 250, 0]]], dtype=np.uint8
)
"""2 x 3 pixels: red, green, blue; black, white, yellow."""


def large(pixels: np.ndarray = COLORS) -> Image.Image:
    """Each pixel as a block of 16 x 16, for formats that blur."""
    return Image.fromarray(pixels.repeat(16, axis=0).repeat(16, axis=1))


def centers(image: Tensor) -> np.ndarray:
    """(3, H, W) -> the middle pixel of each block, (H / 16, W / 16, 3)."""
    return image[:, 8::16, 8::16].permute(1, 2, 0).numpy()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(tmp_path: Path, content: bytes, name: str = "image") -> Tensor:
    (tmp_path / name).write_bytes(content)
    return read_image(str(tmp_path / name))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG"])
def test_formats(tmp_path: Path, kind: str) -> None:
    image = read(tmp_path, saved(large(), kind))
    assert image.shape == (3, 32, 48)
    assert image.dtype == torch.uint8
    assert image.permute(1, 2, 0).is_contiguous()  # as decoders give it and networks take it
    np.testing.assert_allclose(centers(image).astype(int), COLORS, atol=8 if kind in ("JPEG", "WEBP") else 0)


# color


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_grayscale(tmp_path: Path, kind: str) -> None:
    levels = np.array([[0, 100, 250]], dtype=np.uint8)
    image = read(tmp_path, saved(large(levels), kind))
    assert image.shape == (3, 16, 48)
    np.testing.assert_allclose(centers(image).astype(int), levels[..., None].repeat(3, axis=2), atol=2)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled(tmp_path: Path, kind: str) -> None:
    levels = np.array([[0, 100 << 8, 0x80FF, 0xFFFF]], dtype=np.uint16)
    image = read(tmp_path, saved(Image.fromarray(levels), kind))
    assert image.permute(1, 2, 0).tolist() == [[[0] * 3, [100] * 3, [128] * 3, [255] * 3]]


GRAY_VALUES = [
    # 16 bits, of which a camera uses 12, or of which a program has used 8
    ([0, 1000, 4095], np.uint16, [0, 62, 255]),
    ([0, 100, 255], np.uint16, [0, 100, 255]),
    ([0, 1000, 4096], np.uint16, [0, 3, 16]),
    ([0, 1000, 4095], np.int32, [0, 62, 255]),
    ([0, 100, 255], np.int32, [0, 100, 255]),
    ([0, 25600, 65535], np.int32, [0, 100, 255]),
    ([0, 0.5, 1], np.float32, [0, 128, 255]),
    ([0, 0.1, 0.2], np.float32, [0, 26, 51]),
    ([0, 100.4, 255], np.float32, [0, 100, 255]),
    ([0, 25700, 65535], np.float32, [0, 100, 255]),
    ([0, 0, 0], np.float32, [0, 0, 0]),
    ([0, 0, 0], np.uint16, [0, 0, 0]),
]


@pytest.mark.parametrize(("values", "dtype", "expected"), GRAY_VALUES)
def test_gray_values_of_more_than_eight_bits(tmp_path: Path, values: list[float], dtype: type, expected: list) -> None:
    image = read(tmp_path, saved(Image.fromarray(np.array([values], dtype)), "TIFF"))
    assert image.permute(1, 2, 0).tolist() == [[[value] * 3 for value in expected]]


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([0, 70000], np.int32, "gray values from 0 to 70000; 0 to 255, 0 to 4095 or 0 to 65535 could be read"),
        ([-5, 200], np.int32, "gray values from -5 to 200; "),
        ([0, 1.2], np.float32, "gray values from 0 to 1.2; 0 to 1, 0 to 255 or 0 to 65535 could be read"),
        ([0, 300], np.float32, "gray values from 0 to 300; "),
        ([-0.1, 1], np.float32, "gray values from -0.1 to 1; "),
        ([0, 1e6], np.float32, "gray values from 0 to 1e+06; "),
        ([0, np.nan], np.float32, "gray values from nan to nan; "),
        ([0, np.inf], np.float32, "gray values from 0 to inf; "),
    ],
)
def test_gray_values_without_a_white_are_refused(tmp_path: Path, values: list[float], dtype: type, found: str) -> None:
    path = tmp_path / "image.tif"
    path.write_bytes(saved(Image.fromarray(np.array([values], dtype)), "TIFF"))
    fails(str(path), found)


def tiff(bits: tuple[int, ...], pixels: bytes) -> bytes:
    """A little-endian TIFF of two pixels in a row, with so many bits for each channel."""
    header = 8
    tags = {
        256: (2,),
        257: (1,),
        258: bits,
        259: (1,),
        262: (1 if len(bits) == 1 else 2,),
        277: (len(bits),),
        278: (1,),
    }
    at = header + 2 + 12 * (len(tags) + 2) + 4
    entries, behind = b"", b""
    for tag, values in sorted((tags | {273: (at + 2 * len(bits),), 279: (len(pixels),)}).items()):
        packed = struct.pack(f"<{len(values)}H", *values)
        if len(packed) > 4:
            behind, packed = packed, struct.pack("<I", at)
        entries += struct.pack("<HHI", tag, 3, len(values)) + packed.ljust(4, b"\0")
    directory = struct.pack("<H", len(tags) + 2) + entries + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", header) + directory + behind.ljust(2 * len(bits), b"\0") + pixels


def test_twelve_bits(tmp_path: Path) -> None:
    bright = read(tmp_path, tiff((12,), bytes([0x40, 0x0F, 0xFF])))  # 1024 and 4095
    assert bright.permute(1, 2, 0).tolist() == [[[64] * 3, [255] * 3]]
    dark = read(tmp_path, tiff((12,), bytes([0x01, 0x00, 0xFF])))  # 16 and 255: the file says what is white
    assert dark.permute(1, 2, 0).tolist() == [[[1] * 3, [15] * 3]]


def test_sixteen_bits_a_color(tmp_path: Path) -> None:
    colors = np.array([[0, 25600, 65535], [4096, 0, 0]], "<u2")
    assert read(tmp_path, tiff((16, 16, 16), colors.tobytes()))[:, 0].T.tolist() == [[0, 100, 255], [16, 0, 0]]
    (tmp_path / "dark.tif").write_bytes(tiff((16, 16, 16), (colors % 4096).tobytes()))
    fails(f"{tmp_path}/dark.tif", "colors of 16 bits, all below 4096, would become black")
    with Image.open(tmp_path / "dark.tif") as opened, pytest.raises(PixelValueError, match="would become black"):
        decode_opened(opened, print, None, in_place=False)


def test_cmyk_jpeg(tmp_path: Path) -> None:
    content = saved(large().convert("CMYK"), "JPEG", quality=95)
    assert Image.open(BytesIO(content)).mode == "CMYK"
    np.testing.assert_allclose(centers(read(tmp_path, content)).astype(int), COLORS, atol=12)


# transparency

SHAPE = np.array([[255, 0, 255], [0, 128, 0]], dtype=np.uint8)
"""The alpha channel of a drawing of 2 x 3 pixels."""


def drawing(mode: str, alpha: np.ndarray = SHAPE, hidden: int = 0) -> Image.Image:
    """A drawing of 2 x 3 blocks, whose pixels without alpha have the gray value ``hidden``, and the others 40."""
    gray = np.where(alpha > 0, 40, hidden).astype(np.uint8)
    image = large(gray)
    image.putalpha(large(alpha))
    return image.convert(mode) if mode[0] == "L" else image.convert("RGBA").convert(mode)


def with_key(mode: str, key: int | bytes | tuple[int, ...], content: np.ndarray) -> bytes:
    """A PNG file in which a value, or entries of the palette, are transparent."""
    image = large(content.astype(np.uint16) * 256) if mode == "I;16" else large(content).convert(mode)
    return saved(image, "PNG", transparency=key)


def wide_png(channels: int, values: list[list[int]]) -> bytes:
    """A PNG file of one row with 16 bits a channel and alpha, which Pillow doesn't write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", len(values), 1, 16, 4 if channels == 2 else 6, 0, 0, 0)
    row = b"\0" + b"".join(struct.pack(f">{channels}H", *pixel) for pixel in values)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def seen(image: Tensor) -> list[list[int]]:
    """(3, H, W) -> the red value of the middle of each block."""
    return centers(image)[..., 0].tolist()


OVER_WHITE = [[40, 255, 40], [255, 147, 255]]
"""What is seen of a `drawing`: the half transparent pixel is 255 - (255 - 40) * 128 / 255."""


@pytest.mark.parametrize("hidden", [0, 200])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "TGA", "JPEG2000", "QOI", "SGI", "AVIF", "LA PNG", "LA TIFF"])
def test_a_drawing_is_laid_over_white(tmp_path: Path, kind: str, hidden: int) -> None:
    """Whatever colors its transparent pixels have, which nobody sees."""
    image = drawing("LA" if "LA" in kind else "RGBA", hidden=hidden)
    file_format = kind.split()[-1]
    content = saved(image, file_format, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    np.testing.assert_allclose(seen(read(tmp_path, content)), OVER_WHITE, atol=3 if kind == "AVIF" else 1)


CONTENT = np.array([[40, 90, 40], [90, 40, 90]], dtype=np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        with_key("L", 90, CONTENT),
        with_key("RGB", (90, 90, 90), CONTENT),
        with_key("I;16", 90 * 256, CONTENT),
        saved(drawing("RGBA", 255 * (CONTENT == 40).astype(np.uint8)), "GIF"),
        wide_png(2, [[40 * 256, 65535]] * 8 + [[0, 0]] * 16),
        wide_png(4, [[40 * 256] * 3 + [65535]] * 8 + [[90 * 256] * 3 + [0]] * 16),
    ],
    ids=["gray", "color", "16 bits", "GIF", "16 bits, gray and alpha", "16 bits, color and alpha"],
)
def test_a_transparent_color_is_laid_over_white(tmp_path: Path, content: bytes) -> None:
    values = np.unique(read(tmp_path, content).numpy())
    assert values.tolist() == [40, 255]


@pytest.mark.parametrize("transparency", [0, bytes([0, 128, 255, 0, 9, 200]), b""])
def test_palette_with_transparency(tmp_path: Path, transparency: int | bytes) -> None:
    """Without Pillow's warning, which a loader would repeat for each image."""
    image = large().quantize(8)
    alphas = bytes([0]) + bytes([255] * 7) if transparency == 0 else bytes(transparency).ljust(8, b"\xff")
    alpha = np.array([*alphas])[np.asarray(image)[8::16, 8::16]][..., None]
    expected = np.rint(255 - (255.0 - COLORS) * alpha / 255)
    content = saved(image, "PNG", transparency=transparency)
    assert Image.open(BytesIO(content)).mode == "P"
    np.testing.assert_allclose(centers(read(tmp_path, content)), expected, atol=1)


@pytest.mark.parametrize("mode", ["RGBA", "RGBa", "LA", "PA"])
def test_images_of_pillow_are_laid_over_white(mode: str) -> None:
    shown = decode_opened(drawing(mode), print, (255, 255, 255), in_place=False)
    np.testing.assert_allclose(shown[8::16, 8::16, 0], OVER_WHITE, atol=1)


@pytest.mark.parametrize(("background", "ground"), [("black", 0), ("#646464", 100), ("rgb(100,100,100)", 100)])
def test_the_background_is_chosen(tmp_path: Path, background: str, ground: int) -> None:
    content = saved(drawing("RGBA", hidden=200), "PNG")
    file = ImageFile("drawing", ImageLimits(background=background), content)
    np.testing.assert_allclose(
        seen(file.pixels()), [[40, ground, 40], [ground, ground - (ground - 40) // 2, ground]], atol=1
    )


def test_alpha_may_be_ignored() -> None:
    content = saved(drawing("RGBA", hidden=200), "PNG")
    assert seen(ImageFile("drawing", ImageLimits(background="none"), content).pixels()) == [
        [40, 200, 40],
        [200, 40, 200],
    ]


@pytest.mark.parametrize("background", ["whit", "#12", "#ffffff80", 255, None, ""])
def test_a_background_that_is_no_color_is_refused(background: object) -> None:
    with pytest.raises(InputError, match=rf"^data\.background={background}: a color, such as white or #808080, or"):
        ImageLimits.from_settings({"background": background})


@pytest.mark.parametrize("gray", [0, 255])
def test_drawings_that_differ_in_their_alpha_alone_differ(gray: int) -> None:
    """Black ones are seen over white; white ones would vanish there, and are laid over black."""
    images = []
    for alpha in (SHAPE, 255 - SHAPE, np.zeros_like(SHAPE)):
        image = large(np.full_like(SHAPE, gray))
        image.putalpha(large(alpha))
        images.append(ImageFile("drawing", content=saved(image, "PNG")).pixels())
    assert not torch.equal(images[0], images[1])
    assert (images[2] == 255).all()  # which shows nothing


def test_a_black_drawing_of_sixteen_bits_is_no_dark_photograph(tmp_path: Path) -> None:
    assert read(tmp_path, wide_png(2, [[0, 65535], [0, 0]]))[0].tolist() == [[0, 255]]


@pytest.mark.parametrize("kind", ["TGA", "BMP"])
def test_a_fourth_byte_that_is_not_used_hides_nothing(tmp_path: Path, kind: str) -> None:
    """Programs write zeros there, where a PNG file with them shows nothing."""
    image = large()
    image.putalpha(0)
    assert (centers(read(tmp_path, saved(image, kind))) == COLORS).all()
    assert (read(tmp_path, saved(image, "PNG")) == 255).all()


# orientation


def unchanged(pixels: np.ndarray) -> np.ndarray:
    return pixels


ORIENTATIONS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: unchanged,
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: np.transpose(pixels, (1, 0, 2)),
    6: lambda pixels: np.rot90(pixels, -1),  # the top of the picture is on the file's left
    7: lambda pixels: np.rot90(np.transpose(pixels, (1, 0, 2)), 2),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation(tmp_path: Path, orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read(tmp_path, saved(large(), kind, exif=exif))
    np.testing.assert_allclose(centers(image).astype(int), ORIENTATIONS[orientation](COLORS), atol=8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_is_told_once_with_the_name_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a longer name of a camera"
    exif[0x0112] = 6
    content = exif.tobytes()
    place = content.index(struct.pack(">HH", 0x010F, 2)) + 8
    damaged = content[:place] + b"\0\1\0\0" + content[place + 4 :]  # the name lies behind the end of the block
    for _ in range(2):
        # the orientation comes after the damage, and is lost
        image = read(tmp_path, saved(large(), kind, exif=damaged, quality=100))
        assert image.shape[1:] == (large().height, large().width)
    [line] = caplog.messages
    assert line.startswith(f"image {tmp_path}/image: damaged metadata, of which the rest is read (")


# JPEG, which isn't left to Pillow


def photo(width: int, height: int) -> Image.Image:
    """Part of a photograph, any size."""
    return Image.fromarray(load_sample_image("china.jpg")).resize((width, height), Image.Resampling.BICUBIC)


def pillow(content: bytes) -> np.ndarray:
    with Image.open(BytesIO(content)) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [20, 90])
def test_jpegs_are_pillows_to_the_bit(
    tmp_path: Path, mode: str, progressive: bool, subsampling: int, quality: int
) -> None:
    for size in ((101, 67), (64, 48), (1, 1), (9, 70)):
        content = saved(
            photo(*size).convert(mode), "JPEG", quality=quality, progressive=progressive, subsampling=subsampling
        )
        assert (read(tmp_path, content).permute(1, 2, 0).numpy() == pillow(content)).all()


def test_a_jpeg_that_holds_rgb(tmp_path: Path) -> None:
    content = saved(photo(40, 30), "JPEG", keep_rgb=True)
    assert (read(tmp_path, content).permute(1, 2, 0).numpy() == pillow(content)).all()


@pytest.mark.parametrize("junk", [b"\xff\xff", b"junk", b"\0" * 100])
def test_a_jpeg_that_only_pillow_puts_up_with(tmp_path: Path, junk: bytes) -> None:
    """Bytes that don't belong where they are: what Pillow makes of it is taken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = saved(photo(40, 30), "JPEG", exif=exif)
    first_segment_after_exif = content.index(b"\xff\xdb")
    for place in (2, first_segment_after_exif, len(content) - 2):
        damaged = content[:place] + junk + content[place:]
        try:
            expected = pillow(damaged)
        except (OSError, SyntaxError):
            continue
        assert (read(tmp_path, damaged).permute(1, 2, 0).numpy() == expected).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_part_of_an_image(tmp_path: Path, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "image").write_bytes(saved(photo(53, 41), kind, exif=exif))
    file = ImageFile(f"{tmp_path}/image")
    whole = read_image(f"{tmp_path}/image")
    assert whole.shape == (3, file.height, file.width)
    assert (file.height, file.width) == ((53, 41) if orientation > 4 else (41, 53))
    for box in (Box(0, 0, 1, 1), Box(5, 7, 30, 20), Box(0, 0, file.height, file.width), Box(file.height - 1, 2, 1, 9)):
        part = file.pixels(box)
        assert torch.equal(part, whole[:, box.top : box.top + box.height, box.left : box.left + box.width])
        assert part.permute(1, 2, 0).is_contiguous()


REDUCED = [
    ((300, 200), (300, 200), 1),
    ((300, 200), (151, 100), 1),
    ((300, 200), (150, 101), 1),
    ((300, 200), (150, 100), 2),
    ((303, 201), (150, 100), 2),
    ((303, 201), (75, 50), 4),
    ((303, 201), (37, 25), 8),
    ((303, 201), (1, 1), 8),
]


@pytest.mark.parametrize(("size", "at_least", "reduction"), REDUCED)
def test_a_jpeg_is_decoded_as_small_as_suffices(
    tmp_path: Path, size: tuple[int, int], at_least: tuple[int, int], reduction: int
) -> None:
    (height, width), image = size, photo(size[1], size[0])
    (tmp_path / "image").write_bytes(saved(image, "JPEG", quality=95))
    pixels = ImageFile(f"{tmp_path}/image").pixels(at_least=at_least)
    assert pixels.shape == (3, -(-height // reduction), -(-width // reduction))
    means = np.asarray(image.reduce(reduction), dtype=float)
    assert np.abs(pixels.permute(1, 2, 0).numpy() - means).mean() < 5
    (tmp_path / "image").write_bytes(saved(image, "PNG"))
    assert ImageFile(f"{tmp_path}/image").pixels(at_least=at_least).shape == (3, height, width)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_part_of_a_reduced_image(tmp_path: Path, orientation: int) -> None:
    """On the edges of decoded pixels it is their part; elsewhere it is off by less than one of them."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "image").write_bytes(saved(photo(401, 300), "JPEG", exif=exif))
    file = ImageFile(f"{tmp_path}/image")
    reduced = file.pixels(at_least=(file.height // 4, file.width // 4))
    assert torch.equal(file.pixels(Box(40, 80, 200, 160), (50, 40)), reduced[:, 10:60, 20:60])
    assert torch.equal(file.pixels(Box(41, 79, 202, 161), (50, 40)), reduced[:, 10:61, 20:60])
    assert file.pixels(Box(40, 80, 199, 160), (50, 40)).shape == (3, 100, 80)  # one row too few: at half the size


# archives


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_of_an_archive(tmp_path: Path, compression: int) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w", compression) as archive:
        archive.writestr("images/a b/1.png", saved(large(), "PNG"))
        archive.writestr("2.png", saved(large(255 - COLORS), "PNG"))
    assert (centers(read_image(f"{tmp_path}/set.zip/images/a b/1.png")) == COLORS).all()
    assert (centers(read_image(f"{tmp_path}/set.zip/2.png")) == 255 - COLORS).all()
    with pytest.raises(InputError, match=r"image .*set\.zip/3\.png: no such file"):
        read_image(f"{tmp_path}/set.zip/3.png")


def test_an_archive_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    for colors in (COLORS, 255 - COLORS):
        with zipfile.ZipFile(tmp_path / "new.zip", "w") as archive:
            archive.writestr("1.png", saved(large(colors), "PNG"))
        (tmp_path / "new.zip").rename(tmp_path / "set.zip")
        assert (centers(read_image(f"{tmp_path}/set.zip/1.png")) == colors).all()


def test_a_folder_that_is_called_as_an_archive(tmp_path: Path) -> None:
    (tmp_path / "set.zip").mkdir()
    assert (centers(read(tmp_path, saved(large(), "PNG"), "set.zip/1.png")) == COLORS).all()
    with pytest.raises(InputError, match=r"image .*set\.zip/2\.png: "):
        read_image(f"{tmp_path}/set.zip/2.png")


# errors


def fails(path: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_image(path)
    assert str(raised.value).startswith(f"image {path}: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["none.jpg", "none.zip/1.jpg", "folder/none.jpg"])
def test_missing(tmp_path: Path, name: str) -> None:
    fails(f"{tmp_path}/{name}", "no such file (data.on_corrupt=skip")
    with pytest.raises(MissingImageError):
        ImageFile(f"{tmp_path}/{name}")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("kept", [0, 5, 30, 0.5])
def test_truncated(tmp_path: Path, kind: str, kept: float) -> None:
    rng = np.random.default_rng(0)
    content = saved(Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)), kind)
    path = tmp_path / "image"
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    fails(str(path), "cannot be decoded (")


def test_any_damage_to_the_file_is_an_input_error(tmp_path: Path) -> None:
    """Decoders raise struct.error, EOFError, IndexError and others, depending on the byte."""
    rng = np.random.default_rng(0)
    pixels = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    for kind in ("JPEG", "PNG", "TIFF", "GIF", "WEBP"):
        content = saved(pixels, kind)
        for _ in range(150):
            damaged = bytearray(content)
            for place in rng.integers(0, min(len(content), 150), 3):
                damaged[place] = rng.integers(0, 256)
            path = tmp_path / "image"
            path.write_bytes(damaged)
            with suppress(InputError):  # nothing else
                assert read_image(str(path)).shape[0] == 3


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"<html>404 Not Found</html>", "not an image that Pillow can read"),
        *((saved(NOISE, kind)[:1000], "image file is truncated") for kind in ("JPEG", "BMP", "PPM", "PNG")),
        (b"P6 40 1x 255 ", "damaged, or stored in a way that isn't read"),
    ],
)
def test_the_reason_is_in_words(tmp_path: Path, content: bytes, reason: str) -> None:
    """Neither names of Python's classes nor addresses in memory."""
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError) as raised:
        read_image(str(path))
    told = raised.value.reason
    assert told.partition(" (")[0] == reason  # in brackets stands how many bytes were left
    assert str(raised.value) == f"image {path}: cannot be decoded ({told}) (data.on_corrupt=skip leaves it out)"
    assert pickle.loads(pickle.dumps(raised.value)).reason == told  # as from a worker


@pytest.mark.parametrize(
    ("value", "offset", "reason"),
    [(1, 8, "the archive is encrypted"), (77, 10, "the archive has a compression that isn't read")],
)
def test_archives_that_cannot_be_unpacked(tmp_path: Path, value: int, offset: int, reason: str) -> None:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("1.png", saved(NOISE, "PNG"))
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\1\2")
    content[entry + offset] = content[offset - 2] = value  # in the directory, and in front of the member
    path.write_bytes(content)
    fails(f"{path}/1.png", f"cannot be decoded ({reason})")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_of_an_archive(tmp_path: Path, compression: int) -> None:
    path, content = tmp_path / "damaged.zip", saved(large(), "BMP")
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("1.bmp", content)
    damaged = bytearray(path.read_bytes())
    damaged[40:60] = bytes(range(200, 220))
    path.write_bytes(damaged)
    fails(f"{path}/1.bmp", "cannot be decoded (")
