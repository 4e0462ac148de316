"""Answers as samples through the whole line: token for token what the template writes for each, trained alone."""

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("transformers")

from brimful import ChatEncoder, PlanSettings, open_packs, open_source, pack_dataset
from brimful.encode import EncodedSamples, encoder_for
from brimful.errors import CacheMismatchError, SettingsError
from brimful.lengths import LengthTable
from brimful.measure import join_tables, measure_lengths
from brimful.report.store_check import check_store
from tests.cli.tools import refused, run, shown, value
from tests.encode.templates import QWEN3
from tests.flow import test_media


def real_rows(data_dir, name, count, *, thoughts=False):
    with gzip.open(data_dir / "text" / name, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(count), strict=False)]
    for row in rows if thoughts else ():
        for number, turn in enumerate(row["messages"]):
            if turn["role"] == "assistant":
                turn["content"] = f"<think>\nnow number {number}\n</think>\n\n{turn['content']}"
    return rows


def answers_of(rows):
    """Row and conversation of each answer, and of each row without one, written independently of the library."""
    for number, row in enumerate(rows):
        ends = [end for end, turn in enumerate(row["messages"]) if turn["role"] == "assistant"]
        for end in ends or [len(row["messages"]) - 1]:
            yield number, row["messages"][: end + 1]


@pytest.mark.parametrize(
    ("name", "count", "template"),
    [
        ("smile_zh_multiturn_3k.jsonl.gz", 30, QWEN3),
        ("sgd_train_dialogues.jsonl.gz", 10, None),
        pytest.param("smile_zh_multiturn_3k.jsonl.gz", 300, QWEN3, marks=pytest.mark.long),
        pytest.param("sgd_train_dialogues.jsonl.gz", 300, None, marks=pytest.mark.long),
    ],
)
def test_each_answer_is_rendered_and_trained_alone(name, count, template, data_dir, small_tokenizer, tmp_path):
    """Qwen3's template writes the last answer with its thoughts and the earlier ones without."""
    rows = real_rows(data_dir, name, count, thoughts=template is not None)
    source = open_source(rows, per_turn=True)
    encoder = encoder_for(source, small_tokenizer, chat_template=template)
    summary = pack_dataset(source, encoder, tmp_path, PlanSettings(capacity=8192, overflow="drop", no_target="drop"))
    expected = list(answers_of(rows))
    assert len(source) == len(expected)
    assert f"{len(source):,} of {len(rows):,} rows" in str(summary)
    dropped = set(summary.plan.dropped_ids.tolist())
    seen = np.zeros(len(source), dtype=np.int64)
    seen[list(dropped)] = 1
    for pack in open_packs(tmp_path):
        for number, sample_id in enumerate(pack.sample_ids.tolist()):
            seen[sample_id] += 1
            _, conversation = expected[sample_id]
            text = small_tokenizer.hf.apply_chat_template(conversation, tokenize=False, chat_template=template)
            ids = small_tokenizer.hf(text, add_special_tokens=False)["input_ids"]
            assert pack.segment(number).tolist() == ids, source.where(sample_id)
            targets = pack.loss_mask[slice(*pack.cu_seqlens[number : number + 2])]
            trained = small_tokenizer.decode(pack.segment(number)[targets].tolist())
            assert trained == text.rpartition("<|im_start|>assistant\n")[2].rstrip("\n")
    assert seen.tolist() == [1] * len(source)
    assert dropped == {index for index, (_, turns) in enumerate(expected) if turns[-1]["role"] != "assistant"}


def test_a_template_without_thoughts_trains_the_same_tokens(data_dir, small_tokenizer):
    """Every answer once: then all answers together are the targets of the whole conversation."""
    rows = real_rows(data_dir, "smile_zh_multiturn_3k.jsonl.gz", 20)
    whole = measure_lengths(open_source(rows), small_tokenizer)
    table = measure_lengths(open_source(rows, per_turn=True), small_tokenizer)
    assert table.targets.counts.sum() == whole.targets.counts.sum()
    owners = [number for number, _ in answers_of(rows)]
    assert np.bincount(owners, table.targets.counts).tolist() == whole.targets.counts.tolist()


def test_pictures_are_those_of_the_turns_so_far(small_qwen):
    """A row of two turns with pictures in both: as rows that a user cut, pictures included."""
    whole = list(test_media.rows())
    cut = [
        {"messages": row["messages"][:end], "images": row["images"][:count]}
        for row in whole
        for end, count in ((2, 1), (4, 4))
    ]
    per_turn, by_hand = (open_source(rows, media=True, per_turn=rows is whole) for rows in (whole, cut))
    options = {"media": test_media.encoder_of("qwen2-vl", small_qwen).family, "train_on": "last"}
    template = str(small_qwen / "chat_template_vl.jinja")
    encoder = encoder_for(per_turn, small_qwen, chat_template=template, **options)
    found, expected = ([*EncodedSamples(source, encoder)] for source in (per_turn, by_hand))
    assert len(found) == len(expected) == 2 * len(whole)
    for one, other in zip(found, expected, strict=True):
        assert not one.difference(other)
        assert [(item.start, item.medium.read()) for item in one.attachments] == [
            (item.start, item.medium.read()) for item in other.attachments
        ]


