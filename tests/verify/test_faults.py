"""``verify_packing`` sees each of these faults, names its likely cause, and finds nothing wrong with the right one."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.store.shards import assemble_pack  # noqa: E402
from brimful.verify import Status, verify_packing  # noqa: E402
from brimful.verify.drawn_samples import random_samples  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.marks import long_but  # noqa: E402
from tests.verify import faults  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and Transformers; as errors they would break it

IDS = [[5, 9, 3, 7, 5, 8, 4], [11, 12, 5, 13, 14, 15, 16, 17, 18], [21], [31, 5, 32, 33]]
PROMPTS = [2, 1, 0, 0]
"""Tokens at the beginning that are no targets. Token 5 plays the EOS."""


def samples():
    return [
        {"input_ids": list(ids), "labels": [-100] * prompt + ids[prompt:]}
        for ids, prompt in zip(IDS, PROMPTS, strict=True)
    ]


@pytest.fixture(scope="module")
def models():
    """Each tiny model once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tiny_model(name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def reports(models):
    """Each report of a model and a collator once: several tests look at one."""
    made = {}

    def get(name, collator, attention="eager"):
        key = (name, collator, attention)
        if key not in made:
            made[key] = run(models(name), collator, attention)
        return made[key]

    return get


SHORT_FAULTS = {
    faults.whole_pack_label_shift,
    faults.padding_trained_on,
    faults.positions_not_reset,
    faults.mask_present,
    faults.cp_rounding,
    faults.one_seq_idx,
    faults.in_place_labels,
    faults.lost_sample,
    faults.boundaries_one_late,
}
"""One or two of each check: each runs a model a dozen times, and `make test-all` runs them all."""


def run(model, collator, attention="eager", **options):
    return verify_packing(model, collator, samples(), attention=attention, **options)


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    long_but(
        SHORT_FAULTS,
        [
            (faults.whole_pack_label_shift, "labels", "whole-pack label shift: the last token of 2 samples"),
            (faults.first_label_kept, "labels", "first label kept: 2 samples"),
            (faults.double_shift, "labels", "double shift"),
            (faults.not_shifted, "labels", "not shifted"),
            (faults.prompts_trained_on, "labels", "tokens without a label in their sample"),
            (faults.pad_told_by_token, "labels", "all of them token 5: padding is recognized by its token"),
            (faults.padding_trained_on, "padding", "labels are copied from the padded tokens"),
            (faults.pad_at_position_0, "padding", "pad at position 0"),
            (faults.padding_joined_to_a_sample, "padding", "attended to"),
            (faults.positions_not_reset, "positions", "positions not reset"),
            (faults.positions_not_reset, "isolation", "positions not reset"),
            (faults.no_boundaries_at_all, "positions", "no position_ids"),
            (faults.no_boundaries_at_all, "isolation", "no position_ids"),
            (faults.mask_present, "isolation", "mask present"),
            (faults.cache_left_on, "isolation", "cache"),
            (faults.cp_rounding, "boundaries", "context-parallel rounding: 7 tokens are given to the kernel as 6"),
            (faults.padding_in_no_segment, "boundaries", "padding at the end is in no segment"),
            (faults.max_length_too_small, "boundaries", "never computes the end of the longest"),
            (faults.one_seq_idx, "boundaries", "carry their state"),
            (faults.in_place_labels, "untouched", "in-place labels"),
            (faults.repeated_sample, "complete", "sample 0 is repeated and sample 3 is lost"),
            (faults.lost_sample, "complete", "sample 3 is lost"),
            (faults.labels_dropped, "labels", "the collator drops the labels"),
            (faults.boundaries_one_late, "boundaries", "boundaries off by one: every one lies 1 token after"),
            (
                faults.lengths_of_shifted_labels,
                "boundaries",
                "lengths off by one: every sample is given to the kernel with",
            ),
            (faults.seq_idx_one_late, "boundaries", "seq_idx off by one"),
            (faults.positions_one_late, "positions", "boundaries off by one: positions start again 1 token late"),
            (faults.positions_one_late, "isolation", "boundaries off by one: positions start again 1 token late"),
        ],
    ),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_collator_is_found_and_explained(reports, fault, check, cause):
    """Without it a check could pass whatever the collator does, and prove nothing."""
    report = reports("qwen2", fault)
    assert not report.ok
    found = [finding for finding in report.failures if finding.check == check]
    assert found, str(report)
    assert cause in found[0].cause, str(report)
    assert found[0].way_out


@pytest.mark.parametrize(
    ("name", "collator", "attention", "cause"),
    long_but(
        {"qwen2_vl", "mamba2"},
        [
            ("qwen2_vl", faults.mrope_over_the_whole_row, "sdpa", "mRoPE"),
            ("qwen2_vl", faults.mrope_without_a_text_row, "sdpa", "a row of text positions"),
            ("qwen3_next", faults.no_boundaries_for_recurrent_layers, "eager", "state leak"),
            ("mamba2", faults.right, "eager", "state leak: Mamba2ForCausalLM ignores seq_idx"),
            ("gpt_oss", faults.right, "eager", "builds its attention mask without position_ids"),
        ],
    ),
)
def test_a_leaking_architecture_is_found_and_explained(reports, name, collator, attention, cause):
    """Leaks of 2026: the batch is right for a plain model, and this one needs more, or cannot be helped."""
    report = reports(name, collator, attention)
    found = [finding for finding in report.failures if finding.check == "isolation"]
    assert found, str(report)
    assert cause in found[0].cause, str(report)
    assert found[0].measured > 1000 * found[0].limit


def test_mrope_rows_that_run_on_are_named(reports):
    """The positions alone already show it, before any forward."""
    report = reports("qwen2_vl", faults.mrope_over_the_whole_row, "sdpa")
    assert [found.cause for found in report.failures if found.check == "positions"] == [
        "mRoPE over the whole row: all 3 rows of position_ids run on through the samples"
    ]


@pytest.mark.parametrize(
    ("wrapper", "check", "cause"),
    [
        (faults.PerMicroBatchMean, "weights", "per-pack mean: the loss ignores num_items_in_batch"),
        (faults.PerPackMean, "loss", "a mean of per-sample means"),
        (faults.DividedByPaddedTokens, "loss", "divided by all 25 tokens of the batch, padding and prompts included"),
        (faults.LabelsNotShifted, "loss", "the model does not shift its labels"),
        (faults.ZLossAndPerSampleMean, "loss", "with an auxiliary loss, targets of sample"),
    ],
)
def test_a_wrong_denominator_is_found(models, wrapper, check, cause):
    """Logits and labels are right, and still some targets weigh more than others."""
    report = run(wrapper(models("qwen2")), faults.right)
    found = {finding.check: finding for finding in report.failures}
    assert check in found, str(report)
    assert cause in found[check].cause
    assert not {"isolation", "logits", "labels"} & set(found)
    assert {finding.cause for finding in report.failures if finding.check != check} <= {"follows from loss"}


@pytest.mark.long
def test_a_refusal_is_not_supported_and_says_what_works(models):
    """Gated delta nets without their kernels refuse packed batches: no leak, and no proof either."""
    report = run(models("qwen3_next"), faults.right)
    assert not report.failures
    assert not report.ok
    assert "NOT PROVEN" in report.verdict
    refused = [finding for finding in report.findings if finding.status is Status.NOT_SUPPORTED]
    assert "can't keep packed sequences apart" in refused[0].detail
    assert "one sample per row" in refused[0].way_out


@pytest.mark.parametrize("attention", long_but({"eager", "sdpa"}, ["eager", "sdpa", "flex_attention"]))
@pytest.mark.parametrize("collator", [faults.right, PackCollator(), PackCollator(pad_to=32)])
def test_the_right_collator_passes(models, collator, attention):
    """Every check that sees a fault above must also be able to pass."""
    report = run(models("qwen2"), collator, attention)
    assert report.ok, str(report)
    assert {finding.status for finding in report.findings} == {Status.PASS}


def test_mrope_with_a_text_row_passes(models):
    """The way out that the report names is one."""
    assert run(models("qwen2_vl"), faults.mrope_right, "sdpa").ok


def test_the_collator_of_transformers_passes_once_the_cache_is_off(models):
    """Its batches do not say use_cache=False, so the configuration has to."""
    model = models("qwen2")
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    assert "use_cache" in run(model, collator, "sdpa").failures[0].way_out
    model.config.use_cache = False
    try:
        assert run(model, collator, "sdpa").ok
    finally:
        model.config.use_cache = True


def test_packs_are_taken_as_well_as_samples(models):
    """Two packs in one batch; segments are known from the packs."""
    import numpy as np

    ids = [np.array(row, dtype=np.int32) for row in IDS]
    masks = [np.ones(len(row), dtype=bool) for row in IDS]
    packs = [assemble_pack(ids[:2], masks[:2], [40, 41]), assemble_pack(ids[2:], masks[2:], [42, 43])]
    report = verify_packing(models("qwen2"), PackCollator(pad_to=32), packs, attention="sdpa")
    assert report.ok, str(report)
    assert "4 samples, 21 tokens" in report.subject


def test_one_padded_row_a_sample_passes(models):
    """No packing at all is right too: a mask is right where no two samples share a row."""

    def padded(features):
        width = max(len(feature["input_ids"]) for feature in features)
        rows = {"input_ids": 0, "labels": -100, "attention_mask": 0}
        ones = [{**feature, "attention_mask": [1] * len(feature["input_ids"])} for feature in features]
        return {
            key: torch.tensor([one[key] + [fill] * (width - len(one[key])) for one in ones])
            for key, fill in rows.items()
        }

    report = run(models("qwen2"), padded, "sdpa")
    assert report.ok, str(report)


@pytest.mark.long
def test_the_model_is_left_as_it_was(models):
    """A check in the middle of a training script must not change the training."""
    model = models("qwen2").train()
    before = model.config._attn_implementation
    run(model, PackCollator(), ["eager", "flex_attention"])
    assert model.training
    assert model.config._attn_implementation == before
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()


def failed(report):
    return {finding.check: finding for finding in report.failures}


def test_a_leak_in_training_mode_only_is_found(models):
    """Training never runs in eval(): a mask that is dropped by a kernel of training alone leaks there alone."""
    report = run(faults.LeakOf(models("qwen2"), 0.1, only_in_training=True), faults.right)
    found = failed(report)
    assert "isolation" not in found, str(report)
    assert found["training"].cause.startswith("in training mode only: ")
    assert found["logits"].cause == "follows from training"


def test_a_leak_in_both_modes_is_explained_once(reports):
    """The same cause twice reads as two faults."""
    assert failed(reports("qwen2", faults.mask_present))["training"].cause == "follows from isolation"


@pytest.mark.long
@pytest.mark.parametrize("size", [1e-3, 1e-2])
def test_a_leak_that_bf16_rounds_away_in_other_numbers_is_found(models, size):
    """Nothing but a leak moves a dense model's logits, so in bf16 the last bit counts too."""
    small = faults.LeakOf(tiny_model("qwen2", dtype="bfloat16"), size)
    isolation = failed(run(small, faults.right))["isolation"]
    assert isolation.limit == 0
    assert 0 < isolation.measured < 2e-2


def test_gradients_that_leak_alone_are_named(models):
    """Logits and loss are right: only the loss of one sample at the embeddings of another shows it."""
    found = failed(run(faults.BackwardLeak(models("qwen2")), faults.right))
    assert set(found) == {"gradients"}
    assert "leak in the backward" in found["gradients"].cause
    assert found["gradients"].measured > 1000 * found["gradients"].limit


def test_dropout_that_stays_on_is_named(models):
    """Two runs differ whether packed or not; samples do not see each other."""
    found = failed(run(faults.DropoutLeftOn(models("qwen2")), faults.right))
    assert "isolation" not in found
    assert "randomness" in found["logits"].cause


def test_dropout_in_training_is_no_fault(models):
    """Rates that cannot be set to 0 leave parity to eval(), and the report says so."""
    report = run(faults.DropoutInTraining(models("qwen2")), faults.right)
    assert report.ok, str(report)
    (training,) = [finding for finding in report.findings if finding.check == "training"]
    assert "parity was measured in eval()" in training.detail


@pytest.mark.long
def test_rates_of_dropout_are_0_in_training_mode_meanwhile():
    """GPT-2 has three of 0.1; with them two runs of the same batch differ, and parity could only be shown in eval()."""
    model = tiny_model("gpt2")
    report = run(model, faults.right)
    assert report.ok, str(report)
    (training,) = [finding for finding in report.findings if finding.check == "training"]
    assert (training.measured, "eval()" in training.detail) == (0.0, False)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [(faults.ZLoss, "an auxiliary loss of"), (faults.MultiTokenPrediction, "as it depends on labels")],
)
def test_an_auxiliary_loss_is_named_and_left_out(models, wrapper, words):
    """It is another number packed and alone, and no fault of packing: the loss of the logits is compared."""
    report = run(wrapper(models("qwen2")), faults.right)
    assert report.ok, str(report)
    (loss,) = [finding for finding in report.findings if finding.check == "loss"]
    assert words in loss.detail
    assert loss.measured <= loss.limit


