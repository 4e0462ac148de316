"""A tar of a few kilobytes costs a line, whatever its headers state."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from brimful.errors import BrimfulError
from brimful.sources import open_source


def header(kind: bytes, size: int) -> bytes:
    """A header of a kind with any size, its sum right."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    # As GNU writes numbers above eight octal digits, and negative ones.
    block[124:136] = (b"\x80" if size >= 0 else b"\xff") + (size % (1 << 88)).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def record(key: str, value: str) -> bytes:
    """A record of an extended header, which begins with its own length."""
    body = f" {key}={value}\n".encode()
    return next(
        record for digits in range(1, 9) if len(record := b"%d%s" % (len(body) + digits, body)) == len(body) + digits
    )


def extended(kind: bytes, content: bytes) -> bytes:
    return header(kind, len(content)) + padded(content)


RECORDS = [
    *[("size", value) for value in ("8589934592", "-1024", "1" * 20, "1" * 5_000, "x")],
    *[("GNU.sparse.map", value) for value in ("1,2,3", "x")],
    *[("GNU.sparse.offset", "x"), ("GNU.sparse.size", "1"), ("mtime", "nan"), ("hdrcharset", "xyz"), ("path", "x\0y")],
]
SIZES = (8 << 30, 1 << 40, (1 << 87) - 1, -1024, -1, 1 << 20)
SPARSE = record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0")
HEADERS = {
    **{
        f"{kind!r} of {size}": header(kind, size) + padded(b"abc")
        for kind in (b"L", b"K", b"x", b"g", b"S", b"0")
        for size in SIZES
    },
    **{
        f"{kind!r} {key}={value[:9]}": extended(kind, record(key, value))
        for kind in (b"x", b"g")
        for key, value in RECORDS
    },
    **{f"{kind!r} 900 times": extended(kind, record("a", "b")) * 900 for kind in (b"L", b"x")},
    **{f"record {text!r}": extended(b"x", text) for text in (b"0 a=b\n", b"5 a=", b"99999999999999 a=b\n", b"abc")},
    "a map of a sparse member without an end": extended(b"x", SPARSE),
}


@pytest.mark.parametrize("first", ["a.txt", "ps_000001.json"])
def test_what_a_header_states_is_not_believed(first: str, tmp_path: Path) -> None:
    """A hostile header before a member, after it, and at the end: read or refused, in memory for a few kilobytes.

    Without bounds one of 8 GB is read at once, a negative size leads back for ever, and numbers raise what they like.
    """
    resource = pytest.importorskip("resource")
    member = tarfile.TarInfo(first)
    member.size = 5
    plain = member.tobuf() + padded(b"hello")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    refused: dict[Path, str] = {}
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), limits[1]))
    try:
        for number, hostile in enumerate(HEADERS.values()):
            for place, content in enumerate(
                (hostile + plain + bytes(1024), plain + hostile + plain + bytes(1024), plain + hostile)
            ):
                path = tmp_path / f"{number}-{place}.tar"
                path.write_bytes(content)
                try:
                    source = open_source(path)
                    list(source.read(0, len(source)))
                except BrimfulError as error:
                    refused[path] = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(refused) > len(HEADERS)
    assert [reason for path, reason in refused.items() if str(path) not in reason] == []
