"""Pictures of every format, mode and orientation, made in memory: 6 wide and 4 high before they are turned."""

import io
import struct
import zlib

from PIL import Image

MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["L", "RGB", "CMYK"],
    "TIFF": ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["1", "L", "P"],
    "BMP": ["1", "L", "P", "RGB"],
    "PPM": ["1", "L", "RGB"],
    "ICO": ["RGBA"],
    "TGA": ["RGB"],
    "MPO": ["RGB"],
}

XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def exif(orientation):
    data = Image.Exif()
    data[0x0112] = orientation
    return data.tobytes()


def picture(format="PNG", mode="RGB", size=(6, 4), **options):
    """Bytes of a picture."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, format, **options)
    return file.getvalue()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def behind_the_pixels(png, *chunks):
    """A PNG with more chunks before its last one."""
    return png[:-12] + b"".join(chunks) + png[-12:]


def animation(format, **options):
    """Three frames of which the second is smaller."""
    frames = [Image.new("RGB", (6, 4), color) for color in ("red", "green", "blue")]
    file = io.BytesIO()
    frames[0].save(file, format, save_all=True, append_images=frames[1:], duration=10, **options)
    return file.getvalue()


def turned_pictures():
    """Pairs of a name and the bytes: each orientation, in each place where Pillow finds one."""
    for orientation in range(10):
        for format in ("JPEG", "PNG", "WEBP", "TIFF", "MPO"):
            yield f"{format}-exif-{orientation}", picture(format, exif=exif(orientation))
        xmp = XMP.format(orientation).encode()
        for format in ("JPEG", "WEBP"):
            yield f"{format}-xmp-{orientation}", picture(format, xmp=xmp)
        yield f"TIFF-xmp-{orientation}", picture("TIFF", tiffinfo={700: xmp})
        if orientation in range(1, 9):
            yield f"TIFF-lzw-{orientation}", picture("TIFF", exif=exif(orientation), compression="tiff_lzw")
        text = b"XML:com.adobe.xmp\0\0\0\0\0" + xmp
        raw = b"\nexif\n%8d\n%s\n" % (len(exif(orientation)), exif(orientation).hex().encode())
        for place, chunk in {
            "eXIf": png_chunk(b"eXIf", exif(orientation)[6:]),
            "iTXt": png_chunk(b"iTXt", text),
            "tEXt": png_chunk(b"tEXt", b"Raw profile type exif\0" + raw),
            "zTXt": png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw)),
        }.items():
            yield f"PNG-behind-{place}-{orientation}", behind_the_pixels(picture(), chunk)
        yield (
            f"PNG-both-{orientation}",
            behind_the_pixels(picture(exif=exif(6)), png_chunk(b"eXIf", exif(orientation)[6:])),
        )
        yield (
            f"APNG-behind-{orientation}",
            behind_the_pixels(animation("PNG"), png_chunk(b"eXIf", exif(orientation)[6:])),
        )


def plain_pictures():
    """Pairs of a name and the bytes: each format with each mode that it has, and animations."""
    for format, modes in MODES.items():
        for mode in modes:
            yield f"{format}-{mode}", picture(format, mode)
    for format in ("GIF", "PNG", "WEBP", "TIFF"):
        yield f"{format}-animated", animation(format)
    yield "APNG-default-image", animation("PNG", default_image=True)
    yield "ICO-two-sizes", picture("ICO", "RGBA", (64, 64), sizes=[(16, 16), (64, 64)])
    yield "ICNS", picture("ICNS", "RGBA", (64, 64))
    yield "JPEG-progressive", picture("JPEG", progressive=True)
    yield "PNG-interlaced-text", behind_the_pixels(picture(), png_chunk(b"tEXt", b"date\0today"))
