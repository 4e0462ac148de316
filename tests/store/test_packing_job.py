"""The whole job in one call: what it leaves, and what it does the second time."""

import json
from dataclasses import replace

import pytest

from brimful import (
    PackedDataset,
    Plan,
    PlanSettings,
    TokenEncoder,
    open_packs,
    open_source,
    pack_dataset,
    plan_packs,
)
from brimful.base.execute import Execution
from brimful.base.progress import Progress
from brimful.errors import NoTargetError, OversizedSampleError, SettingsError, SourceError, StoreMismatchError
from brimful.mixtures import Mixture
from brimful.plan import Alignment
from brimful.report.store_check import check_store
from brimful.store import JobSettings
from brimful.store import packing_job as job_module
from brimful.testing.toys import toy_chat_encoder
from tests.store.stores import texts


def test_the_whole_job_leaves_packs_plan_lengths_and_account(tmp_path):
    """One call, then everything that later commands read is there and temporary files are gone."""
    rows = [*texts(3, 50, 4), {"nothing": 1}]
    summary = pack_dataset(
        open_source(rows), toy_chat_encoder(), tmp_path, PlanSettings(capacity=8, overflow="drop"), on_bad_sample="skip"
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "stream.json", "shards", "log", "plan.arrow", "lengths.arrow", "rejects.jsonl", "dropped.jsonl", "summary.json"
    }  # fmt: skip
    account = json.loads((tmp_path / "summary.json").read_text())
    assert (
        account["samples_in"],
        account["samples_packed"],
        account["samples_dropped"],
        account["samples_rejected"],
    ) == (4, 2, 1, 1)
    assert "rejected       1 row, listed in" in str(summary)
    assert json.loads((tmp_path / "dropped.jsonl").read_text()) == {
        "sample_id": 1,
        "where": "memory[1]",
        "tokens": 50,
        "targets": 49,
        "reason": "longer than a pack (8 tokens)",
    }
    assert "warning        87.72 % of the tokens are in no pack: see dropped and cut" in str(summary)
    assert json.loads((tmp_path / "rejects.jsonl").read_text())["sample_id"] == 3
    check_store(tmp_path, plan=Plan.open(tmp_path / "plan.arrow"))


def test_a_second_call_encodes_nothing(tmp_path):
    """On a finished directory the job only reads its account."""

    class Deaf(type(toy_chat_encoder())):
        def encode_batch(self, samples):
            raise AssertionError("encoded again")

        lengths = encode_batch

    source = open_source(texts(3, 5, 4))
    first = pack_dataset(source, toy_chat_encoder(), tmp_path, capacity=8)
    again = pack_dataset(source, Deaf(), tmp_path, capacity=8)
    assert again.plan.fingerprint == first.plan.fingerprint


def test_a_store_knows_the_alignment_of_its_plan(tmp_path):
    """A reader of the packs must pad them as they were planned, or context parallelism cuts tokens off."""
    source = open_source([{"text": "abc" * number} for number in range(3, 30)])
    summary = pack_dataset(
        source,
        toy_chat_encoder(),
        tmp_path / "packs",
        PlanSettings(capacity=200, alignment=8),
        groups=[0] * 2 + [-1] * 25,
    )
    packs = open_packs(tmp_path / "packs")
    assert packs.alignment == PackedDataset(packs).alignment == summary.plan.alignment == Alignment(segment=8)
    assert summary.plan.outcome.groups is not None
    with pytest.raises(StoreMismatchError, match=r"settings alignment .*settings groups"):
        pack_dataset(source, toy_chat_encoder(), tmp_path / "packs", capacity=200)


def test_a_finished_store_keeps_the_plan_that_it_was_written_from(tmp_path, monkeypatch):
    """Searches that end by the clock find another plan next time; the same call must find its packs again."""
    source, encoder = open_source([{"text": "abc" * number} for number in range(3, 30)]), toy_chat_encoder()
    first = pack_dataset(source, encoder, tmp_path / "packs", capacity=200)
    monkeypatch.setattr(job_module, "plan_with", lambda *args, **options: pytest.fail("planned again"))
    assert pack_dataset(source, encoder, tmp_path / "packs", capacity=200).plan.fingerprint == first.plan.fingerprint