@pytest.mark.long
def test_the_balance_of_experts_is_named_and_left_out():
    """output_router_logits adds a loss of the whole batch to the model's."""
    model = tiny_model("qwen3_moe")
    model.config.output_router_logits = True
    model.config.router_aux_loss_coef = 0.5
    report = run(model, faults.right)
    assert report.ok, str(report)
    (loss,) = [finding for finding in report.findings if finding.check == "loss"]
    assert "(aux_loss)" in loss.detail
    assert {finding.check for finding in report.findings if finding.status is Status.PASS} >= {"gradients", "weights"}


def test_samples_that_move_each_other_in_rows_of_their_own_are_not_laid_to_the_packing(models):
    """The same happens without packing, so no batch repairs it."""
    found = failed(run(faults.StatisticsOverTheBatch(models("qwen2")), faults.right))
    assert found["isolation"].cause.startswith("not the packing")


@pytest.mark.long
def test_rounding_by_what_else_is_in_the_batch_is_no_leak_in_bf16():
    """Groups of experts do that; it moves others as a leak does, and float32 tells the two apart."""
    report = run(faults.RoundsByTheBatch(tiny_model("qwen2", dtype="bfloat16")), faults.right)
    assert report.ok, str(report)
    (isolation,) = [finding for finding in report.findings if finding.check == "isolation"]
    assert "told in float32; rounding in bfloat16 moves" in isolation.detail
    assert 0 < isolation.measured <= isolation.limit == 1e-5


