"""Packed rows of KTO have the tokens, the loss and the gradient that TRL's KTOTrainer gives them."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


from brimful import (  # noqa: E402
    ChatEncoder,
    CompletionEncoder,
    LengthTable,
    PackCollator,
    PackedDataset,
    PlanSettings,
    measure_lengths,
    open_source,
    pack_dataset,
    plan_packs,
    write_packs,
)
from brimful.encode import EncodedSample  # noqa: E402
from brimful.encode.completions import encode_borrowed  # noqa: E402
from brimful.encode.encoded import EncodedBatch  # noqa: E402
from brimful.encode.tokenizer import Tokenizer  # noqa: E402
from brimful.errors import BadSampleError, CollateError, SettingsError  # noqa: E402
from brimful.preferences.kto import (  # noqa: E402
    KtoCollator,
    kl_sums,
    packed_kto_loss,
    split_kl_completions,
    train_on_kto,
    with_mismatch_targets,
)
from brimful.preferences.references import ReferenceLogps, compute_references  # noqa: E402
from brimful.report.analysis.plan_facts import PlanFacts  # noqa: E402
from brimful.report.html.page import ledger_section  # noqa: E402
from brimful.sources import Sample  # noqa: E402
from tests.preferences import preference_pairs as tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_ROWS = 8
SETTINGS: dict[str, Any] = {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}


def rows(count=NUM_ROWS):
    return [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": index % 3 != 0}
        for index, row in enumerate(tiny.rows(count))
    ]


def packs(count=NUM_ROWS, *, capacity=96, **options):
    source, encoder = open_source(rows(count), format="kto"), CompletionEncoder(tiny.tokenizer())
    return PackedDataset.from_plan(
        source, encoder, plan_packs(measure_lengths(source, encoder), capacity=capacity, **options)
    )


def trl_trainer(folder, *, policy, reference, loss_type="kto"):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl", minversion="1.16")
    arguments = trl.KTOConfig(
        str(folder), report_to="none", use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
        loss_type=loss_type, per_device_train_batch_size=NUM_ROWS, **SETTINGS,
    )  # fmt: skip
    return trl.KTOTrainer(
        tiny.model(policy),
        tiny.model(reference),
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows()),
        processing_class=tiny.tokenizer(),
    )


def step_loss(micro_batches, model, reference=None, loss_type="kto", num_rows=NUM_ROWS):
    """The loss of a step of several micro-batches, and its KL term."""
    kl = None
    if loss_type == "kto":
        total, count = sum(kl_sums(model, batch, reference_model=reference) for batch in micro_batches)
        kl = (total / count).clamp(min=0)
    losses = [
        packed_kto_loss(model, batch, kl=kl, reference_model=reference, loss_type=loss_type, **SETTINGS).losses.sum()
        for batch in micro_batches
    ]
    return sum(losses) / num_rows, kl


@pytest.mark.parametrize(
    ("policy", "reference", "loss_type"),
    [(0, 1, "kto"), (1, 0, "kto"), (0, 1, "apo_zero_unpaired")],
)
def test_a_step_of_packs_is_a_batch_of_trl(tmp_path, policy, reference, loss_type):
    """Also where the KL term is below 0, and packs of different numbers of rows are micro-batches of their own."""
    trainer = trl_trainer(tmp_path, policy=policy, reference=reference, loss_type=loss_type)
    expected = trainer._compute_loss(
        trainer.model.train(), trainer.data_collator([trainer.train_dataset[i] for i in range(NUM_ROWS)]), False
    )
    expected.backward()
    model, collator = tiny.model(policy).train(), KtoCollator(PackCollator(pad_to=96), needs_kl=loss_type == "kto")
    micro_batches = [collator([pack]) for pack in packs()] + [collator([packs()[0].without_loss()])]
    sizes = [len(batch["kto"]["segments"]) for batch in micro_batches]
    assert sum(sizes) == NUM_ROWS
    assert len(set(sizes)) > 1
    assert sizes[-1] == 0, "a filler has no rows"
    loss, kl = step_loss(micro_batches, model, tiny.model(reference), loss_type)
    loss.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    if kl is not None:
        assert float(kl) == pytest.approx(trainer._metrics["train"]["kl"][0], abs=1e-5)
        assert (float(kl) > 0) == (policy == 1), "one of the cases has a KL term that counts"
    for (name, weight), other in zip(model.named_parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)


def check_tokens(source, encoder, expected):
    samples = encoder.encode_batch(list(source.read(0, len(source))))
    for index, row in enumerate(expected):
        answer, mismatch = samples[2 * index : 2 * index + 2][:: 1 if row["label"] else -1]
        num_prompt = len(row["prompt_ids"])
        assert answer.input_ids.tolist() == row["prompt_ids"] + row["completion_ids"]
        assert answer.loss_mask.tolist() == [False] * num_prompt + [True] * len(row["completion_ids"])
        assert mismatch.input_ids.tolist() == row["prompt_ids"] + row["KL_completion_ids"]
        assert not mismatch.loss_mask.any()
        lengths, errors = encoder.lengths([source[2 * index], source[2 * index + 1]])
        assert lengths.tolist() == [len(samples[2 * index]), len(samples[2 * index + 1])]
        assert not errors


def tokens_by_trl(some_rows, tokenizer):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl", minversion="1.16")
    trainer = type("Trainer", (), {"_tokenizer": tokenizer, "calculate_KL": True})()
    arguments = type("Arguments", (), {"dataset_num_proc": None, "max_length": None, "per_device_train_batch_size": 8})
    data = datasets.Dataset.from_list(some_rows)
    return trl.KTOTrainer._prepare_dataset(trainer, data, tokenizer, arguments, "eval")


@pytest.mark.long
def test_real_rows_have_the_tokens_of_trl(data_dir, qwen):
    """LLaMA-Factory's rows and TRL's form of them; eleven rows: the last three rotate among themselves."""
    some_rows = json.loads((data_dir / "text/llama_factory_demo/kto_en_demo.json").read_text())[:11]
    trl_rows = [
        {"prompt": row["messages"][:-1], "completion": row["messages"][-1:], "label": row["label"]} for row in some_rows
    ]
    expected = tokens_by_trl(trl_rows, qwen.hf)
    check_tokens(open_source(some_rows, format="messages_kto"), ChatEncoder(qwen), expected)
    check_tokens(open_source(trl_rows, format="kto"), ChatEncoder(qwen), expected)
    texts = [
        {
            "prompt": row["prompt"][-1]["content"],
            "completion": " " + row["completion"][0]["content"],
            "label": row["label"],
        }
        for row in trl_rows
    ]
    check_tokens(open_source(texts, format="kto"), CompletionEncoder(qwen), tokens_by_trl(texts, qwen.hf))


def test_stored_references_are_those_of_the_model(tmp_path):
    data, model, reference = packs(), tiny.model(1), tiny.model(0)
    identity = compute_references(reference, with_mismatch_targets(data), PackCollator(), tmp_path)
    collator = KtoCollator(PackCollator(), ReferenceLogps.open(tmp_path, identity))
    stored, _ = step_loss([collator([pack]) for pack in packs(epoch=1)], model)
    online, kl = step_loss([KtoCollator(PackCollator())(list(data))], model, reference)
    assert float(kl) > 0
    assert float(stored) == pytest.approx(float(online), rel=1e-5)


def test_trainer_weighs_every_row_of_a_step_alike(tmp_path):
    """One step of all packs as micro-batches, as plain gradient descent on one batch."""
    import transformers

    data, model = list(packs()), tiny.model(1)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=len(data), learning_rate=0.1,
        lr_scheduler_type="constant", optim="sgd", max_grad_norm=0, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, KtoCollator(PackCollator()), data)
    train_on_kto(trainer, reference_model=tiny.model(0), **SETTINGS)
    trainer.train()
    assert trainer.kto_metrics["kl"] > 0
    # Of the whole step: the last micro-batch alone may have no row of a label, and its mean be no number.
    batch = KtoCollator(PackCollator())(data)
    rows = packed_kto_loss(tiny.model(1), batch, kl=0.0, reference_model=tiny.model(0), beta=SETTINGS["beta"])
    for name, of_label in (("chosen", True), ("rejected", False)):
        expected_mean = float(rows.rewards[batch["kto"]["is_desirable"] == of_label].mean())
        assert trainer.kto_metrics[f"rewards/{name}"] == pytest.approx(expected_mean, rel=1e-4)
    expected = tiny.model(1)
    step_loss([KtoCollator(PackCollator())(data)], expected, tiny.model(0))[0].backward()
    for weight, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, other - 0.1 * other.grad, rtol=1e-4, atol=1e-5)


def test_a_label_that_a_step_lacks_has_no_mean():
    """Without it a logger draws NaN."""
    trainer = SimpleNamespace(data_collator=KtoCollator(PackCollator(), needs_kl=False), model_wrapped=None)
    trainer.accelerator = SimpleNamespace(num_processes=1, reduce=lambda sums, reduction: sums)
    train_on_kto(trainer, reference_model=tiny.model(0), loss_type="apo_zero_unpaired")
    for pack in packs(capacity=40):
        batch = trainer.data_collator([pack])
        trainer.compute_loss(tiny.model(1), batch)
        assert all(map(math.isfinite, trainer.kto_metrics.values()))
        labels = {"rewards/chosen" if label else "rewards/rejected" for label in batch["kto"]["is_desirable"].tolist()}
        assert len(labels) == 1
        assert set(trainer.kto_metrics) == {"kl"} | labels


def test_what_is_no_kto_is_refused():
    with pytest.raises(SettingsError, match="needs the reference once"):
        packed_kto_loss(tiny.model(0), KtoCollator(PackCollator())([packs()[0]]), kl=0.0)
    with pytest.raises(SettingsError, match="needs kl, the KL term of the step"):
        packed_kto_loss(tiny.model(0), KtoCollator(PackCollator())([packs()[0]]), reference_model=tiny.model(1))
    with pytest.raises(CollateError, match="both have targets, and a mismatch of KTO has none"):
        split_kl_completions(tiny.packs()[0])


def test_rows_without_their_beginning_are_refused_before_any_work(tmp_path, monkeypatch):
    """By name of the setting; not after hours of measuring, in the first step."""
    encoder = CompletionEncoder(tiny.tokenizer())
    monkeypatch.setattr(type(encoder), "encode_batch", lambda *_: pytest.fail("a sample was encoded"))
    settings = PlanSettings(capacity=24, overflow="truncate_left")
    with pytest.raises(SettingsError, match=r'overflow="truncate_left" cuts the beginning of rows of KTO.*"truncate"'):
        pack_dataset(open_source(rows(), format="kto"), encoder, tmp_path / "packs", settings)
    assert not (tmp_path / "packs" / "log").exists()


def test_every_conversation_is_tokenized_once_on_the_way_to_packs(tmp_path, monkeypatch):
    """As an answer, for the prompt of its mismatch, and as the completion of another mismatch: three times otherwise."""
    texts = []

    def counted(function):
        return lambda self, some, *spans: texts.extend(some) or function(self, some, *spans)

    for name in ("tokenize", "_align_by_reference"):  # ``align`` calls one of them
        monkeypatch.setattr(Tokenizer, name, counted(getattr(Tokenizer, name)))
    encoder = CompletionEncoder(tiny.tokenizer())
    summary = pack_dataset(open_source(rows(), format="kto"), encoder, tmp_path, capacity=96, num_proc=1)
    whole = [row["prompt"] + row["completion"] for row in rows()]
    counts = [sum(text.startswith(conversation) for text in texts) for conversation in whole]
    assert counts == [1] * NUM_ROWS
    assert "teach nothing" not in str(summary), "mismatches have no targets by design"
    page = ledger_section(PlanFacts.of(summary.plan), summary.table)
    assert "8 samples in the packs are mismatches of KTO, for its KL term" in page
    assert "teach nothing" not in page


def test_a_bad_conversation_is_named_in_each_sample_that_needs_it():
    """Encoded once, it is a reason of three samples: its answer, its mismatch, and the mismatch that borrows from it."""
    some_rows = rows(3)
    some_rows[1]["completion"] = "refuse me"

    def encode(samples):
        bad = [any("refuse me" in message["content"] for message in sample.messages) for sample in samples]
        one = EncodedSample(np.array([1, 2]), np.array([False, True]))
        return EncodedBatch.of(
            [BadSampleError("is bad", sample_id=s.sample_id) if b else one for s, b in zip(samples, bad, strict=True)]
        )

    source = open_source(some_rows, format="kto")
    samples: Any = list(source.read(0, len(source)))
    errors = encode_borrowed(samples, encode).errors
    answers = [0 if row["label"] else 1 for row in some_rows]
    expected = sorted([2, 3, 4 + 1 - answers[2]])
    assert sorted(errors) == expected
    assert [errors[index].sample_id for index in expected] == expected


def test_conversations_with_other_tools_are_encoded_apart():
    """A template writes the tools into the text: taken for one, two rows would have the tokens of the first one's tools."""
    tools = [None, [{"name": "add"}], [{"name": "subtract"}]]
    turns: Any = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "2."}]
    samples = [Sample(number, messages=turns, tools=each) for number, each in enumerate(tools)]

    def encode(samples):
        ids = [np.array([tools.index(sample.tools)]) for sample in samples]
        return EncodedBatch.of([EncodedSample(each, np.array([True])) for each in ids])

    encoded: Any = encode_borrowed(samples, encode).samples()
    assert [sample.input_ids.tolist() for sample in encoded] == [[0], [1], [2]]


