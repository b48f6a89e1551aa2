"""Images in files of any type that Pillow reads."""

import io
import re

from PIL import Image, ImageOps, UnidentifiedImageError

from moray.errors import UserError, first_line

# Pixels of these modes have more than 8 bits.
_DEEP = ("I", "F")
# Pillow reads colours of 16 bits too, but keeps 8 of them; this is in its names for how they lie in
# files. In BMP, 16 bits are those of three colours together.
_OF_16_BITS = re.compile("(?<!BGR);16")
# Types of files that can have several images, of which the first one is read. Others, such as MPO,
# have previews behind it.
_OF_SEVERAL = ("GIF", "PNG", "TIFF", "WEBP")


def decode_image(content: bytes, place: str) -> Image.Image:
    """Decode an image; it is turned upright if its metadata says so. Errors name the place.

    Raises:
        UserError: if it can't be decoded, or has more than 8 bits per channel.
    """
    try:
        original = Image.open(io.BytesIO(content))
        layout = str(getattr(original, "tile", ""))
        image = ImageOps.exif_transpose(original)
        image.load()
    # Decoders raise many kinds of errors for damaged files.
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no image of a type that Pillow reads" if unknown else first_line(error)
        problem = "the file is empty" if not content else f"can't read the image ({reason})"
        raise UserError(place, problem, "replace the file or remove it") from error
    if image.mode.startswith(_DEEP) or _OF_16_BITS.search(layout):
        raise UserError(
            place,
            f"got pixels of more than 8 bits (Pillow's mode {image.mode}), expected 8",
            "convert the image",
        )
    return image


def has_several(content: bytes) -> bool:
    """Whether a file that can be decoded has several frames or pages."""
    image = Image.open(io.BytesIO(content))
    return image.format in _OF_SEVERAL and bool(getattr(image, "is_animated", False))


def as_png(image: Image.Image) -> bytes:
    """Encode an image as PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