def test_captions_share_all_before_them(small_qwen):
    """The picture and the question: two captions of one picture pay for them once."""
    row = {"image": test_media.png(90, 60, seed=0), "captions": ["A cat.", "The pet sleeps."]}
    source = open_source([row], media=True, per_turn=True)
    family = test_media.encoder_of("qwen2-vl", small_qwen).family
    template = str(small_qwen / "chat_template_vl.jinja")
    encoder = encoder_for(source, small_qwen, chat_template=template, media=family)
    one, other = EncodedSamples(source, encoder)
    begin = int(one.loss_mask.argmax())
    assert int(other.loss_mask.argmax()) == begin > one.attachments[0].start + one.attachments[0].length
    assert one.input_ids[:begin].tolist() == other.input_ids[:begin].tolist()
    assert one.attachments[0].medium == other.attachments[0].medium


@pytest.fixture(scope="module")
def rows_and_file(tmp_path_factory):
    rows = [
        {"messages": [{"role": role, "content": f"{role} {number} {turn}"} for turn, role in enumerate(("user", "assistant") * 3)]}
        for number in range(40)
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("per_turn") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows, path


def test_processes_and_appended_rows_change_nothing(rows_and_file, small_tokenizer, tmp_path, monkeypatch):
    rows, path = rows_and_file
    one = measure_lengths(open_source(path, per_turn=True), small_tokenizer, num_proc=1, cache_dir=tmp_path / "one")
    two = measure_lengths(open_source(path, per_turn=True), small_tokenizer, num_proc=2, cache_dir=tmp_path / "two")
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.fingerprint == two.fingerprint
    assert (one.num_rows, len(one)) == (40, 120)
    grown = tmp_path / "grown.jsonl"
    grown.write_text(path.read_text())
    options = {"path": tmp_path / "lengths.arrow", "num_proc": 1}
    measure_lengths(open_source(grown, per_turn=True), small_tokenizer, **options)
    grown.write_text(path.read_text() + json.dumps(rows[0]) + "\n")
    read = []
    source = open_source(grown, per_turn=True)
    plain = type(source).read_plain
    monkeypatch.setattr(type(source), "read_plain", lambda self, *edges: read.append(edges) or plain(self, *edges))
    table = measure_lengths(source, small_tokenizer, **options)
    assert read == [(120, 123)]
    assert table.tokens.tolist() == [*one.tokens, *one.tokens[:3]]
    with pytest.raises(CacheMismatchError, match=r"these parts differ: row per_turn"):
        measure_lengths(open_source(grown), ChatEncoder(small_tokenizer, train_on="last"), **options)


def test_joined_tables_are_of_one_kind(rows_and_file, small_tokenizer, tmp_path):
    rows, _ = rows_and_file
    encoder = ChatEncoder(small_tokenizer, train_on="last")
    tables = []
    for number, per_turn in enumerate((True, True, False)):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[3 * number : 3 * number + 3]))
        tables.append(measure_lengths(open_source(path, per_turn=per_turn), encoder))
    joined = join_tables(tables[:2])
    assert (len(joined), joined.num_rows) == (18, 6)
    joined.save(tmp_path / "joined.arrow")
    assert LengthTable.open(tmp_path / "joined.arrow").per_turn
    with pytest.raises(CacheMismatchError, match=r"answers as samples \(one each and all in one\)"):
        join_tables(tables[1:])


def test_targets_that_would_repeat_are_refused(rows_and_file, small_tokenizer):
    source = open_source(rows_and_file[0], per_turn=True)
    assert encoder_for(source, small_tokenizer).label_settings == {"train_on": "last"}
    assert encoder_for(source, small_tokenizer, train_on="last").label_settings == {"train_on": "last"}
    for train_on in ("assistant", "all"):
        message = f'train_on="{train_on}" would train it again in each later one: choose train_on="last"'
        with pytest.raises(SettingsError, match=message):
            encoder_for(source, small_tokenizer, train_on=train_on)
        with pytest.raises(SettingsError, match=message):
            measure_lengths(source, ChatEncoder(small_tokenizer, train_on=train_on))
    with pytest.raises(SettingsError, match='per_turn is for mode="chat", and the mode is completion'):
        encoder_for(source, small_tokenizer, mode="completion")


def test_one_flag(rows_and_file, small_qwen, tmp_path):
    """One word packs, a second run does nothing, and every sample is found again."""
    _, path = rows_and_file
    packs = tmp_path / "packs"
    command = ("pack", path, "-o", packs, "--tokenizer", small_qwen, "--max-length", 512, "--per-turn")
    out, err = run(*command)
    assert value(out, "samples").startswith("120 of 40 rows in ")
    assert "120 samples of 40 rows, format messages (detected)" in "\n".join(err)
    assert "120 of 40 rows" in value(shown(*command), "samples")
    assert check_store(packs).samples == 120
    assert shown("inspect", packs, "--sample", 4)[0] == f"sample         4 at {path}:2, answer 2"
    assert shown("inspect", packs, "--check")
    assert "--train-on all would train it again in each later one: choose --train-on last" in refused(
        *command, "--train-on", "all"
    )


def test_a_source_of_a_mixture(rows_and_file, small_qwen, tmp_path):
    _, path = rows_and_file
    (tmp_path / "book.txt").write_text("one\ntwo\nthree\n")
    mix = tmp_path / "mix.yaml"
    text = f"path: {tmp_path / 'book.txt'}\n    weight: 1\n    text_unit: line\n"
    mix.write_text(f"sources:\n  chats:\n    path: {path}\n    weight: 1\n    per_turn: true\n  book:\n    {text}")
    command = ("pack", "--mixture", mix, "--tokenizer", small_qwen, "--max-length", 512, "-o", tmp_path / "packs")
    assert value(shown(*command), "samples").startswith("123 of 43 rows in ")
    mix.write_text(mix.read_text().replace("true", "often"))
    assert f"{mix}:5: per_turn must be true or false and is 'often'" in refused(*command)