@pytest.mark.long
def test_groups_of_experts_round_otherwise_and_do_not_leak():
    """A token that is alone with its expert is multiplied by another kernel than two of them; 2e-7 is not a leak in fp32."""
    report = verify_packing(tiny_model("mixtral"), PackCollator(pad_to=64), random_samples(128), attention="eager")
    assert report.ok, str(report)
    assert any(finding.measured for finding in report.findings if finding.check == "isolation")


@pytest.mark.long
def test_a_leak_below_rounding_in_bf16_is_found():
    """What rounding may move must not hide a leak."""
    rounding = faults.RoundsByTheBatch(tiny_model("qwen2", dtype="bfloat16"))
    isolation = failed(run(faults.LeakOf(rounding, 1e-3), faults.right))["isolation"]
    assert isolation.limit == 1e-5


def test_without_any_labels_the_loss_is_said_not_to_be_checked(models):
    """A PASS that says nothing of the loss is read as if it did."""
    unlabelled = [{"input_ids": ids} for ids in IDS]

    def collator(features):
        return faults.without(faults.right([{**one, "labels": one["input_ids"]} for one in features]), "labels")

    report = verify_packing(models("qwen2"), collator, unlabelled, attention="sdpa")
    assert "LOSS NOT CHECKED: neither the samples nor the batch have labels" in report.verdict