def test_a_plan_that_takes_beginnings_is_refused_by_whoever_makes_or_opens_it(tmp_path):
    """Measured and planned apart, or planned by an earlier brimful, whose tables do not say that rows are of KTO."""
    source, encoder = open_source(rows(), format="kto"), CompletionEncoder(tiny.tokenizer())
    table = measure_lengths(source, encoder)
    message = "overflow=.truncate_left. cuts the beginning of rows of KTO.*truncate"
    with pytest.raises(SettingsError, match=message):
        plan_packs(table, capacity=24, overflow="truncate_left")
    older = LengthTable(table.budgets, provenance={"group_size": 2}, targets=table.targets)
    plan = plan_packs(older, capacity=24, overflow="truncate_left", no_target="drop")
    with pytest.raises(SettingsError, match=message):
        PackedDataset.from_plan(source, encoder, plan)
    with pytest.raises(SettingsError, match=message):
        write_packs(plan, source, encoder, tmp_path / "packs")
    assert not (tmp_path / "packs").exists()


def test_truncation_keeps_the_beginning_of_both():
    cut = packs(capacity=24, overflow="truncate", no_target="drop")
    for pack in cut:
        parted = split_kl_completions(pack)
        assert parted.answers.sample_ids.tolist() == (parted.kl_completions.sample_ids ^ 1).tolist()
        assert np.diff(parted.answers.cu_seqlens).max() <= 24
        assert parted.is_row.all()
