"""Causes of leaks and differences, found by repairs of the batch; on a model of milliseconds."""

import pytest

torch = pytest.importorskip("torch")

from brimful.verify import Status  # noqa: E402
from brimful.verify.checks.isolation import check_isolation  # noqa: E402
from brimful.verify.checks.parity import check_parity  # noqa: E402
from brimful.verify.diagnosis import diagnose_leak, explain_parity, is_random, way_out_of_refusal  # noqa: E402
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import Toy, samples, setup_of  # noqa: E402


def cause_of(collator=faults.right, model=None, rows=None):
    setup = setup_of(collator, model, rows)
    finding, leak = check_isolation(setup)
    assert finding.failed
    assert leak is not None
    return diagnose_leak(setup, leak)


def only(*names):
    return lambda rows: {
        key: value for key, value in faults.right(rows).items() if key in ("input_ids", "labels", *names)
    }


class Config(Toy):
    """A toy that is recurrent by the name of its layers."""

    def __init__(self, reads="seq_idx", **config):
        super().__init__(reads, layer_types=["linear_attention"], **config)


@pytest.mark.parametrize(
    ("collator", "model", "cause"),
    [
        (faults.mask_present, Toy(), "mask present"),
        (faults.cache_left_on, Toy(), "cache: "),
        (faults.positions_not_reset, Toy(), "positions not reset"),
        (faults.no_boundaries_at_all, Toy(), "no position_ids"),
        (faults.positions_one_late, Toy(), "boundaries off by one"),
        (faults.mrope_over_the_whole_row, Toy(), "mRoPE: boundaries are read from a row of text"),
        (only("position_ids", "use_cache"), Toy("cu_seq_lens_q"), "cu_seq_lens are missing or wrong"),
        (only("position_ids", "use_cache"), Config(), "state leak: recurrent layers carry their state"),
        (only("position_ids"), Config(), "cache: "),
        (faults.right, Config("nothing"), "state leak: Config ignores seq_idx and cu_seq_lens here"),
        (faults.right, Toy("nothing"), "Toy builds its attention mask without position_ids"),
        (faults.right, faults.LeakOf(Toy(), 0.1), "LeakOf does not keep samples apart with any batch"),
    ],
)
def test_the_repair_that_stops_a_leak_is_its_cause(collator, model, cause):
    """One change of the batch after another; what stops the leak is what to change."""
    found = cause_of(collator, model)
    assert found.cause.startswith(cause)
    assert found.way_out


def test_two_faults_are_repaired_together():
    """None alone stops the leak, so both are named."""
    found = cause_of(lambda rows: {**only("position_ids")(rows), "attention_mask": torch.ones(1, 25)})
    assert found.cause.startswith("mask present")
    assert "; cache: " in found.cause
    assert "position_ids" not in found.cause


def test_a_repair_that_the_model_refuses_is_passed_over_and_quoted():
    """The kernel is missing here: the cause is known, and the way out is another machine."""

    class NoKernel(Config):
        def forward(self, seq_idx=None, **batch):
            if seq_idx is not None:
                raise RuntimeError("install the kernel. Please")
            return super().forward(**batch)

    found = cause_of(only("position_ids", "use_cache"), NoKernel())
    assert "given them, the model refuses here: install the kernel" in found.cause
    assert "causal-conv1d" in found.way_out


def test_a_refusal_of_packed_rows_asks_for_kernels_and_any_other_for_another_attention():
    assert way_out_of_refusal(setup_of(), "no packed sequences here").startswith("install causal-conv1d")
    assert way_out_of_refusal(setup_of(model=Config()), "no").startswith("install causal-conv1d")
    assert way_out_of_refusal(setup_of(), "no").startswith("another attention")


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (tree_faults.siblings_visible, "siblings are visible"),
        (tree_faults.trunks_invisible, "branches do not see their trunk"),
    ],
)
def test_a_leak_in_a_tree_is_explained_by_what_each_token_sees(fault, cause):
    found = cause_of(tree_faults.Trees(fault), rows=random_trees(64))
    assert found.cause.startswith(cause)


# Differences without a leak


def explained(collator=faults.right, model=None, rows=None, **options):
    setup = setup_of(collator, model, rows, **options)
    findings, _ = check_parity(setup, setup.per_sample_reference(), setup.batch)
    return {finding.check: finding for finding in explain_parity(setup, findings)}


