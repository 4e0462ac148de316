"""Lines of the report: numbers that a user compares with the numbers of the run."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.batch.diagnose import diagnose  # noqa: E402
from brimful.doctor.batch.targets import Labeling, labeling_of  # noqa: E402

BATCH = {
    "input_ids": [[1, 5, 6, 2, 1, 7, 8, 9, 2, 0, 0, 0]],
    "labels": [[-100, 5, 6, 2, -100, -100, 8, 9, 2, -100, -100, -100]],
    "position_ids": [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2]],
    "attention_mask": [[1] * 9 + [0] * 3],
    "num_items_in_batch": torch.tensor(9),
}
"""Two samples of four and five tokens with six targets, and three tokens of padding."""


def lines(batch, **known):
    return {line.topic: line.text for line in diagnose(batch, **known).lines}


def test_what_is_seen_is_counted():
    """Segments, positions, targets, divisors and ends of all batches together."""
    config = {"bos_token_id": 1, "eos_token_id": 2}
    one, two = lines(BATCH, config=config), lines([BATCH, BATCH], config=config)
    assert one["packing"] == "2 segments in 1 row, 2 a row; 75.0 % of 12 positions are tokens of samples"
    assert two["packing"] == "4 segments in 2 rows, 2 a row; 75.0 % of 24 positions are tokens of samples"
    assert one["positions"] == "from 0 at the beginning of segments, up to 4"
    assert one["targets"].startswith("66.7 % of tokens are targets; the label of a token is the token itself")
    assert one["divisor"].startswith("this batch has 6 targets: ")
    assert one["divisor"].endswith("(num_items_in_batch is 9)")
    assert two["divisor"].startswith("these 2 batches have 12 targets: ")
    assert one["tokens"] == (
        "2 of 2 segments begin with BOS; 2 of 2 segments have EOS among their last 3 tokens; 2 EOS are trained"
    )
    assert two["tokens"].startswith("4 of 4 segments begin with BOS; 4 of 4 segments have EOS")
    assert one["alignment"] == "all rows are multiples of 4"


def test_what_is_not_seen_is_not_counted():
    """Segments without a target, samples without their ends, and first tokens that are predicted."""
    batch = {
        "input_ids": [[1, 5, 6, 3, 7, 8, 9, 4, 4, 4, 2, 4, 4, 4]],
        "labels": [[-100, 5, 6, 3, 7, 8, 9, *[-100] * 7]],
        "cu_seqlens": [0, 4, 7, 14],
    }
    found = lines(batch, config={"bos_token_id": 1, "eos_token_id": 2})
    assert found["packing"].startswith("3 segments in 1 row, 3 a row; 100.0 % of 14")
    assert "; 1 segment without a target; 1 first token predicted from the sample before" in found["targets"]
    assert found["tokens"].startswith("1 of 3 segments begin with BOS; 0 of 3 segments have EOS")
    assert found["tokens"].endswith("0 EOS are trained")
    late = {**batch, "input_ids": [[1, 5, 6, 3, 7, 8, 9, 4, 4, 4, 4, 2, 4, 4]]}
    assert "1 of 3 segments have EOS among" in lines(late, config={"bos_token_id": 1, "eos_token_id": 2})["tokens"]
    rows = {"input_ids": [[5, 6, 7, 0], [5, 6, 0, 0]], "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]]}
    assert lines(rows)["packing"] == "2 segments in 2 rows, 1 a row; 62.5 % of 8 positions are tokens of samples"
    assert lines(rows)["isolation"].startswith("one segment a row")
    assert lines({"input_ids": [[5, 6, 7]]})["isolation"] == "nothing in the batch tells samples of a row apart"
    packed = lines({"input_ids": [[5, 6, 7, 8], [5, 6, 7, 8]], "cu_seqlens": [0, 2, 4, 8]})
    assert packed["packing"].startswith("3 segments in 2 rows, 1 to 2 a row")
    assert packed["alignment"] == "all segments with their padding are multiples of 2, all rows are multiples of 4"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (3, "50.0 % of them): the loss is 2.000 times as large"),
        (1, "16.7 % of them): the loss is 6.000 times as large"),
        (12, "padding is counted as well): the loss is 2.000 times as small"),
        (9, "all tokens are counted"),
        (7, "all tokens but the first of each sample are counted"),
        (2, "samples are counted"),
        (5, "one target of each batch is left out"),
        (4, "the 2 boundaries are taken off a second time"),
        (50, ""),
    ],
)
def test_a_divisor_is_explained_by_what_was_counted(number, reason):
    """The reason is the line of the trainer to change."""
    (finding,) = [item for item in diagnose(BATCH, num_items=number).findings if item.topic == "divisor"]
    assert finding.detail.startswith(f"the divisor is {number}, and the batch has 6 targets")
    assert reason in finding.detail
    assert ("(" in finding.detail) == bool(reason)
    (two,) = [item for item in diagnose([BATCH, BATCH], num_items=2 * number).findings if item.topic == "divisor"]
    assert f"the divisor is {2 * number}, and the 2 batches have 12 targets" in two.detail
    if number != 5:
        assert "one target" not in two.detail or number == 5


def test_the_right_divisor_is_not_accused():
    assert not [item for item in diagnose(BATCH, num_items=6).findings if item.topic == "divisor"]
    small = {**BATCH, "num_items_in_batch": torch.tensor(5)}
    (finding,) = [item for item in diagnose(small).findings if item.topic == "divisor"]
    assert finding.detail.startswith("num_items_in_batch is 5, and this batch has 6 targets (one target")
    enough = {**BATCH, "num_items_in_batch": torch.tensor(6)}
    assert not [item for item in diagnose(enough).findings if item.topic == "divisor"]


@pytest.mark.parametrize(
    ("labels", "labeling"),
    [
        ([5, 6, 7, 8, 9, 10, 11, 12, 13, 14], Labeling.AS_TOKENS),
        ([6, 7, 8, 9, 10, 11, 12, 13, 14, -100], Labeling.SHIFTED),
        ([5, 6, 7, 8, 9, 10, 11, 12, 90, 91], Labeling.AS_TOKENS),
        ([5, 6, 7, 8, 9, 10, 11, 90, 91, 92], Labeling.OTHER),
        ([6, 7, 8, 9, 10, 11, 12, 13, 90, -100], Labeling.SHIFTED),
        ([6, 7, 8, 9, 10, 11, 90, 91, 92, -100], Labeling.OTHER),
        ([7, 8, 9, 10, 11, 12, 13, 14, -100, -100], Labeling.OTHER),
        ([5, 90, -100, -100, -100, -100, -100, -100, -100, -100], Labeling.OTHER),
        ([90] * 10, Labeling.OTHER),
        ([6, 7, 8, 9, 10, 11, 12, 13, 14, 99], Labeling.SHIFTED),
    ],
)
def test_labels_are_read_by_what_four_of_five_are(labels, labeling):
    """A few may be replaced, as in distillation; a guess from fewer would accuse a right run."""
    assert labeling_of(np.array([labels]), np.arange(5, 15)[None], np.array([0])) is labeling


@pytest.mark.parametrize(
    ("labels", "labeling"),
    [
        ([-100, 5, -100, 5], Labeling.AS_TOKENS),
        ([5, -100, 5, -100], Labeling.SHIFTED),
        ([-100, 5, 5, -100], Labeling.AS_TOKENS),
        ([5, 5, -100, 5], Labeling.AS_TOKENS),
        ([5, -100, 5, 5], Labeling.SHIFTED),
    ],
)
def test_labels_of_one_repeated_token_cross_no_sample(labels, labeling):
    """They are the token itself and the next one; read so that fewer of them belong to a neighbor, otherwise as tokens."""
    ids = np.full((1, 4), 5)
    assert labeling_of(np.array([labels]), ids, np.array([0, 2])) is labeling


def test_the_text_of_segments_has_its_trained_parts_marked():
    """A user sees at a glance whether answers are trained, and prompts are not."""

    class Letters:
        bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

        def decode(self, ids, **options):
            return "".join("␀^$345abcdefgh"[token] if token < 14 else "." for token in ids)

    notes = diagnose(BATCH, tokenizer=Letters()).notes
    assert [note.split(": ", 1)[1] for note in notes] == ["^«5a$»", "^b«cd$»"]
    assert notes[1].startswith("segment 1 (row 0, 4 to 9)")
    long = {"input_ids": [[*range(6, 13), *[20] * 200, 2]], "labels": [[-100] * 207 + [2]]}
    (note,) = diagnose(long, tokenizer=Letters()).notes
    shown = note.split(": ", 1)[1]
    assert shown.startswith("abcdefg")
    assert shown.endswith("«$»")
    assert len(shown.replace("«", "").replace("»", "")) == 96 + len(" … ")
