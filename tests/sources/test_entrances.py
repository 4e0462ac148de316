"""What people bring: tables, streams, pipes, clones of the hub, several sources at once."""

from __future__ import annotations

import io
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.sources import Sample, open_source

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
ROWS = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
Put = Callable[[str, bytes | str], str]


def texts(source: Any) -> list[Any]:
    return [sample.text for sample in source.read(0, len(source))]


def _pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(ROWS)


def _polars() -> Any:
    return pytest.importorskip("polars").DataFrame(ROWS)


def _streamed() -> Any:
    datasets = pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    return datasets.Dataset.from_list(ROWS).to_iterable_dataset()


TABLES = {
    "pyarrow": lambda: pa.Table.from_pylist(ROWS),
    "pandas": _pandas,
    "polars": _polars,
    "generator": lambda: (row for row in ROWS),
    "streamed data set": _streamed,
}


@pytest.mark.parametrize("name", TABLES)
def test_what_lies_in_memory_is_a_source(name: str) -> None:
    """Without it every notebook would begin by writing a file."""
    source = open_source(TABLES[name]())
    assert texts(source) == ["one", "two", "three"]
    assert (source[2].text, sum(len(block) for block in source.blocks)) == ("three", 3)
    again = pickle.loads(pickle.dumps(source))
    assert (texts(again), again.fingerprint) == (texts(source), open_source(TABLES[name]()).fingerprint)


def test_a_missing_value_of_a_table_is_no_value() -> None:
    """Without it a column that pandas filled with NaN would count as one that says something."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{"text": "a", "image": None}, {"text": "b", "image": None}])
    assert open_source(frame)[0] == Sample(0, text="a")


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it data could not come out of a pipe, or the same data piped again would be another data set."""

    def piped(data: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
        return open_source("-")

    source = piped(JSONL)
    assert (texts(source), source.where(1)) == (["one", "two", "three"], "standard input:2")
    assert piped(JSONL).fingerprint == source.fingerprint
    assert len(list((Path(os.environ["BRIMFUL_CACHE"]) / "spooled").iterdir())) == 1
    assert texts(piped(json.dumps(ROWS))) == texts(source)


def test_names_of_files_are_files_and_texts_are_texts(put: Put) -> None:
    """Without it two paths in a list would be packed as two documents of a few letters."""
    first, second = put("a.jsonl", JSONL), put("b.jsonl", '{"text": "four"}\n')
    assert texts(open_source([first, second])) == ["one", "two", "three", "four"]
    assert texts(open_source(["a text", "another"])) == ["a text", "another"]
    with pytest.raises(SourceNotFoundError, match=r"'no\.jsonl' of the list is no file, and others are"):
        open_source([first, "no.jsonl"])


def test_sources_of_different_formats_stand_side_by_side(put: Put) -> None:
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
    assert texts(pickle.loads(pickle.dumps(source))) == [None, None, "a document", None]
    alone = open_source(paths[3])
    assert source.blocks[3].fingerprint == alone.blocks[0].fingerprint  # so that its lengths are found again


def test_sources_that_are_open_are_chained_with_their_own_options(put: Put) -> None:
    """Without it two files with different keys for the same thing could not be packed together."""
    one = open_source([{"body": "a"}], format="text", fields={"text": "body"})
    other = open_source(put("b.jsonl", json.dumps({"messages": CHAT, "label": True}) + "\n"), ignore=["label"])
    source = open_source([one, other])
    assert (source[0].text, source[1].messages, source.format_name) == ("a", CHAT, "text and messages")
    assert open_source(one) is one
    with pytest.raises(SettingsError, match="open sources take no further options"):
        open_source(one, format="text")


def test_the_first_samples_are_a_source_of_their_own(put: Put) -> None:
    """Without it a trial run would read all of a large data set."""
    paths = [put("a.jsonl", JSONL), put("b.jsonl", '{"text": "four"}\n')]
    source = open_source(paths, max_samples=2)
    assert (texts(source), source.rows.members) == (["one", "two"], [(paths[0], 2)])
    assert texts(open_source(paths, max_samples=4)) == ["one", "two", "three", "four"]
    assert open_source(paths, max_samples=9).fingerprint == open_source(paths).fingerprint
    assert source.fingerprint != open_source(paths, max_samples=3).fingerprint
    whole = open_source(paths[0])
    assert [(block.start, block.stop) for block in source.blocks] == [(0, 2)]
    assert source.blocks[0].fingerprint != whole.blocks[0].fingerprint  # two of three rows are another block
    assert open_source(paths, max_samples=4).blocks[0].fingerprint == whole.blocks[0].fingerprint  # found again
    with pytest.raises(SettingsError, match="max_samples must be at least 1 and is 0"):
        open_source(paths, max_samples=0)


def _clone(put: Put, tmp_path: Path, *names: str) -> Path:
    put("README.md", "# A data set")
    put("LICENSE.txt", "a licence")
    put("dataset_infos.json", "{}")
    put(".git/config.json", "{}")
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([{"text": f"{number}"}]), tmp_path / name)
    return tmp_path


