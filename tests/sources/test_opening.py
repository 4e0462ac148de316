"""Every kind of storage gives the same samples, in the same order, each under its own place."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import re
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from brimful.errors import BadSampleError, MissingExtraError, SettingsError, SourceError, SourceNotFoundError
from brimful.sources import Sample, open_source
from brimful.sources.opening import FILE_TYPES
from tests.sources import tools

TEXTS = ["one", "zwei, é", "三\u2028☃"]
ROWS = [{"text": text} for text in TEXTS]
LINES = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS]
JSONL = b"".join(LINES)
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def _file(name, data):
    def make(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    return make


def _files(given, **contents):
    """Several files; ``given`` makes of their folder what ``open_source`` gets."""

    def make(folder):
        for name, data in contents.items():
            _file(name.replace("__", "/").replace("_", "."), data)(folder)
        return given(folder)

    return make


def _parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "a.parquet", row_group_size=2)
    return folder / "a.parquet"


def _dataset(folder):
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    return datasets.Dataset.from_list(ROWS)


def _saved(folder):
    _dataset(folder).save_to_disk(folder / "saved")
    return folder / "saved"


STORAGES = {
    "a list": (lambda folder: ROWS, "memory[1]"),
    "a list of texts": (lambda folder: TEXTS, "memory[1]"),
    "jsonl": (_file("a.jsonl", JSONL), "{}/a.jsonl:2"),
    "ndjson": (_file("a.ndjson", JSONL), "{}/a.ndjson:2"),
    "upper case": (_file("A.JSONL", JSONL), "{}/A.JSONL:2"),
    "gzip": (_file("a.jsonl.gz", gzip.compress(JSONL)), "{}/a.jsonl.gz:2"),
    "gzip of several members": (_file("a.jsonl.gz", b"".join(map(gzip.compress, LINES))), "{}/a.jsonl.gz:2"),
    "zstd": (_file("a.jsonl.zst", zstandard.compress(JSONL)), "{}/a.jsonl.zst:2"),
    "bzip2": (_file("a.jsonl.bz2", bz2.compress(JSONL)), "{}/a.jsonl.bz2:2"),
    "json lines called json": (_file("a.json", JSONL), "{}/a.json:2"),
    "parquet": (_parquet, "{}/a.parquet: row 1"),
    "a tar": (
        lambda folder: tools.tar_of(
            folder / "a.tar", dict(zip(("a.json", "b.json", "c.txt"), [*LINES[:2], TEXTS[2]], strict=True))
        ),
        "{}/a.tar: b",
    ),
    "a directory of pairs": (
        _files(lambda folder: folder, **{f"output_0000000{index}_json": line for index, line in enumerate(LINES)}),
        None,
    ),
    "a dataset": (_dataset, "datasets.Dataset: row 1"),
    "a saved dataset": (_saved, "{}/saved: row 1"),
    "lines of text": (_file("a.txt", "\n".join(TEXTS).encode()), "{}/a.txt:2"),
    "packed lines of text": (_file("a.txt.gz", gzip.compress("\n".join(TEXTS).encode())), "{}/a.txt.gz:2"),
    "a text": (
        _files(
            lambda folder: [folder / f"{name}.txt" for name in "abc"],
            **dict(zip(("a_txt", "b_txt", "c_txt"), [text.encode() for text in TEXTS], strict=True)),
        ),
        "{}/b.txt",
    ),
    "a directory of texts": (
        _files(lambda folder: folder, b__c_md=TEXTS[1].encode(), c_txt=TEXTS[2].encode(), a_rst=TEXTS[0].encode()),
        None,
    ),
    "a directory of lines": (
        _files(lambda folder: folder, a_jsonl=LINES[0], b_jsonl=b"".join(LINES[1:])),
        "{}/b.jsonl:1",
    ),
    "a pattern": (
        _files(lambda folder: f"{folder}/s-*.jsonl", **{"s-1_jsonl": LINES[0], "s-2_jsonl": b"".join(LINES[1:])}),
        "{}/s-2.jsonl:1",
    ),
    "a list of paths": (
        _files(lambda folder: [folder / "b.jsonl", folder / "a.jsonl"], b_jsonl=LINES[0], a_jsonl=b"".join(LINES[1:])),
        "{}/a.jsonl:1",
    ),
    "an empty file between": (
        _files(
            lambda folder: [folder / f"{name}.jsonl" for name in "abc"],
            a_jsonl=LINES[0],
            b_jsonl=b"",
            c_jsonl=b"".join(LINES[1:]),
        ),
        "{}/c.jsonl:1",
    ),
}


@pytest.mark.parametrize("name", STORAGES)
def test_a_storage_gives_these_samples(name, tmp_path):
    """Without it a data set would pack other samples, or name another place, because of how it is stored."""
    make, second = STORAGES[name]
    source = open_source(make(tmp_path), text_unit="line" if "lines of text" in name else "file")
    expected = [Sample(index, text=text) for index, text in enumerate(TEXTS)]
    assert list(source.read(0, 3)) == expected
    assert [source[index] for index in (2, 0, 1)] == [expected[2], expected[0], expected[1]]
    assert list(source.read(1, 2)) == expected[1:2]
    assert (len(source), source.format_name) == (3, "text")
    assert sum(len(block) for block in source.blocks) == 3
    if second is not None:
        assert source.where(1) == second.format(tmp_path)


def test_a_remote_file_is_read_as_a_local_one():
    """Without it a URL would need a download by hand."""
    import fsspec

    url = f"memory://{uuid.uuid4().hex}/a.jsonl.gz"
    with fsspec.open(url, "wb") as file:
        file.write(gzip.compress(JSONL))
    source = open_source(url)
    assert [sample.text for sample in source.read(0, 3)] == TEXTS
    assert source.where(1) == f"{url}:2"
    with pytest.raises(SourceNotFoundError, match="no such file"):
        open_source("memory://nowhere/a.jsonl")


@pytest.mark.parametrize("given", ["file", "directory", "pattern", "list of paths", "list of names", "packed file"])
def test_a_document_is_the_same_however_its_file_is_named(given, put, tmp_path):
    """Without it a book given as a file is packed as unrelated lines, and in a directory as one document."""
    text = "one\r\n\ntwo\u2028\n"
    path = put("a.txt", text)
    data = {
        "file": path,
        "directory": tmp_path,
        "pattern": f"{tmp_path}/*.txt",
        "list of paths": [Path(path)],
        "list of names": [path],
        "packed file": put("packed/a.txt.gz", gzip.compress(text.encode())),
    }[given]
    if given == "directory":
        (tmp_path / "packed" / "a.txt.gz").unlink()
    source = open_source(data)
    assert ([sample.text for sample in source.read(0, len(source))], source.unit) == ([text], "one document a file")
    lines = open_source(data, text_unit="line")
    assert ([sample.text for sample in lines.read(0, 2)], lines.unit) == (["one", "two\u2028"], "one document a line")


def test_a_byte_order_mark_is_no_part_of_a_document(put):
    """Without it a file from Windows would begin with an invisible token, by file and not by line."""
    path = put("a.txt", b"\xef\xbb\xbfone\n")
    assert open_source(path, text_unit="line")[0] == Sample(0, text="one")
    assert open_source(path)[0] == Sample(0, text="one\n")


def test_a_directory_of_texts_by_lines_if_asked(put, tmp_path):
    """Without it a directory of line files could only be read as whole documents."""
    put("a.txt", "one\ntwo\n")
    put("b.txt", "three")
    source = open_source(tmp_path, text_unit="line")
    assert [sample.text for sample in source.read(0, 3)] == ["one", "two", "three"]
    assert source.where(2) == f"{tmp_path}/b.txt:1"


def test_invalid_utf8_in_a_document_names_its_file(put, tmp_path):
    """Without it a Latin-1 file would end the job with a traceback."""
    put("a.txt", "fine")
    bad = put("b.txt", b"caf\xe9 au lait")
    errors = list(open_source(tmp_path).read(0, 2))
    assert errors[0] == Sample(0, text="fine")
    assert str(errors[1]) == f"{bad} (sample 1): invalid UTF-8 at byte 3 (invalid continuation byte)"


@pytest.mark.parametrize("data", ["no.jsonl", "no/such/dir/*.jsonl", Path("no.parquet")])
def test_nothing_there_names_the_path(data):
    """Without it a typing error would end in a traceback of another library."""
    with pytest.raises(SourceNotFoundError) as caught:
        open_source(data)
    assert str(caught.value).startswith(f"{data}: no ")


def test_a_directory_without_data_is_refused(put, tmp_path):
    """Without it an empty directory would look like an empty data set."""
    put(".hidden.jsonl", JSONL)
    put("picture.png", b"\x89PNG")
    with pytest.raises(SourceNotFoundError) as caught:
        open_source(tmp_path)
    assert str(caught.value) == f"{tmp_path}: no file in it is JSON lines or JSON or Parquet or a tar or text"


def test_a_directory_of_several_kinds_is_refused(put, tmp_path):
    """Without it data that lies there in two forms would be packed twice."""
    put("a.txt", "text")
    put("a.jsonl", JSONL)
    with pytest.raises(SettingsError) as caught:
        open_source(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} mixes files of several kinds (lines, text): name some by a pattern, such as '{tmp_path}/*.jsonl'"
    )


@pytest.mark.parametrize(("data", "kind"), [(None, "NoneType"), (7, "int"), ({"text": "a"}, "dict")])
def test_what_is_no_source_is_refused(data, kind):
    """Without it one row given instead of a list of rows would fail somewhere deep inside."""
    with pytest.raises(SettingsError) as caught:
        open_source(data)
    assert str(caught.value) == (
        f"a source is a path, a list of rows, a DataFrame or a data set of datasets, not {kind}"
    )


@pytest.mark.parametrize("data", [b"", b"\n\r\n\n"])
def test_an_empty_file_is_refused(put, data):
    """Without it an empty file would pass until the planner finds nothing to pack."""
    path = put("a.jsonl", data)
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path} is empty: it has no sample to pack"


def test_an_empty_list_is_refused():
    """Without it no rows in memory would have no format and a confusing error."""
    with pytest.raises(SourceError, match="memory is empty: it has no sample to pack"):
        open_source([])


def test_a_dataset_of_several_splits_names_them(tmp_path):
    """Without it the user would not learn which directory to name."""
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
    both.save_to_disk(tmp_path / "saved")
    for data, title in ((tmp_path / "saved", f"{tmp_path}/saved"), (both, "a DatasetDict")):
        with pytest.raises(SettingsError) as caught:
            open_source(data)
        assert str(caught.value) == f'{title} holds several splits (train, test): name one with split="train"'
        assert [sample.text for sample in open_source(data, split="test").read(0, 3)] == TEXTS
        with pytest.raises(SourceNotFoundError, match=r"no such split \(it has train, test\)"):
            open_source(data, split="eval")
    assert [sample.text for sample in open_source(tmp_path / "saved" / "test").read(0, 3)] == TEXTS


def test_a_missing_extra_prints_its_install_line(put, tmp_path, monkeypatch):
    """Without it the user of a saved dataset would only see No module named 'datasets'."""
    put("saved/dataset_info.json", "{}")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'brimful\[huggingface\]'"):
        open_source(tmp_path / "saved")


def test_a_broken_archive_says_which_codec_failed(put):
    """Without it a half-downloaded file would be packed up to where it ends, or fail without its name."""
    whole = gzip.compress(b"".join(LINES * 1000), mtime=0)
    cut = put("cut.jsonl.gz", whole[: len(whole) // 2])
    fake = put("fake.jsonl.zst", b"this is no zstd")
    for path, codec in ((cut, "gzip"), (fake, "zstd")):
        with pytest.raises(SourceError) as caught:
            open_source(path)
        assert str(caught.value).startswith(f"{path} cannot be unpacked as {codec}: ")


def test_a_file_that_is_no_parquet_says_so(put):
    """Without it the error would be Arrow's and name no file."""
    path = put("a.parquet", b"x" * 100)
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert str(caught.value).startswith(f"{path} is not a Parquet file: ")


