import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from pictures import colours
from PIL import Image

from moray.errors import UserError
from moray.tasks.images.image_files import as_png, decode_image


def test_an_image_survives_being_written() -> None:
    image = colours(5, 7)
    assert np.array_equal(np.asarray(decode_image(as_png(image), "x")), np.asarray(image))


def test_an_image_is_turned_upright() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    colours(4, 8).save(file, "PNG", exif=exif)
    assert decode_image(file.getvalue(), "x").size == (4, 8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"no image at all", "can't read the image (no image of a type that Pillow reads)"),
        (as_png(colours(64, 64))[:2000], "can't read the image ("),
        (as_png(colours(64, 64))[:20], "can't read the image ("),
    ],
)
def test_a_broken_image_costs_one_line_with_its_name(content: bytes, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        decode_image(content, "photos/cat/3.png")
    assert str(caught.value).startswith(f"photos/cat/3.png: {problem}")
    assert "\n" not in str(caught.value)


def test_images_of_more_than_eight_bits_are_refused() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(file, "PNG")
    with pytest.raises(UserError, match="more than 8 bits"):
        decode_image(file.getvalue(), "deep.png")


@pytest.mark.parametrize("mode", ["rgb", "rgba"])
def test_colours_of_sixteen_bits_are_refused_too(mode: str) -> None:
    """Pillow keeps the upper half of each, which can be nearly black."""
    channels = len(mode)
    header = struct.pack(">IIBBBBB", 2, 2, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    row = b"\0" + struct.pack(f">{2 * channels}H", *[3000] * 2 * channels)
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(row * 2)), (b"IEND", b"")):
        check = zlib.crc32(kind + data)
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
    assert Image.open(io.BytesIO(file)).mode == mode.upper()
    with pytest.raises(UserError, match="more than 8 bits"):
        decode_image(file, "deep.png")


def test_three_colours_in_sixteen_bits_are_none_of_sixteen() -> None:
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    info = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 16, 3, 8, 0, 0, 0, 0) + masks
    header = b"BM" + struct.pack("<IHHI", 14 + len(info) + 8, 0, 0, 14 + len(info))
    image = decode_image(header + info + struct.pack("<4H", *[0xF800] * 4), "small.bmp")
    assert np.asarray(image.convert("RGB")).max(axis=(0, 1)).tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "L", "CMYK"])
def test_images_of_all_modes_are_read(mode: str, tmp_path: Path) -> None:
    suffix = "tiff" if mode == "CMYK" else "png"
    colours(4, 4).convert(mode).save(tmp_path / f"x.{suffix}")
    image = decode_image((tmp_path / f"x.{suffix}").read_bytes(), "x")
    assert image.convert("RGB").size == (4, 4)
