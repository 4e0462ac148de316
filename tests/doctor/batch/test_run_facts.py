"""Facts of a run, and real chats of many turns: EOS inside a sample is right if the template writes it."""

import gzip
import json
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer, DataCollatorWithFlattening
from trl import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from brimful.doctor.batch.diagnose import diagnose
from brimful.doctor.batch.run_facts import RunFacts
from brimful.errors import SettingsError


@pytest.fixture(scope="module")
def chat_tokenizer(small_qwen):
    return AutoTokenizer.from_pretrained(small_qwen)


@pytest.fixture(scope="module")
def chats(data_dir, chat_tokenizer):
    """Dialogues of two dozen turns with tools: every token of an answer and its EOS are trained."""
    path = data_dir / "text" / "sgd_train_dialogues.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        dialogues = [json.loads(next(file))["messages"] for _ in range(4)]
    header = chat_tokenizer("assistant\n")["input_ids"]
    start, end = chat_tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    samples = []
    for messages in dialogues:
        ids = chat_tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        labels = [-100] * len(ids)
        turns = [place for place, token in enumerate(ids) if token == start]
        for place in turns:
            first = place + 1 + len(header)
            if ids[place + 1 : first] == header:
                stop = ids.index(end, place) + 1
                labels[first:stop] = ids[first:stop]
        samples.append({"input_ids": ids, "labels": labels})
    return samples


def test_real_chats_are_not_accused(chats, chat_tokenizer):
    pad = chat_tokenizer.pad_token_id
    for collate in (
        DataCollatorWithFlattening(),
        DataCollatorForLanguageModeling(pad_token_id=pad),
        DataCollatorForLanguageModeling(pad_token_id=pad, padding_free=True, pad_to_multiple_of=64),
        DataCollatorForLanguageModeling(pad_token_id=chat_tokenizer.eos_token_id),
    ):
        report = diagnose(collate(chats), tokenizer=chat_tokenizer, samples=chats, is_whole=True)
        assert report.ok, str(report)
        assert "4 of 4 segments have EOS among their last 3 tokens" in str(report)


def test_real_chats_in_one_row_are_found(chats, chat_tokenizer):
    """Their first tokens come again after EOS, unlike the first tokens of a single chat."""
    batch = DataCollatorWithFlattening(return_position_ids=False)(chats)
    report = diagnose(batch, tokenizer=chat_tokenizer)
    assert [finding.problem for finding in report.findings] == ["boundaries_missing"]
    assert "3 times" in report.findings[0].detail
    assert not diagnose(batch, samples=chats, is_whole=True).ok


def test_real_chats_in_rows_that_begin_anywhere_are_found(chats, chat_tokenizer):
    stream = [token for chat in chats for token in chat["input_ids"]]
    report = diagnose({"input_ids": [stream[200:]]}, tokenizer=chat_tokenizer)
    assert [finding.problem for finding in report.findings] == ["boundaries_missing"]


@pytest.fixture(scope="module")
def chats_without_system(chats, chat_tokenizer):
    """The same as a trainer's own template writes them: they begin as each of their turns does."""
    start = chat_tokenizer.convert_tokens_to_ids("<|im_start|>")
    firsts = [chat["input_ids"].index(start, 1) for chat in chats]
    return [{key: row[first:] for key, row in chat.items()} for first, chat in zip(firsts, chats, strict=True)]


def test_chats_that_begin_as_their_turns_are_not_accused(chats_without_system, chat_tokenizer):
    batch = DataCollatorWithFlattening()(chats_without_system)
    assert diagnose(batch, tokenizer=chat_tokenizer, config={"packing": True}).ok
    alone = DataCollatorWithFlattening()(chats_without_system[:1])
    assert diagnose(alone, tokenizer=chat_tokenizer).ok


def test_they_are_found_in_one_row_if_packing_is_on(chats_without_system, chat_tokenizer):
    batch = DataCollatorWithFlattening(return_position_ids=False)(chats_without_system)
    report = diagnose(batch, tokenizer=chat_tokenizer, config={"packing": True})
    assert [finding.problem for finding in report.findings] == ["boundaries_missing"]


def test_tools_that_are_trained_are_found(chats, chat_tokenizer):
    """The second half of each chat is trained as a whole."""
    halves = [len(chat["labels"]) // 2 for chat in chats]
    labels = [[*chat["labels"][:half], *chat["input_ids"][half:]] for chat, half in zip(chats, halves, strict=True)]
    samples = [{**chat, "labels": own} for chat, own in zip(chats, labels, strict=True)]
    report = diagnose(DataCollatorWithFlattening()(samples), tokenizer=chat_tokenizer)
    assert [finding.problem for finding in report.findings] == ["wrong_targets"]
    assert "turns of tool_response, user are trained" in report.findings[0].detail


def test_a_template_tells_what_stands_inside_a_sample(chat_tokenizer):
    facts = RunFacts.of(chat_tokenizer, None, None)
    assert (facts.inner_eos, facts.inner_bos, facts.inner_opening) == (True, False, False)
    assert facts.ends == facts.eos == (chat_tokenizer.eos_token_id,)


def test_without_a_template_a_tokenizer_is_one_of_documents():
    tokenizer = SimpleNamespace(eos_token_id=[2, 3], bos_token_id=1)
    facts = RunFacts.of(tokenizer, {"pad_token_id": 0}, None)
    assert (facts.eos, facts.bos, facts.pad) == ((2, 3), (1,), (0,))
    assert not facts.inner_eos
    assert RunFacts.of(None, {"eos_token_id": 2}, None).inner_eos


def test_a_template_that_refuses_turns_tells_nothing():
    class Refusing(SimpleNamespace):
        def apply_chat_template(self, *_, **__):
            raise ValueError("roles must alternate")

    facts = RunFacts.of(Refusing(eos_token_id=2, chat_template="…"), None, None)
    assert facts.inner_eos
    assert facts.inner_opening


def test_settings_of_trainers_and_models_are_read(tmp_path):
    config = SFTConfig(output_dir=str(tmp_path), packing=True, report_to="none", use_cpu=True, bf16=False)
    assert RunFacts.of(None, config, None).packing == "packing"
    facts = RunFacts.of(None, {"_attn_implementation": "sdpa", "row_multiple": 8, "packing": False}, 12)
    assert (facts.attention, facts.row_multiple, facts.segment_multiple) == ("sdpa", 8, 1)
    assert (facts.packing, facts.num_items) == ("", 12)


@pytest.mark.parametrize("known", [{"num_items": -1}, {"config": {"row_multiple": 0}}, {"samples": -1}])
def test_numbers_that_mean_nothing_are_refused(known):
    with pytest.raises(SettingsError):
        diagnose({"input_ids": [[1, 2, 3]]}, **known)