def test_a_json_array_is_rows(put):
    """Without it the most common form of small data sets could not be opened."""
    path = put("a.json", json.dumps(ROWS, indent=2))
    assert [sample.text for sample in open_source(path).read(0, 3)] == TEXTS


def test_a_json_array_names_no_wrong_line(put):
    """Without it the user would look for the bad row on a line that holds another one."""
    path = put("a.json", json.dumps([{"text": "a"}, {"tex": "b"}], indent=2))
    assert Path(path).read_text().splitlines()[1] == "  {"  # line 2 belongs to the first row
    with pytest.raises(BadSampleError) as caught:
        _ = open_source(path)[1]
    assert caught.value.where != f"{path}:2"


def test_broken_json_names_the_line(put):
    """Without it a missing comma in a big file could not be found."""
    path = put("a.json", '[\n{"text": "a"}\n{"text": "b"}]')
    with pytest.raises(BadSampleError) as caught:
        open_source(path)
    assert str(caught.value) == f"{path}:3 (sample 1): not JSON: Expecting ',' delimiter at column 1"


def test_a_json_array_that_is_nested_too_deeply_is_the_files_fault(put):
    """Without it a hostile file would end the program with a RecursionError."""
    path = put("a.json", "[" * 100_000)
    with pytest.raises(SourceError, match=r"a\.json"):
        open_source(path)