def test_every_module_keeps_its_mode_and_statistics_are_put_back(models):
    """A frozen encoder in eval(), or a running mean, must not change while a training run is looked at."""
    wrapper = faults.Around(models("qwen2"))
    wrapper.register_buffer("seen", torch.zeros(()))
    wrapper.change = lambda logits, batch: logits + 0 * wrapper.seen.add_(1)  # type: ignore[method-assign]
    wrapper.train()
    frozen = next(module for module in wrapper.modules() if isinstance(module, torch.nn.Embedding)).eval()
    assert run(wrapper, faults.right).ok
    assert (wrapper.training, frozen.training, int(wrapper.seen)) == (True, False, 0)  # type: ignore[arg-type]
    models("qwen2").eval()


@pytest.mark.parametrize(
    ("collator", "check"),
    [
        (faults.positions_of_few_bits, "positions"),
        (faults.labels_of_a_first_block, "labels"),
        (faults.boundaries_of_blocks, "boundaries"),
        (faults.tokens_beyond_a_block_lost, "complete"),
    ],
)
def test_faults_of_long_samples(models, collator, check):
    """No model is run on them, and a training meets them all the same."""
    report = run(models("qwen2"), collator, "eager")
    failed = {finding.check: finding.detail for finding in report.findings if finding.status is Status.FAIL}
    assert set(failed) - {"labels"} <= {check}  # lost tokens are lost labels too
    assert failed[check].startswith("with a sample of 16,400 tokens: ")


def test_a_collator_of_rows_of_one_length_need_not_take_long_samples(models):
    """It refuses them as it should."""
    assert run(models("qwen2"), PackCollator(pad_to=64), "eager").verdict.startswith("PASS")
