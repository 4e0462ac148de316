"""A preference is two samples with one prompt, whatever its project calls them."""

import pickle
from typing import Any

import pytest

from brimful import encoder_for, open_source
from brimful.errors import BadSampleError, SettingsError
from brimful.preferences.formats import PreferenceRows
from brimful.sources.memory import MemoryRows

USER, GOOD, BAD = (
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "assistant", "content": "3"},
)
ROWS = {
    "texts of TRL": {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
    "turns of TRL": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "turns without a prompt": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "a prompt that is written twice": {"prompt": "1+1?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "sharegpt_preference": {
        "conversations": [{"from": "human", "value": "1+1?"}],
        "chosen": {"from": "gpt", "value": "2"},
        "rejected": {"from": "gpt", "value": "3"},
    },
    "alpaca_preference": {"instruction": "1+1?", "input": "", "chosen": "2", "rejected": "3"},
}


@pytest.mark.parametrize("name", ROWS)
def test_one_row_is_two_samples(name):
    source = open_source([ROWS[name]])
    assert len(source) == 2
    assert source.group_size == 2
    chosen, rejected = source[0], source[1]
    assert [list(sample.messages or ()) for sample in (chosen, rejected)] == [[USER, GOOD], [USER, BAD]]
    assert [sample.sample_id for sample in source.read(0, 2)] == [0, 1]
    assert chosen.completion.num_prompt == rejected.completion.num_prompt == 1
    assert chosen.completion.other == list(rejected.messages or ())
    assert source.where(1) == "memory[0], rejected"


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_chosen_and_rejected_share_their_prompt(mode, data_dir, small_tokenizer):
    """All tokens before the first target are equal, so that a tree holds them once."""
    source = open_source(data_dir / "text" / "llama_factory_demo" / "dpo_en_demo.json", max_samples=50)
    samples: list[Any] = [*source.read(0, 100)]
    samples = [sample for sample in samples if mode == "chat" or len(sample.messages) == 2]
    encoded: list[Any] = encoder_for(None, small_tokenizer, mode=mode).encode_batch(samples)
    assert len(encoded) > 30
    for chosen, rejected in zip(encoded[::2], encoded[1::2], strict=True):
        begin = int(chosen.loss_mask.argmax())
        assert int(rejected.loss_mask.argmax()) == begin > 0
        assert chosen.input_ids[:begin].tolist() == rejected.input_ids[:begin].tolist()


def test_texts_without_a_prompt_are_cut_where_they_differ():
    """Before the blank, as in TRL: it belongs to the answers."""
    source = open_source([{"chosen": "Q: 1+1? A: 2", "rejected": "Q: 1+1? A: 3"}])
    assert [turn["content"] for turn in source[1].messages] == ["Q: 1+1? A:", " 3"]
    assert source[0].completion.needs_no_template


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, "give two texts or two lists of turns"),
        ({"prompt": "a", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "turns that do not begin with it"),
        ({"chosen": "yes", "rejected": "no"}, "no common beginning: give the prompt"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "share no turn: give the prompt"),
        ({"prompt": "a", "chosen": 1, "rejected": 2}, "'chosen' must be a list of turns and is int"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "images": ["a.jpg"]}, "column 'images' holds images"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(row, reason):
    with pytest.raises(BadSampleError, match=reason):
        open_source([row])[1]


def test_preferences_are_not_mixed_with_other_samples():
    """Their losses have no common unit, and sample ids would not tell the sides."""
    chats = open_source([{"messages": [USER, GOOD]}])
    with pytest.raises(SettingsError, match=r"holds preferences among other samples .*: pack them apart"):
        open_source([open_source([ROWS["texts of TRL"]]), chats])
    both = open_source([open_source([ROWS["texts of TRL"]]), open_source([ROWS["sharegpt_preference"]])])
    assert len(both) == 4
    assert both.group_size == 2


def test_sides_keep_the_contract_of_rows():
    """Ranges that begin and end inside a row, appended rows, other processes."""
    plain = MemoryRows([{"chosen": number, "rejected": -number} for number in range(5)])
    rows = pickle.loads(pickle.dumps(PreferenceRows(plain)))
    every = [(row.row["chosen"], row.answer) for row in rows.read(0, 10)]
    assert every == [(number, side) for number in range(5) for side in (0, 1)]
    assert [(row.row["chosen"], row.answer) for row in rows.read(3, 6)] == every[3:6]
    assert [(rows.get(index).row["chosen"], rows.get(index).answer) for index in range(10)] == every
    assert [(block.start, block.stop) for block in rows.blocks] == [(0, 10)]
    first = PreferenceRows(MemoryRows([{"chosen": number, "rejected": -number} for number in range(3)]))
    assert first.fingerprint in rows.prefix_fingerprints(6)
    assert rows.prefix_fingerprints(5) == []
    assert first.fingerprint != rows.fingerprint
    assert rows.fingerprint != plain.fingerprint
