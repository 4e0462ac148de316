"""Measuring gives the length of every sample, once: a second run asks only for what is new."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from brimful.base.progress import Progress
from brimful.encode.encoded import StoredSamples
from brimful.errors import BadSampleError, CacheMismatchError, SettingsError
from brimful.measure import LengthTable, block_task, job, measure_lengths
from brimful.measure.measure_settings import MeasureSettings
from brimful.sources import line_index, open_source
from brimful.testing.toys import toy_chat_encoder
from tests.measure.encoders import Letters, Silent

TEXTS = ["a", "bb", "Ccc", "dddd", "EEEEE", "ffffff"]


@pytest.fixture(autouse=True)
def _two_rows_a_block(monkeypatch):
    monkeypatch.setattr(line_index, "BLOCK_ROWS", 2)


def _jsonl(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.fixture
def source(put):
    """Six texts of one to six letters, two a block."""
    return open_source(put("data.jsonl", _jsonl(TEXTS)))


def test_lengths_are_those_of_the_encoded_samples(source):
    """Without it packs would overflow or be left with gaps."""
    encoder = Letters()
    table = measure_lengths(source, encoder, budgets=("tokens", "loss_tokens"))
    encoded = [encoder.encode(source[index]) for index in range(6)]
    assert table.tokens.tolist() == [len(sample) for sample in encoded] == [1, 2, 3, 4, 5, 6]
    assert table.budgets["loss_tokens"].tolist() == [int(sample.loss_mask.sum()) for sample in encoded]
    assert table.budgets["loss_tokens"].tolist() == [1, 2, 2, 4, 0, 6]
    assert list(measure_lengths(source, encoder).budgets) == ["tokens"]


def test_a_table_says_where_it_comes_from(source, tmp_path):
    """Without it a table could not tell what was measured with what."""
    path = tmp_path / "lengths.arrow"
    measure_lengths(source, Letters(), budgets=("loss_tokens",), path=path)
    assert LengthTable.open(path).provenance == {
        "settings": {
            "encoder encoder": "letters",
            "encoder version": 0,
            "encoder targets": "small",
            "budgets": ["tokens", "loss_tokens"],
            "row format": "text",
            "row fields": {"text": "text"},
        },
        "source_fingerprint": source.fingerprint,
        "source": source.title,
        "parts": [[source.title, 6]],
        "num_samples": 6,
        "labels": {"encoder targets": "small"},
        "account": {
            "kinds": {"text": 6},
            "unread": {},
            "no_target": {"it has one token, and the first of a segment is not a target": 2},
        },
    }


def test_the_number_of_processes_does_not_matter(source, tmp_path):
    """Without it a plan would depend on the machine it was measured on."""
    one, two = (
        measure_lengths(
            source,
            toy_chat_encoder(),
            budgets=("loss_tokens",),
            path=tmp_path / f"{number}.arrow",
            cache_dir=tmp_path / f"cache {number}",
            num_proc=number,
        )
        for number in (1, 2)
    )
    assert one.tokens.tolist() == two.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert one.fingerprint == two.fingerprint
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()


@pytest.mark.parametrize("named", [True, False])
def test_a_second_run_asks_for_nothing(source, tmp_path, named):
    """Without it every run would tokenise the whole data set again."""
    path = tmp_path / "lengths.arrow" if named else None
    first = measure_lengths(source, Letters(), path=path)
    second = measure_lengths(source, Silent(), path=path)
    assert (second.tokens.tolist(), second.fingerprint, second.path) == (
        first.tokens.tolist(),
        first.fingerprint,
        first.path,
    )


def test_the_work_is_kept_for_a_copy_an_archive_and_another_table(source, put, tmp_path):
    """Without it moving or packing the data, or naming another output, would cost all the work."""
    measure_lengths(source, Letters())
    copy = open_source(put("elsewhere/copy.jsonl", _jsonl(TEXTS)))
    archive = open_source(put("data.jsonl.gz", gzip.compress(_jsonl(TEXTS).encode())))
    for other in (copy, archive, source):
        assert measure_lengths(other, Silent(), path=tmp_path / "other.arrow").tokens.tolist() == [1, 2, 3, 4, 5, 6]
        (tmp_path / "other.arrow").unlink()


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_only_appended_rows_are_encoded(put, tmp_path, count, end):
    """Without it a data set that grows would be measured whole every time."""
    path = tmp_path / "lengths.arrow"
    put("data.jsonl", _jsonl(TEXTS[:count]).rstrip("\n") + end)
    measure_lengths(open_source(tmp_path / "data.jsonl"), Letters(), path=path)
    put("data.jsonl", _jsonl(TEXTS))
    encoder = Letters()
    table = measure_lengths(open_source(tmp_path / "data.jsonl"), encoder, path=path)
    assert encoder.seen == TEXTS[count:]
    assert table.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert measure_lengths(open_source(tmp_path / "data.jsonl"), Silent(), path=path).tokens.tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_full_blocks_before_appended_rows_are_not_encoded_without_a_table(put, tmp_path):
    """Without it a table inside the cache would be of no use to a data set that grows."""
    path = put("data.jsonl", _jsonl(TEXTS[:3]))
    measure_lengths(open_source(path), Letters())
    put("data.jsonl", _jsonl(TEXTS))
    encoder = Letters()
    assert measure_lengths(open_source(path), encoder).tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert encoder.seen == TEXTS[2:]


def test_rows_appended_in_memory(tmp_path):
    """Without it a growing list would be measured whole every time."""
    rows = [{"text": text} for text in TEXTS]
    path = tmp_path / "lengths.arrow"
    measure_lengths(open_source(rows[:4]), Letters(), path=path)
    encoder = Letters()
    assert measure_lengths(open_source(rows), encoder, path=path).tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert encoder.seen == TEXTS[4:]


def test_an_edited_row_costs_its_block(source, put):
    """Without it one corrected row would cost measuring the whole data set, or keep its old length."""
    measure_lengths(source, Letters())
    encoder = Letters()
    edited = open_source(put("data.jsonl", _jsonl([*TEXTS[:2], "corrected", *TEXTS[3:]])))
    assert measure_lengths(edited, encoder).tokens.tolist() == [1, 2, 9, 4, 5, 6]
    assert encoder.seen == ["corrected", "dddd"]


def test_an_interrupted_job_goes_on_where_it_was(source):
    """Without it a job killed after hours would begin again."""
    first = Letters(fail_at=["dddd"])
    with pytest.raises(KeyboardInterrupt):
        measure_lengths(source, first)
    assert first.seen == ["a", "bb", "Ccc"]
    second = Letters()
    assert measure_lengths(source, second).tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert second.seen == TEXTS[2:]


def test_a_broken_part_is_measured_again(source, tmp_path):
    """Without it a file that a crash left empty would end every later run."""
    measure_lengths(source, Letters(), cache_dir=tmp_path / "cache", path=tmp_path / "1.arrow")
    parts = sorted((tmp_path / "cache").glob("lengths/*/parts/*/*.arrow"))
    assert len(parts) == 3
    parts[0].write_bytes(b"")
    encoder = Letters()
    table = measure_lengths(source, encoder, cache_dir=tmp_path / "cache", path=tmp_path / "2.arrow")
    assert (table.tokens.tolist(), len(encoder.seen)) == ([1, 2, 3, 4, 5, 6], 2)


def test_progress_counts_rows_and_tells_old_work_from_new(source, tmp_path):
    """Without it the time left would be reckoned from rows that cost nothing."""
    with pytest.raises(KeyboardInterrupt):
        measure_lengths(source, Letters(fail_at=["dddd"]))
    progress = Progress()
    measure_lengths(source, Letters(), progress=progress)
    (stage,) = progress.stages
    assert (stage.name, stage.unit, stage.total, stage.done, stage.resumed, stage.tokens) == (
        "measure",
        "rows",
        6,
        6,
        2,
        18,
    )


def _mismatches():
    other_rows = [*TEXTS[:5], "changed"]
    return {
        "encoder version": (Letters(version=1), TEXTS, {}),
        "budgets, encoder targets": (Letters(), TEXTS, {"budgets": ("loss_tokens",)}),
        "source content": (Letters(), other_rows, {}),
        "source (6 samples there, 5 here)": (Letters(), TEXTS[:5], {}),
    }


@pytest.mark.parametrize("differing", _mismatches())
def test_a_table_of_other_things_is_refused_by_name(source, put, tmp_path, differing):
    """Without it lengths of another tokenizer or data set would be planned with, or be overwritten."""
    encoder, texts, options = _mismatches()[differing]
    path = tmp_path / "lengths.arrow"
    old = measure_lengths(source, Letters(), path=path)
    before = path.read_bytes()
    other = open_source(put("data.jsonl", _jsonl(texts)))
    if differing == "source content":
        differing += f" ({source.fingerprint[:7]} there, {other.fingerprint[:7]} here)"
    with pytest.raises(CacheMismatchError) as caught:
        measure_lengths(other, encoder, path=path, **options)
    assert str(caught.value) == (
        f"{path} was measured with other settings or data; these parts differ: {differing}. "
        'Choose another path, or measure again with on_mismatch="rebuild"'
    )
    assert path.read_bytes() == before
    table = measure_lengths(other, encoder, path=path, on_mismatch="rebuild", **options)
    assert table.tokens.tolist() == [len(text) for text in texts]
    assert LengthTable.open(path).fingerprint == table.fingerprint
    assert old.tokens.tolist() == [1, 2, 3, 4, 5, 6]


def test_rows_read_otherwise_are_a_mismatch(put, tmp_path):
    """Without it lengths of one field would be served for another."""
    data = put("data.jsonl", '{"text": "a", "body": "bb"}\n')
    path = tmp_path / "lengths.arrow"
    measure_lengths(open_source(data), Letters(), path=path)
    with pytest.raises(CacheMismatchError, match="these parts differ: row fields"):
        measure_lengths(open_source(data, format="text", fields={"text": "body"}), Letters(), path=path)


def test_labels_matter_only_where_they_are_measured(source, tmp_path):
    """Without it another choice of targets would cost measuring all lengths again, or keep the targets of before."""
    path = tmp_path / "lengths.arrow"
    measure_lengths(source, Letters(targets="small"), targets=False, path=path)
    again = measure_lengths(source, Silent(targets="all"), targets=False, path=path)
    assert (again.tokens.tolist(), again.targets) == ([1, 2, 3, 4, 5, 6], None)
    small = measure_lengths(source, Letters(targets="small"), path=path)
    assert small.targets.counts.tolist() == [0, 1, 2, 3, 0, 5]
    with pytest.raises(CacheMismatchError, match="these parts differ: encoder targets"):
        measure_lengths(source, Letters(targets="all"), path=path)
    assert measure_lengths(source, Silent(targets="all"), targets=False, path=path).fingerprint == small.fingerprint
    loss = [
        measure_lengths(source, Letters(targets=targets), budgets=("loss_tokens",)).budgets["loss_tokens"].tolist()
        for targets in ("small", "all")
    ]
    assert loss == [[1, 2, 2, 4, 0, 6], [1, 2, 3, 4, 5, 6]]


def test_a_file_that_is_no_table_is_not_overwritten(source, put):
    """Without it -o with the name of a data file would destroy it."""
    path = put("precious.txt", "precious " * 20)
    with pytest.raises(CacheMismatchError, match=r"precious\.txt is there and cannot be used"):
        measure_lengths(source, Letters(), path=path)
    assert Path(path).read_text() == "precious " * 20
    assert measure_lengths(source, Letters(), path=path, on_mismatch="rebuild").tokens.tolist() == [1, 2, 3, 4, 5, 6]


BAD = '{"text": "a"}\nnope\n\n{"text": "!b"}\n{"text": "ccc"}\n{"text": "   "}\n{"txt": "d"}\n'


def _rejects(data):
    return [
        [1, f"{data}:2", "not JSON: Expecting value at column 1"],
        [2, f"{data}:4", "is shouted"],
        [4, f"{data}:6", "has no tokens"],
        [5, f"{data}:7", "field 'text' is missing (found ['txt'])"],
    ]


@pytest.mark.parametrize("budgets", [("tokens",), ("tokens", "loss_tokens")])
def test_bad_rows_are_skipped_counted_and_written_down(put, tmp_path, budgets):
    """Without it users would not know which rows a model never saw."""
    data = put("data.jsonl", BAD)
    table = measure_lengths(
        open_source(data), Letters(), budgets=budgets, on_bad_sample="skip", rejects_path=tmp_path / "rejects.jsonl"
    )
    assert table.tokens.tolist() == [1, -1, -1, 3, -1, -1]
    assert (table.rejected_ids.tolist(), table.total_tokens) == ([1, 2, 4, 5], 4)
    assert table.rejects == _rejects(data)
    rows = [None, {"text": "!b"}, {"text": "   "}, {"txt": "d"}]
    written = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert written == [
        {"sample_id": sample_id, "where": where, "reason": reason, "row": row}
        for (sample_id, where, reason), row in zip(_rejects(data), rows, strict=True)
    ]
    assert LengthTable.open(table.path).rejects == _rejects(data)  # type: ignore[arg-type]


def test_a_row_without_tokens_is_rejected_in_every_budget(put):
    """Without it a sample would be rejected by one budget and counted by another."""
    table = measure_lengths(
        open_source(put("data.jsonl", BAD)), Letters(), budgets=("loss_tokens",), on_bad_sample="skip"
    )
    assert table.budgets["loss_tokens"].tolist() == [1, -1, -1, 3, -1, -1]


def test_no_rejects_leave_no_file_and_empty_an_old_one(source, tmp_path):
    """Without it rejects of an earlier run would be taken for rejects of this one."""
    rejects = tmp_path / "rejects.jsonl"
    measure_lengths(source, Letters(), rejects_path=rejects)
    assert not rejects.exists()
    rejects.write_text("old\n")
    measure_lengths(source, Letters(version=1), rejects_path=rejects)
    assert rejects.read_text() == ""


def test_the_rejects_of_a_table_that_is_there_are_written_too(put, tmp_path):
    """Without it asking for the rejects of a finished table would leave no file and no word."""
    source = open_source(put("data.jsonl", BAD))
    measure_lengths(source, Letters(), on_bad_sample="skip")
    measure_lengths(source, Silent(), on_bad_sample="skip", rejects_path=tmp_path / "rejects.jsonl")
    assert len((tmp_path / "rejects.jsonl").read_text().splitlines()) == 4


def test_rejects_are_known_again_behind_appended_rows(put, tmp_path):
    """Without it a rejected row would become a sample of length -1 without an explanation."""
    path = tmp_path / "lengths.arrow"
    data = put("data.jsonl", BAD)
    measure_lengths(open_source(data), Letters(), on_bad_sample="skip", path=path)
    put("data.jsonl", BAD + '{"text": "!e"}\n')
    encoder = Letters()
    table = measure_lengths(open_source(data), encoder, on_bad_sample="skip", path=path)
    assert encoder.seen == ["!e"]
    assert table.rejects == [*_rejects(data), [6, f"{data}:8", "is shouted"]]


def test_the_place_of_a_reject_is_where_the_row_lies_now(put):
    """Without it a copied block would blame the file it was first measured in."""
    measure_lengths(open_source(put("old.jsonl", BAD)), Letters(), on_bad_sample="skip")
    data = put("new.jsonl", BAD)
    assert measure_lengths(open_source(data), Silent(), on_bad_sample="skip").rejects == _rejects(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{"text": "a"}\nnope\n', ":2 (sample 1): not JSON: Expecting value at column 1"),
        ('{"text": "a"}\n\n{"text": "!b"}\n', ":3 (sample 1): is shouted"),
        ('{"text": "a"}\n{"text": " "}\n', ":2 (sample 1): has no tokens"),
    ],
)
@pytest.mark.parametrize("skipped_before", [False, True])
def test_a_bad_row_stops_the_job_at_its_line(put, data, message, skipped_before):
    """Without it a bad row would pass in silence, or could not be found."""
    path = put("data.jsonl", data)
    if skipped_before:  # a table or a part made with skip is no answer for a caller who wants the error
        measure_lengths(open_source(path), Letters(), on_bad_sample="skip")
    with pytest.raises(BadSampleError) as caught:
        measure_lengths(open_source(path), Letters())
    assert str(caught.value) == path + message


def test_the_first_bad_row_is_named():
    """Without it repairing the named row could uncover one before it."""
    rows = [{"text": "!a"}, {"txt": "b"}]
    with pytest.raises(BadSampleError) as caught:
        measure_lengths(open_source(rows, format="text"), Letters())
    assert str(caught.value) == "memory[0] (sample 0): is shouted"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": ("frames",)}, "budgets 'frames' cannot be measured here: use tokens, loss_tokens"),
        ({"on_bad_sample": "ignore"}, 'on_bad_sample="ignore" is unknown: use error or skip'),
        ({"on_mismatch": "ignore"}, 'on_mismatch="ignore" is unknown: use error or rebuild'),
        ({"num_proc": 0}, "num_proc must be at least 1 and is 0"),
    ],
)
def test_an_unknown_choice_names_the_known_ones(source, options, message):
    """Without it a typing error would be read as the default."""
    with pytest.raises(SettingsError) as caught:
        measure_lengths(source, Letters(), **options)
    assert str(caught.value) == message


def test_batches_are_bounded_in_samples_and_characters(source, monkeypatch):
    """Without it long documents would be tokenized by the hundred at once, and memory would run out."""
    monkeypatch.setattr(block_task, "_BATCH_SAMPLES", 3)
    monkeypatch.setattr(block_task, "_BATCH_CHARACTERS", 7)
    batches = block_task.batches_of(source.read(0, 6), pytest.fail)  # type: ignore[arg-type]
    assert [[sample.text for sample in batch] for batch in batches] == [
        ["a", "bb", "Ccc"],
        ["dddd", "EEEEE"],
        ["ffffff"],
    ]


def measured_and_kept(source, encoder, folder, **options):
    """Lengths, and the tokens of all samples in ``folder``."""
    settings = MeasureSettings(**{"num_proc": 1, **options})
    return job.measure_and_keep(source, encoder, settings, folder / "encoded")


def test_tokens_of_what_was_measured_elsewhere_are_made_block_by_block(source, tmp_path):
    """Without it packs in a second directory are encoded row by row, in the order of the packs: half as fast."""
    lengths = measure_lengths(source, Letters()).tokens
    table, encoded = measured_and_kept(source, Letters(), tmp_path, path=tmp_path / "lengths.arrow")
    assert encoded is not None
    assert table.targets.counts.tolist() == [0, 1, 2, 3, 0, 5]
    assert [len(encoded[index]) for index in range(6)] == table.tokens.tolist() == lengths.tolist()
    measured_and_kept(source, Silent(), tmp_path, path=tmp_path / "again.arrow")  # and once alone


def test_tokens_that_are_kept_are_those_of_the_samples(put, tmp_path):
    """Without it packs would be written from tokens of other rows than were measured."""
    source = open_source(put("data.jsonl", BAD))

    def measure(encoder):
        return measured_and_kept(source, encoder, tmp_path, on_bad_sample="skip")

    for encoder in (Letters(), Silent()):
        table, encoded = measure(encoder)
        assert isinstance(encoded, StoredSamples)
        assert table.tokens.tolist() == [1, -1, -1, 3, -1, -1]
        assert [encoded[index].input_ids.tolist() for index in (0, 3)] == [[97], [99, 99, 99]]
    _, other = measure(Letters(targets="all"))  # the same lengths with other labels
    assert other is not None
    assert other[3].loss_mask.tolist() == [True] * 3


@pytest.mark.long
def test_real_lengths_are_the_published_ones(data_dir, qwen, monkeypatch):
    """Without it lengths could drift from what the model's own tokenizer and template give."""
    from brimful.encode import ChatEncoder

    monkeypatch.setattr(line_index, "BLOCK_ROWS", 4096)
    published = np.load(data_dir / "lengths" / "gsm8k_train_test__qwen25_chat.npy")
    text = data_dir / "text"
    source = open_source([text / "gsm8k_train.jsonl.gz", text / "gsm8k_test.jsonl"])
    table = measure_lengths(source, ChatEncoder(qwen), num_proc=1)
    assert len(published) == 8792
    np.testing.assert_array_equal(table.tokens, published)


