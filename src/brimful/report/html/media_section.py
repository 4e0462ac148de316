"""The media of a store on the page: counts by kind, the largest, and where the bytes are."""

from brimful.messages import size_of, whole
from brimful.report.html.markup import Column, paragraph, section, table_of
from brimful.shards import KindCount, MediaCensus

_UNKNOWN = "–"


def media_section(media: MediaCensus) -> str:
    """Return the census of media, one kind a row."""

    def largest(count: KindCount) -> str:
        medium = count.largest
        return _UNKNOWN if medium is None else f"{medium.name!r} of sample {medium.sample}: {medium.tokens:,} tokens"

    columns: list[Column[tuple[str, KindCount]]] = [
        ("kind", lambda row: row[0]),
        ("in packs", lambda row: whole(row[1].count)),
        ("distinct", lambda row: _number(row[1].distinct)),
        ("bytes", lambda row: size_of(row[1].bytes)),
        ("tokens", lambda row: _number(row[1].tokens)),
        ("patches", lambda row: _number(row[1].patches)),
        ("frames", lambda row: _number(row[1].frames)),
        ("columns of spectrograms", lambda row: _number(row[1].mel_frames)),
        ("largest", lambda row: largest(row[1])),
    ]
    words = f"Their bytes: {'; '.join(media.places())}."
    return section("media", "Images, videos and audio", paragraph(words), table_of(columns, list(media.kinds.items())))


def _number(count: int | None) -> str:
    return _UNKNOWN if count is None else whole(count)