class InPacks(faults.Around):
    """Logits that are wrong in rows of several samples, each sample alone."""

    factor = 1.5

    def change(self, logits, batch):
        positions = batch.get("position_ids", torch.zeros(1, 1))
        return logits * (self.factor if (positions == 0).sum() > 1 else 1)


class InRows(faults.Around):
    """Logits that depend on the width of the batch."""

    def change(self, logits, batch):
        return logits * (1 + 0.1 * batch["input_ids"].shape[1])


class OneRow(InPacks):
    def forward(self, input_ids=None, **batch):
        if len(input_ids) > 1:
            raise RuntimeError("one row")
        return super().forward(input_ids=input_ids, **batch)


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (InPacks, "unknown: samples are apart, a row for each is right"),
        (InRows, "not the packing: with a row for each sample the numbers also differ"),
        (OneRow, "unknown: samples are apart, and a row for each, which would tell"),
        (faults.DropoutLeftOn, "randomness: the same batch gives other logits"),
    ],
)
def test_a_difference_without_a_leak_is_the_packing_or_the_model(model, cause):
    """A row for each sample tells one from the other; the first failure has the cause, and the others follow."""
    found = explained(model=model(Toy()))
    assert found["logits"].cause.startswith(cause)
    assert [finding.cause for finding in found.values() if finding.failed][1:].count("") >= 1
    assert explained()["logits"].passed


def test_positions_of_a_tree_that_are_wrong_explain_its_logits():
    """The attention may be right, and the positions are not, or both are wrong."""

    def by_row(batch, packs):
        return tree_faults.no_window(tree_faults.positions_run_on(batch, packs), packs)

    trees = random_trees(64)
    assert explained(tree_faults.Trees(by_row), rows=trees)["logits"].cause.startswith("positions run on along the row")

    def both(batch, packs):
        return tree_faults.siblings_visible(batch, packs) | {"position_ids": torch.arange(tree_faults.SIZE)[None]}

    found = explained(tree_faults.Trees(both), rows=trees)["logits"].cause
    assert "siblings" in found or "trees of a row see each other" in found
    assert "; positions run on" in found


class Rounds(faults.Around):
    """Logits that are off in low precision: in packs by ``packs``, with a row for each by ``rows``."""

    def __init__(self, packs, rows, always=0.0):
        super().__init__(Toy(dtype=torch.bfloat16))
        self.packs, self.rows, self.always = packs, rows, always

    def change(self, logits, batch):
        alone, packed = len(batch["input_ids"]) == 1, (batch.get("position_ids", torch.ones(1)) == 0).sum() > 1
        if self.inner.head.dtype is torch.float32:
            return logits * (1 + self.always * bool(packed))
        return logits * (1 + (self.packs if packed else 0 if alone else self.rows))


@pytest.mark.parametrize(
    ("packs", "rows", "always", "words"),
    [
        (0.3, 0.1, 0, "told in float32; rounding in bfloat16 makes"),
        (0.6, 0.1, 0, "a kernel in bfloat16: float32 is right"),
        (0.3, 0.1, 0.3, "not the packing"),
        (0.3, 0.01, 0.3, "unknown: samples are apart, a row for each is right"),
    ],
)
def test_rounding_passes_up_to_four_times_what_rows_round(packs, rows, always, words):
    """Float32 tells rounding from a fault, and rows tell how much is rounding."""
    logits = explained(model=Rounds(packs, rows, always), with_gradients=False)["logits"]
    assert logits.status is (Status.PASS if words.startswith("told") else Status.FAIL), logits
    assert words in logits.detail + logits.cause
    strict = explained(model=Rounds(0.3, 0.1), with_gradients=False, tolerance=1e-3)["logits"]
    assert strict.failed


def test_without_float32_rounding_is_not_told_from_a_fault():
    class LowOnly(Rounds):
        def change(self, logits, batch):
            if self.inner.head.dtype is torch.float32:
                raise RuntimeError("no float32")
            return super().change(logits, batch)

    assert "float32, which would tell" in explained(model=LowOnly(0.3, 0.1), with_gradients=False)["logits"].cause
    assert not is_random(setup_of())
    assert is_random(setup_of(model=faults.DropoutLeftOn(Toy())))
    assert samples()