def _flipped(path):
    """A file with one byte other than it was, at some thirty places of it."""
    data = path.read_bytes()
    for at in range(0, len(data), len(data) // 30):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        yield
    path.write_bytes(data)


def test_damaged_parts_in_the_cache_are_measured_again(source, tmp_path):
    """Without it a flipped bit in the cache would be planned as another length, in this and in every later job."""
    cache = tmp_path / "cache"
    measure_lengths(source, Letters(), cache_dir=cache)
    (tables,) = (cache / "lengths").iterdir()
    part = sorted((tables / "parts").rglob("*.arrow"))[0]
    encoder, times = Letters(), 0
    for _ in _flipped(part):
        (path,) = tables.glob("*.arrow")
        path.unlink()
        assert measure_lengths(source, encoder, cache_dir=cache).tokens.tolist() == [1, 2, 3, 4, 5, 6]
        times += 1
    assert len(encoder.seen) > times / 2 > 10  # two rows a block: a quarter of the flips was found at least


def test_a_damaged_table_in_the_cache_is_made_again(source, tmp_path):
    """Without it a damaged file that the user never named would end the job, and its flags would be of no help."""
    cache = tmp_path / "cache"
    measure_lengths(source, Letters(), cache_dir=cache)
    (path,) = (cache / "lengths").glob("*/*.arrow")
    for _ in _flipped(path):
        assert measure_lengths(source, Letters(), cache_dir=cache).tokens.tolist() == [1, 2, 3, 4, 5, 6]


def test_damaged_tokens_are_made_again(source, tmp_path):
    """Without it a job that goes on after a kill would pack tokens of other samples."""

    def kept(encoder):
        options = {"targets": False, "path": tmp_path / "lengths.arrow", "cache_dir": tmp_path / "cache"}
        return measured_and_kept(source, encoder, tmp_path, **options)[1]

    kept(Letters())
    file = sorted((tmp_path / "encoded").iterdir())[0]
    encoder, times = Letters(), 0
    for _ in _flipped(file):
        stored = kept(encoder)
        assert ["".join(map(chr, stored[index].input_ids)) for index in range(6)] == TEXTS
        times += 1
    assert len(encoder.seen) > times / 2 > 10


def _lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


STORAGES = {
    "jsonl": _lines,
    "jsonl.gz": lambda texts: gzip.compress(_lines(texts)),
    "json": lambda texts: json.dumps([{"text": text} for text in texts]).encode(),
}


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("ending", STORAGES)
def test_only_appended_rows_are_encoded_however_they_are_stored(tmp_path, ending, has_table):
    """A copy that is unpacked again is another file; its rows are the same as before."""
    texts = [f"text {number}" for number in range(50)]
    path = tmp_path / f"a.{ending}"
    options = {"path": tmp_path / "lengths.arrow"} if has_table else {}
    path.write_bytes(STORAGES[ending](texts[:48]))
    measure_lengths(open_source(path), Letters(), **options)
    path.write_bytes(STORAGES[ending](texts))
    encoder = Letters()
    measure_lengths(open_source(path), encoder, **options)
    assert encoder.seen == texts[48:]
