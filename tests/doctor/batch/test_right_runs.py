"""Right batches of special kinds: windows, shared prefixes, parts of rows, pretraining, gaps, preferences."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl.trainer.dpo_trainer import DataCollatorForPreference  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.doctor import Evidence  # noqa: E402
from brimful.doctor.batch.diagnose import diagnose  # noqa: E402
from brimful.doctor.batch.view import read_batch  # noqa: E402
from brimful.preferences import PreferenceCollator  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.doctor.batch.strategies import BOS, EOS, LENGTHS, made  # noqa: E402
from tests.doctor.faults.batches import IGNORE, PAD, TOKENS, documents, int32, one_row, row, varlen, without  # noqa: E402

SAMPLES = documents((7, 4, 9))
RIGHT = one_row(SAMPLES, **varlen(SAMPLES))
PAIRS = torch.tensor([[i // 10 == j // 10 and j <= i for j in range(20)] for i in range(20)])[None, None]
BY_PAIRS = {
    "input_ids": row(list(range(5, 25))),
    "position_ids": row([*range(10)] * 2),
    "attention_mask": PAIRS,
}


@given(case=made(ends=True))
def test_documents_with_bos_and_eos(case):
    """Padding of a gap after EOS begins no sample and ends none."""
    tokenizer = SimpleNamespace(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=0, decode=str)
    report = diagnose(case.batch, tokenizer=tokenizer, samples=case.samples, is_whole=True)
    assert report.ok, str(report)


@given(lengths=LENGTHS, multiple=st.sampled_from((None, 8)))
def test_preferences_of_trl(lengths, multiple):
    collate = DataCollatorForPreference(pad_token_id=0, pad_to_multiple_of=multiple)
    rows = [
        {"prompt_ids": [7, 8], "chosen_ids": [9] * size, "rejected_ids": [*range(10, 10 + 2 * size)]}
        for size in lengths
    ]
    report = diagnose(collate(rows))
    assert report.ok, str(report)


@pytest.mark.parametrize("with_labels", [True, False])
def test_preferences_of_the_project(with_labels):
    packs = [toy_pack([4, 3, 5, 2]), toy_pack([3, 3], first_sample=4, seed=1)]
    batch = PreferenceCollator(PackCollator(pad_to=24))(packs)
    if not with_labels:
        del batch["labels"]
    report = diagnose(batch)
    assert report.ok, str(report)
    assert [segment.length for segment in read_batch(batch).segments] == [4, 3, 5, 2, 3, 3]


def test_a_mask_of_ones_that_flash_attention_drops():
    """It looks at boundaries then; positions alone are found by no attention that gets a mask."""
    ones = torch.ones(1, 20, dtype=torch.int64)
    assert diagnose({**RIGHT, "attention_mask": ones}).ok
    assert not diagnose({**one_row(SAMPLES), "attention_mask": ones}).ok


def test_labels_that_cross_samples_on_purpose():
    """Pretraining shifts rows as a whole; the line tells of it."""
    ids = RIGHT["input_ids"]
    batch = {"input": ids[:, :-1], "positions": RIGHT["position_ids"][:, :-1], "labels": ids[:, 1:]}
    report = diagnose(batch)
    assert report.ok, str(report)
    (line,) = [line for line in report.lines if line.topic == "targets"]
    assert "2 first tokens predicted from the sample before" in line.text


def test_masks_of_windows_and_of_shared_prefixes():
    """A window sees less of a sample; a branch sees its prefix, and goes on from its positions."""
    window = PAIRS & ~torch.ones(20, 20, dtype=torch.bool).tril(-4)
    assert diagnose({**BY_PAIRS, "attention_mask": window}).ok
    tree = torch.ones(9, 9, dtype=torch.bool).tril()
    tree[6:, 3:6] = False  # a prefix of three tokens, and two answers of three
    batch = {"input_ids": row([*range(9)]), "position_ids": row([0, 1, 2, 3, 4, 5, 3, 4, 5])}
    report = diagnose({**batch, "attention_mask": tree[None, None]})
    assert report.ok, str(report)
    assert "shared prefixes" in str(diagnose({**batch, "parent_ids": row([0] * 9)}))


def test_batches_of_trees_are_told():
    """A branch goes on from the depth of its trunk, and its first token is trained: neither is a fault."""
    names = ("input_ids", "labels", "position_ids")
    rows = ([5, 6, 7, 8, 9, 0], [-100, 6, 7, 8, 9, -100], [0, 1, 2, 2, 3, 0])
    batch = dict(zip(names, map(row, rows), strict=True))
    tree = {"parents": torch.tensor([-1, 0, 0, -1]), "tree_out": torch.tensor([5, 5, 3, 5, 5, 6])}
    terms = {"loss_index": torch.tensor([0, 1, 1, 3]), "loss_targets": torch.tensor([6, 7, 8, 9])}
    for form in (batch, {**without(batch, "labels"), **terms}):
        report = diagnose({**form, **tree}, samples=[[5, 6, 7], [5, 6, 8, 9]], is_whole=True)
        assert not report.findings, str(report)
        (line,) = [line for line in report.lines if line.topic == "isolation"]
        assert line.text == "not judged: trees: tree_out says which samples have shared prefixes"


def test_a_part_of_a_row_is_not_judged():
    """Ranks of sequence parallelism have the boundaries of the whole row."""
    part = {name: RIGHT[name][:, :10] for name in ("input_ids", "labels")}
    report = diagnose({**part, **varlen(SAMPLES)})
    assert report.ok
    assert "one of 2 parts of a longer row" in str(report)
    assert report.isolation is Evidence.UNKNOWN


def test_boundaries_of_two_families_of_which_one_has_end_marks():
    """Only readers of the marked boundaries look for the mark."""
    marked = {"cu_seqlens": int32([[0, 7, 11, 20, -1]]), "cu_seqlens_argmin": torch.tensor([[4]])}
    assert diagnose({**RIGHT, **marked}).ok
    marked["cu_seqlens_argmin"] -= 1
    (finding,) = diagnose({**RIGHT, **marked}).findings
    assert "cu_seqlens_argmin is 3, and cu_seqlens ends at place 4" in finding.detail


def test_tokens_that_a_trainer_adds_are_no_other_sample():
    """BOS before a sample, EOS and padding after it."""
    bare = [sample[1:-1] for sample in SAMPLES]
    assert diagnose(RIGHT, samples=bare, tokenizer=TOKENS, is_whole=True).ok
    aligned = [[*sample, *[PAD] * (-len(sample) % 4)] for sample in SAMPLES]
    batch = one_row(aligned, **varlen(aligned))
    batch["labels"] = torch.where(batch["input_ids"] == PAD, IGNORE, batch["labels"])
    assert diagnose(batch, samples=SAMPLES, is_whole=True).ok


def test_equal_samples_take_segments_in_turn():
    samples = [SAMPLES[0]] * 3
    assert diagnose(one_row(samples), samples=samples, is_whole=True).ok
    report = diagnose(one_row(samples), samples=samples[:2], is_whole=True)
    assert [finding.problem for finding in report.findings] == ["samples_repeated"]


def test_packed_rows_of_lists_of_several_lengths():
    """Rows of a data set as they are, before a collator."""
    batch = {"input_ids": [[5, 6, 7, 8, 9], [4, 3]], "seq_lengths": [[3, 2], [2]]}
    assert read_batch(batch).segments == [(0, 0, 3), (0, 3, 5), (1, 0, 2)]
    report = diagnose(batch, samples=[[5, 6, 7], [8, 9], [4, 3]], is_whole=True)
    assert report.ok, str(report)
    assert "seq_lengths tells where samples begin" in str(report)


def test_notes_show_the_ends_of_long_texts_and_what_is_trained():
    (note,) = diagnose(one_row([[BOS_, 30, EOS_]]), tokenizer=TOKENS).notes
    assert note == "segment 0 (row 0, 0 to 3): <s>«w30 </s>»"
    (note,) = diagnose(one_row([[BOS_, *range(100, 400), EOS_]]), tokenizer=TOKENS).notes
    assert " … " in note
    assert "w100" in note
    assert "w250" not in note


BOS_, EOS_ = TOKENS.bos_token_id, TOKENS.eos_token_id


def test_words_without_a_claim_are_left_alone():
    """Without boundaries and without labels a batch says little, and nothing is made up."""
    report = diagnose(without(RIGHT, "labels", "position_ids", *varlen(SAMPLES)))
    assert report.ok
    texts = {line.topic: line.text for line in report.lines}
    assert texts["isolation"] == "nothing in the batch tells samples of a row apart"
    assert texts["targets"] == "nothing in the batch says what is trained"