def test_a_clone_of_the_hub_is_its_data(put: Put, tmp_path: Path) -> None:
    """Without it the README beside the data makes the directory unreadable, or becomes a sample."""
    clone = _clone(put, tmp_path, "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")
    assert texts(open_source(clone)) == ["0", "1"]


def test_the_splits_of_a_clone_are_not_mixed(put: Put, tmp_path: Path) -> None:
    """Without it the test set is trained on, and every evaluation is spoilt."""
    clone = _clone(put, tmp_path, "data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet")
    with pytest.raises(SettingsError) as caught:
        open_source(clone)
    assert str(caught.value) == (
        f'{clone} holds several splits (test, train): name one with split="train", or take every one with split="all"'
    )
    assert texts(open_source(clone, split="train")) == ["1"]
    assert texts(open_source(clone, split="all")) == ["0", "1"]
    with pytest.raises(SourceNotFoundError, match="has no such split"):
        open_source(clone, split="dev")


def test_the_configurations_of_a_clone_are_not_mixed(put: Put, tmp_path: Path) -> None:
    """Without it the same questions come once for each configuration."""
    clone = _clone(put, tmp_path, "main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet")
    with pytest.raises(SettingsError, match=r"several configurations \(main, socratic\): name one with config="):
        open_source(clone)
    assert texts(open_source(clone, config="socratic")) == ["1"]
    with pytest.raises(SourceNotFoundError, match="no folder of"):
        open_source(clone, config="other")


def test_the_hub_is_asked_only_where_a_split_says_so_and_at_once() -> None:
    """Without it a mistyped path waits for a network, for half a minute where there is none."""
    with pytest.raises(SourceNotFoundError) as caught:
        open_source("owner/name")
    assert str(caught.value) == (
        'owner/name: no such file or directory (a data set of the hub is opened with split="train")'
    )
    pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(SourceNotFoundError) as caught:
        open_source("owner/name", split="train")
    assert str(caught.value) == (
        "owner/name (split train): no such file or directory here, and the hub cannot be reached, and it is not in the "
        "cache of datasets"
    )


def test_a_hub_that_cannot_be_reached_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the hub's library asks eleven times before it gives up."""
    pytest.importorskip("datasets", reason="needs the extra brimful[huggingface]")
    import datasets
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr("brimful.hub.getproxies", dict)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("asked again"))
    with pytest.raises(SourceNotFoundError, match="the hub cannot be reached"):
        open_source("owner/name", split="train")
    assert constants.HF_HUB_OFFLINE is False


TOKENS = {
    "all are targets": ({"input_ids": [5, 6]}, [5, 6], [-100, 6]),
    "labels": ({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}, [5, 6, 7], [-100, -100, 7]),
    "a mask": ({"input_ids": [5, 6], "completion_mask": [0, 1]}, [5, 6], [-100, 6]),
    "padding behind": ({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}, [5, 6], [-100, 6]),
    "padding before": (
        {"input_ids": [0, 5, 6], "labels": [-100, -100, 6], "attention_mask": [0, 1, 1]},
        [5, 6],
        [-100, 6],
    ),
    "positions": ({"input_ids": [5, 6], "position_ids": [0, 1]}, [5, 6], [-100, 6]),
}


@pytest.mark.parametrize("name", TOKENS)
def test_rows_of_tokens_are_taken_as_they_are(name: str) -> None:
    """Without it what was tokenised with care would have to be tokenised again."""
    row, ids, labels = TOKENS[name]
    source = open_source([row])
    assert (source.format_name, source[0]) == ("tokens", Sample(0, input_ids=ids, labels=labels))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": []}, "'input_ids' of shape (0,)"),
        ({"input_ids": [1, -1]}, "-1 in 'input_ids', which is no token"),
        ({"input_ids": [1, 2**31]}, "2147483648 in 'input_ids' at token 1, which no vocabulary has"),
        ({"input_ids": "text"}, "'input_ids' of shape ()"),
        ({"input_ids": [1.5]}, "'input_ids' of float64, which must hold whole numbers"),
        ({"input_ids": [1, 2], "labels": [2]}, "'input_ids' (2,) and 'labels' (1,): they must be rows of one length"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "a label that is not its own token; labels must not be shifted"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "an 'attention_mask' with zeros within a sample"),
        ({"input_ids": [1], "attention_mask": [0]}, "an 'attention_mask' of zeros alone"),
        ({"input_ids": [1, 2], "attention_mask": [1, 2]}, "is packed already, of 2 samples: bring them one a row"),
        ({"input_ids": [1, 2], "position_ids": [0, 0]}, "is packed already, of 2 samples: bring them one a row"),
    ],
)
def test_rows_of_tokens_that_contradict_themselves_are_refused(row: Any, reason: str) -> None:
    """Without it shifted labels and packed rows would be trained on as they are."""
    (error,) = open_source([row]).read(0, 1)
    assert str(error).startswith("memory[0] (sample 0): the row ")
    assert reason in str(error)