def test_a_newer_original_replaces_the_unpacked_copy(put, tmp_path):
    """Without it an updated archive would be read as it was, or the cache would grow with every update."""
    cache = tmp_path / "cache"
    path = put("a.jsonl.gz", gzip.compress(JSONL))
    assert len(open_source(path, cache_dir=cache)) == 3
    put("a.jsonl.gz", gzip.compress(b"".join(LINES[:2])))
    assert len(open_source(path, cache_dir=cache)) == 2
    assert len(list((cache / "unpacked").glob("*.jsonl"))) == 1


def test_an_unpacked_copy_is_made_once(put, tmp_path, monkeypatch):
    """Without it every rank of a job would unpack the archive again."""
    from brimful.sources import copies

    path = put("a.jsonl.gz", gzip.compress(JSONL))
    open_source(path)
    monkeypatch.setattr(copies, "_opened", lambda path: pytest.fail("unpacked again"))
    assert [sample.text for sample in open_source(path).read(0, 3)] == TEXTS


@pytest.mark.parametrize("ending", [ending for kind in FILE_TYPES.values() for ending in kind.endings])
def test_every_ending_is_in_the_docs_and_has_a_case(ending):
    """A kind of file that no page names is never given; one without a case names no place in its errors."""
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
    table = page[: page.index("\n## What rows look like")]
    assert f"{ending}`" in table, f"the table of docs/sources.md lacks {ending}"
    endings = {Path(place).suffix.partition(":")[0] for _, place in STORAGES.values() if place is not None}
    same_kind = next(set(kind.endings) for kind in FILE_TYPES.values() if ending in kind.endings)
    assert same_kind & endings, f"STORAGES has no file of kind {same_kind}"
    assert any(re.search(rf"{re.escape(other)}\b", open_source.__doc__ or "") for other in same_kind)