def test_a_plan_of_other_packs_next_to_a_store_is_made_again(tmp_path):
    """Of another job, damaged, or gone: the packs are right, and the same call mends what lies next to them."""
    source, encoder = open_source(texts(*range(3, 30))), toy_chat_encoder()
    first = pack_dataset(source, encoder, tmp_path, capacity=200, seed=0)
    path = tmp_path / "plan.arrow"
    right = path.read_bytes()
    others = [plan_packs(first.table, capacity=200, seed=seed) for seed in (3, 6)]
    assert len({other.fingerprint < first.plan.fingerprint for other in others}) == 2
    faults = [lambda other=other: other.save(path) for other in others]
    for fault in (*faults, lambda: path.write_bytes(right[:99]), path.unlink):
        fault()
        assert pack_dataset(source, encoder, tmp_path, capacity=200, seed=0).seconds == {}
        assert path.read_bytes() == right


def test_a_plan_that_is_refused_is_not_saved(tmp_path, monkeypatch):
    """A search that found other packs must not leave its plan next to the packs of the first."""
    source, encoder = open_source(texts(*range(3, 30))), toy_chat_encoder()
    first = pack_dataset(source, encoder, tmp_path / "packs", capacity=200)
    path = tmp_path / "packs" / "plan.arrow"
    path.unlink()
    other = replace(plan_packs(first.table, capacity=200, seed=5), settings=first.plan.settings)
    monkeypatch.setattr(job_module, "plan_with", lambda *args, **options: other)
    with pytest.raises(StoreMismatchError, match=r"differently: plan \("):
        pack_dataset(source, encoder, tmp_path / "packs", capacity=200)
    assert not path.exists()


class Counting(type(toy_chat_encoder())):
    """Counts the samples that it encodes."""

    num_encoded = 0

    def encode_batch(self, samples):
        type(self).num_encoded += len(samples)
        return super().encode_batch(samples)