def test_names_of_files_are_files_and_texts_are_texts(put: tools.Put) -> None:
    """Without it two paths in a list would be packed as two documents of a few letters."""
    first, second = put("a.jsonl", tools.JSONL), put("b.jsonl", '{"text": "four"}\n')
    assert tools.texts(open_source([first, second])) == ["one", "two", "three", "four"]
    assert tools.texts(open_source(["a text", "another"])) == ["a text", "another"]
    with pytest.raises(SourceNotFoundError, match=r"no\.jsonl: no such file"):
        open_source([first, "no.jsonl"])


@pytest.mark.parametrize("name", ["tests", "notes", "no_ending.jsonl.d"])
def test_a_word_that_is_the_name_of_a_directory_is_a_text_among_texts(
    name: str, put: tools.Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which directory a list of texts is opened must not decide what it is."""
    path = Path(put(f"{name}/a.jsonl", tools.JSONL))
    monkeypatch.chdir(path.parent.parent)
    for texts in (["0", name], [name, "0"], ["a text", *["b"] * 99, name]):
        assert tools.texts(open_source(texts)) == texts
    for paths in ([name], [name, name], [Path(name), name], [str(path.parent), name]):
        assert len(open_source(paths)) == 3 * len(paths)
    for missing in ([Path(name), "0"], [f"{name}/a.jsonl", "0"], [name, Path("0")], [f"./{name}", "0"]):
        with pytest.raises(SourceNotFoundError, match="0: no such file"):
            open_source(missing)


def test_sources_of_different_formats_stand_side_by_side(put: tools.Put) -> None:
    """Without it chats and texts that are trained together would have to be rewritten to one format."""
    paths = [
        put("chats.jsonl", json.dumps({"messages": CHAT}) + "\n"),
        put("more.jsonl", json.dumps({"messages": CHAT}) + "\n"),
        put("text.txt", "a document"),
        put("pairs.json", json.dumps([{"question": "q", "answer": "a"}])),
    ]
    source = open_source(paths)
    assert source.format_name == "messages and text and question_answer"
    assert [sample.kind for sample in source.read(0, 4)] == ["chat", "chat", "text", "chat"]
    assert [source[index].kind for index in (3, 2, 0)] == ["chat", "text", "chat"]
    assert tools.texts(pickle.loads(pickle.dumps(source))) == [None, None, "a document", None]
    alone = open_source(paths[3])
    assert source.blocks[3].fingerprint == alone.blocks[0].fingerprint  # so that its lengths are found again


def test_sources_that_are_open_are_chained_with_their_own_options(put: tools.Put) -> None:
    """Without it two files with different keys for the same thing could not be packed together."""
    one = open_source([{"body": "a"}], format="text", fields={"text": "body"})
    other = open_source(put("b.jsonl", json.dumps({"messages": CHAT, "label": True}) + "\n"), ignore=["label"])
    source = open_source([one, other])
    assert (source[0].text, source[1].messages, source.format_name) == ("a", CHAT, "text and messages")
    assert open_source(one) is one
    with pytest.raises(SettingsError, match="open sources take no further options"):
        open_source(one, format="text")


def test_the_first_samples_are_a_source_of_their_own(put: tools.Put) -> None:
    """Without it a trial run would read all of a large data set."""
    paths = [put("a.jsonl", tools.JSONL), put("b.jsonl", '{"text": "four"}\n')]
    source = open_source(paths, max_samples=2)
    assert (tools.texts(source), source.rows.members) == (["one", "two"], [(paths[0], 2)])
    assert tools.texts(open_source(paths, max_samples=4)) == ["one", "two", "three", "four"]
    assert open_source(paths, max_samples=9).fingerprint == open_source(paths).fingerprint
    assert source.fingerprint != open_source(paths, max_samples=3).fingerprint
    whole = open_source(paths[0])
    assert [(block.start, block.stop) for block in source.blocks] == [(0, 2)]
    assert source.blocks[0].fingerprint != whole.blocks[0].fingerprint  # two of three rows are another block
    assert open_source(paths, max_samples=4).blocks[0].fingerprint == whole.blocks[0].fingerprint  # found again
    with pytest.raises(SettingsError, match="max_samples must be at least 1 and is 0"):
        open_source(paths, max_samples=0)


class Indexed:
    """A data set as PyTorch's are: only an index and a length."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def test_a_data_set_with_an_index():
    """Rows of tensors are rows of numbers; pixels would be left out of packs of tokens, and are refused."""
    source = open_source(Indexed([{"input_ids": np.array([5, 6]), "labels": np.array([-100, 6])}] * 2))
    assert (source.format_name, source.title, source[1].input_ids, source[1].labels) == (
        "tokens",
        "Indexed",
        [5, 6],
        [-100, 6],
    )
    assert source.begins_with(1, open_source([{"input_ids": [5, 6], "labels": [-100, 6]}]).fingerprint)
    assert open_source(Indexed(["a text"]))[0].text == "a text"
    with pytest.raises(SourceError, match=r"Indexed: 'pixel_values' has shape \(4, 8\).*PackedDataset\.wrap"):
        open_source(Indexed([{"input_ids": [5], "pixel_values": np.ones((4, 8))}]))