def test_a_job_that_was_killed_encodes_nothing_twice(tmp_path, monkeypatch):
    """Before a shard was written, and with one that was lost later, after which it says what it did."""
    monkeypatch.setattr(Counting, "num_encoded", 0)
    source = open_source(texts(3, 5, 4))
    with monkeypatch.context() as patched:
        patched.setattr(job_module, "write_plan", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pack_dataset(source, Counting(), tmp_path, capacity=8, num_proc=1)
    assert Counting.num_encoded == 3
    assert {*pack_dataset(source, Counting(), tmp_path, capacity=8, num_proc=1).seconds} >= {"plan", "write"}
    assert Counting.num_encoded == 3
    next((tmp_path / "shards").iterdir()).unlink()
    assert "nothing to do" not in str(pack_dataset(source, Counting(), tmp_path, capacity=8, num_proc=1))
    (tmp_path / "log" / "000000000001.json").unlink()
    assert "nothing to do" not in str(pack_dataset(source, Counting(), tmp_path, capacity=8, num_proc=1))
    assert "nothing to do" in str(pack_dataset(source, Counting(), tmp_path, capacity=8, num_proc=1))


def test_seconds_are_rounded_for_people(tmp_path):
    """In a file with one value in a line."""

    class Slow(Progress):
        def _closed(self, record):
            record.seconds = 1.23456

    summary = pack_dataset(texts(3, 5), toy_chat_encoder(), tmp_path, capacity=8, progress=Slow())
    assert set(summary.seconds.values()) == {1.23}
    text = (tmp_path / "summary.json").read_text()
    assert text == json.dumps(summary.as_dict(), indent=1)


def test_samples_of_one_token_are_read(tmp_path):
    """They have no target, and are not rows that cannot be packed."""
    rows = [{"input_ids": [token]} for token in (5, 6)]
    with pytest.raises(NoTargetError, match=r"none of 2 samples has a target .* the first is memory\[0\]"):
        pack_dataset(rows, TokenEncoder(), tmp_path, capacity=8, no_target="keep")


def test_the_first_of_the_rejected_rows_is_named(tmp_path):
    """With its place: a user looks there first."""
    rows = [*texts(3), {"nothing": 1}, {"text": 2}, *texts(4), {"text": None}]
    summary = pack_dataset(rows, toy_chat_encoder(), tmp_path, capacity=8, on_bad_sample="skip")
    assert summary.first_rejected.startswith("memory[1]")
    assert pack_dataset(texts(3), toy_chat_encoder(), tmp_path / "none", capacity=8).first_rejected == ""


@pytest.mark.parametrize(("unit", "is_offered"), [("file", True), ("line", False)])
def test_a_file_that_fits_in_no_pack_may_be_one_of_lines(tmp_path, unit, is_offered):
    """Most large text files hold a document in each line."""
    (tmp_path / "a.txt").write_text("many words in a line\n" * 3)
    source = open_source(tmp_path / "a.txt", text_unit=unit)
    with pytest.raises(OversizedSampleError) as refused:
        pack_dataset(source, toy_chat_encoder(), tmp_path / "packs", capacity=4, overflow="drop")
    assert ('text_unit="line" if each line is a document' in str(refused.value)) is is_offered


def test_a_refused_job_leaves_a_store_as_it_was(tmp_path):
    """Lengths of the second job in the directory of the first made every report of it fail."""
    source, encoder = open_source([{"text": "abc" * number} for number in range(3, 30)]), toy_chat_encoder()
    pack_dataset(source, encoder, tmp_path / "packs", capacity=200)
    before = {path: path.read_bytes() for path in (tmp_path / "packs").rglob("*") if path.is_file()}
    for options in ({"budgets": {"loss_tokens": 150}}, {"seed": 1}, {"min_fill": 0.5}):
        with pytest.raises(StoreMismatchError, match="settings"):
            pack_dataset(source, encoder, tmp_path / "packs", PlanSettings(capacity=200, **options))
    assert before == {path: path.read_bytes() for path in (tmp_path / "packs").rglob("*") if path.is_file()}


def test_a_store_of_another_job_is_refused(tmp_path):
    """Named by what differs, before any work is done."""
    source, encoder = open_source(texts(3, 5, 4)), toy_chat_encoder()
    pack_dataset(source, encoder, tmp_path, capacity=8)
    with pytest.raises(StoreMismatchError, match=r"capacity \(8 there, 16 now\)"):
        pack_dataset(source, encoder, tmp_path, capacity=16)
    with pytest.raises(StoreMismatchError, match=r"encoder \("):
        pack_dataset(source, toy_chat_encoder(version=1), tmp_path, capacity=8)


def test_settings_are_objects_or_keywords(tmp_path):
    """Without it an option of plans is given to one call as a keyword and to the next as an object."""
    encoder = toy_chat_encoder()
    with pytest.raises(TypeError, match=r"give capacity, or settings=PlanSettings\(capacity=…\)"):
        pack_dataset(texts(3), encoder, "nowhere")
    with pytest.raises(TypeError, match="settings must be a PlanSettings and is 8: or give its fields as keywords"):
        pack_dataset(texts(3), encoder, "nowhere", 8)  # type: ignore[arg-type]
    objects = PlanSettings(capacity=8, overflow="drop"), JobSettings(num_proc=1)
    of_objects = pack_dataset(texts(3, 9), encoder, tmp_path / "a", objects[0], job=objects[1])
    of_keywords = pack_dataset(texts(3, 9), encoder, tmp_path / "b", capacity=8, overflow="drop", num_proc=1)
    of_both = pack_dataset(texts(3, 9), encoder, tmp_path / "c", PlanSettings(capacity=9), capacity=8, overflow="drop")
    assert of_objects.plan.fingerprint == of_keywords.plan.fingerprint == of_both.plan.fingerprint
    with pytest.raises(SettingsError, match="task_index: all shares have to be measured before one plan"):
        pack_dataset(texts(3), encoder, "nowhere", capacity=8, execution=Execution(task_index=0, num_tasks=2))


def test_a_mixture_takes_its_sources_by_name(tmp_path):
    """They lie one after the other, and the summary has a line on their shares."""
    named = {"a": texts(*[4] * 6), "b": texts(*[4] * 6)}
    settings = PlanSettings(capacity=8, draw=Mixture(weights={"a": 3, "b": 1}))
    summary = pack_dataset(named, toy_chat_encoder(), tmp_path, settings)
    assert summary.source == "2 sources: a, b"
    assert summary.table.tokens.tolist() == [4] * 12
    shares = summary.plan.outcome.drawn["sources"]
    assert [(share["source"], share["begin"]) for share in shares] == [("a", 0), ("b", 6)]
    assert [line for line in str(summary).splitlines() if line.startswith("mixture        ")]


def test_a_budget_that_packing_cannot_measure(tmp_path):
    """Named with the ones that it can; of a job that measures the targets of the loss they are one."""
    with pytest.raises(SettingsError, match=r"budgets 'patches' is unknown: packing can measure loss_tokens, samples"):
        pack_dataset(texts(3), toy_chat_encoder(), tmp_path, PlanSettings(capacity=8, budgets={"patches": 4}))
    summary = pack_dataset(
        texts(3, 5, 4), toy_chat_encoder(), tmp_path, PlanSettings(capacity=20, budgets={"loss_tokens": 7})
    )
    assert sorted(summary.table.budgets) == ["loss_tokens", "tokens"]
    assert summary.plan.num_packs == 2


def test_a_source_of_which_nothing_can_be_packed(tmp_path):
    """Every row is rejected: the first is named, with its reason."""
    with pytest.raises(SourceError, match=r"^no row of .* can be packed; the first is memory\[0\]"):
        pack_dataset([{"text": 1}], toy_chat_encoder(), tmp_path, capacity=8, on_bad_sample="skip")


@pytest.mark.parametrize(
    ("limits", "way_out"),
    [
        ({"capacity": 4}, 'overflow="split", a larger capacity'),
        ({"capacity": 4, "share": "prefixes"}, 'overflow="truncate", a larger capacity'),
        ({"capacity": 64, "max_path": 4, "share": "prefixes"}, 'overflow="truncate", a larger max_path'),
    ],
)
def test_a_job_of_which_no_sample_is_left(limits, way_out, tmp_path):
    """In one line, with and without shared beginnings; and what it offers leaves one."""
    rows = [{"input_ids": [*range(1, 10), last]} for last in (10, 11)]
    with pytest.raises(OversizedSampleError) as refused:
        pack_dataset(rows, TokenEncoder(), tmp_path / "none", overflow="drop", **limits)
    assert str(refused.value) == (
        "no sample is left to pack: 2 were dropped; the longest is memory[0] (sample 0) with 10 tokens. "
        f"Choose {way_out}"
    )
    policy = way_out.split('"')[1]
    pack_dataset(rows, TokenEncoder(), tmp_path / policy, overflow=policy, **limits)
    assert Plan.open(tmp_path / policy / "plan.arrow").ledger.samples_dropped == 0


def test_rows_of_two_samples_are_groups_of_the_plan(tmp_path):
    """Both sides of a preference are in one pack, and another grouping is another job."""
    rows = [{"prompt": "p", "chosen": "a" * number, "rejected": "b"} for number in range(1, 9)]
    source = open_source(rows)
    assert source.group_size == 2
    summary = pack_dataset(source, toy_chat_encoder(), tmp_path, capacity=50)
    for pack in summary.plan:
        ids = [segment.sample_id for segment in pack]
        assert sorted(ids) == sorted({row * 2 + side for row in {i // 2 for i in ids} for side in (0, 1)})
    assert pack_dataset(source, toy_chat_encoder(), tmp_path, capacity=50).seconds == {}
