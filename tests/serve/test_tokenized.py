"""Plain samples: every key that says something is read or refused by name, and nothing vanishes."""

from datetime import date
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.encode.encoded import EncodedSample
from brimful.errors import CollateError
from brimful.serve.tokenized import read_tokenized

IDS = [5, 6, 7, 8, 9]


def read(**keys):
    return read_tokenized({"input_ids": IDS, **keys}, "sample 3")


def samples_of(row):
    return [row.input_ids[a:b].tolist() for a, b in zip(row.cu_seqlens[:-1], row.cu_seqlens[1:], strict=True)]


@pytest.mark.parametrize(
    "keys",
    [
        {"seq_lengths": [3, 2]},
        {"position_ids": [0, 1, 2, 0, 1]},
        {"position_ids": [[0, 1, 2, 0, 1]]},
        {"position_ids": [2, 3, 4, 2, 3]},
        {"attention_mask": [1, 1, 1, 2, 2]},
        {"attention_mask": [1.0, 1.0, 1.0, 4.0, 4.0]},
        {"attention_mask": [1] * 5, "seq_lengths": [3, 2]},
        {"attention_mask": [1, 1, 1, 2, 2], "seq_lengths": [3, 2], "position_ids": [0, 1, 2, 0, 1]},
        {"position_ids": np.array([[0, 1, 2, 0, 1], *[[0, 0, 0, 0, 0]] * 3])},
    ],
)
def test_a_row_of_several_samples_is_taken_apart(keys):
    """Read as one sample, 8 and 9 would see 5, 6 and 7, and 8 would be predicted from 7."""
    row = read(**keys)
    assert samples_of(row) == [[5, 6, 7], [8, 9]]
    assert row.loss_mask.tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"labels": None, "seq_lengths": None, "loss_weights": None, "pixel_values": None},
        {"attention_mask": [1] * 5},
        {"attention_mask": np.ones(5, dtype=bool)},
        {"position_ids": range(5)},
        {"seq_lengths": [5]},
        {"token_type_ids": [0] * 5, "mm_token_type_ids": np.zeros(5)},
        {"length": [5], "special_tokens_mask": [1, 0, 0, 0, 1], "offset_mapping": [(0, 1)] * 5},
        {"text": "abc", "id": 7, "day": date(2026, 1, 1), "score": np.float32(2), "tags": ["a"], "none": [], "flag": True},
        {"messages": [{"role": "user", "content": "a", "calls": {"values": [1, 2]}}], "meta": {"source": "x", "n": [1]}},
    ],
)  # fmt: skip
def test_what_says_nothing_is_left_out(keys):
    """Masks of ones and positions from 0, and columns about the sample: refusing these would refuse every data set."""
    row = read(**keys)
    assert samples_of(row) == [IDS]
    assert row.loss_mask.tolist() == [False, True, True, True, True]
    assert (row.loss_weights, row.source_ids, row.rope_positions) == (None, None, None)


@pytest.mark.parametrize(
    ("mask", "samples", "places"),
    [
        ([1, 1, 1, 0, 0], [[5, 6, 7]], [0, 1, 2]),
        ([0, 0, 1, 1, 1], [[7, 8, 9]], [2, 3, 4]),
        ([0, 1, 1, 2, 0], [[6, 7], [8]], [1, 2, 3]),
        ([1, 1, 0, 2, 2], [[5, 6], [8, 9]], [0, 1, 3, 4]),
    ],
)
def test_padding_is_cut_off(mask, samples, places):
    """Kept, it would be trained as text, and take room that packing is there to save."""
    weights = [0.5, 1, 2, 3, 4]
    row = read(attention_mask=mask, loss_weights=weights)
    assert samples_of(row) == samples
    assert row.indices.tolist() == places
    assert row.loss_weights.tolist() == [weights[place] for place in places]


@pytest.mark.parametrize(
    ("keys", "targets"),
    [
        ({"labels": [-100, -100, 7, 8, -100]}, [7, 8]),
        ({"loss_mask": [0, 0, 1, 1, 0]}, [7, 8]),
        ({"loss_mask": [False, False, True, True, False]}, [7, 8]),
        ({"completion_mask": [0, 0, 1, 1, 1]}, [7, 8, 9]),
        ({"completion_mask": [0, 0, 1, 1, 1], "assistant_masks": [1, 1, 1, 1, 0]}, [7, 8]),
        ({"labels": [-100, 6, 7, 8, 9], "completion_mask": [0, 0, 1, 1, 1]}, [6, 7, 8, 9]),
        ({"labels": [-100, -100, 7, 8, -100], "loss_mask": [1, 0, 1, 1, 0]}, [7, 8]),
        ({"labels": [-100, -100, 7, -100, -100], "attention_mask": [1, 1, 1, 0, 0]}, [7]),
    ],
)
def test_targets(keys, targets):
    """TRL's masks make labels for rows without, and are history for rows with labels, as in TRL."""
    row = read(**keys)
    assert row.input_ids[row.loss_mask].tolist() == targets


def test_positions_of_mrope_are_carried():
    """Qwen2-VL's positions are made sample by sample; time, height and width are the last three rows."""
    rope = np.array([[0, 1, 1, 1, 2], [0, 1, 1, 2, 3], [0, 1, 2, 1, 3]])
    assert read(position_ids=rope).rope_positions.tolist() == rope.tolist()
    assert read(position_ids=rope[:, None]).rope_positions.tolist() == rope.tolist()
    both = read(position_ids=np.concatenate([[[0, 1, 2, 0, 1]], rope]), attention_mask=[1, 1, 1, 1, 0])
    assert both.rope_positions.tolist() == rope[:, :4].tolist()
    assert samples_of(both) == [[5, 6, 7], [8]]


def test_weights_and_sources_under_the_names_of_others():
    """ms-swift says loss_scale, VeOmni ds_idx."""
    row = read(loss_scale=[1, 2, 3, 4, 5], ds_idx=2, seq_lengths=[3, 2])
    assert row.loss_weights.tolist() == [1, 2, 3, 4, 5]
    assert row.source_ids.tolist() == [2, 2]
    assert read(source_id=[4, 1], seq_lengths=[3, 2]).source_ids.tolist() == [4, 1]


def test_an_encoded_sample_is_a_plain_sample():
    """What TokenBudgetBatches takes, collator and verify take too."""
    row = read_tokenized(EncodedSample(np.array([5, 6, 7], np.int32), np.array([True, False, True])), "sample 0")
    assert (row.input_ids.tolist(), row.loss_mask.tolist()) == ([5, 6, 7], [False, False, True])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pixel_values": np.zeros((4, 6))}, r"has 'pixel_values' of shape \(4, 6\) and no 'image_grid_thw'"),
        ({"image_grid_thw": [[1, 2, 2]]}, "has 'image_grid_thw' and no 'pixel_values', which it describes"),
        ({"patches": np.zeros((4, 6))}, "has 'patches', which a batch of plain samples cannot carry"),
        ({"images": ["a.png"]}, "has 'images'"),
        ({"audio": {"path": "a.wav"}}, "has 'audio'"),
        ({"picture": object()}, "has 'picture'"),
        ({"multi_modal_inputs": {"pixel_values": np.zeros(3)}}, "has 'multi_modal_inputs'"),
        ({"label": False}, "has 'label'"),
        ({"rejected_input_ids": [1, 2]}, "has 'rejected_input_ids'"),
        ({"shift_labels": [6, 7, 8, 9, -100]}, "has 'shift_labels'"),
        ({"token_type_ids": [0, 0, 1, 1, 1]}, "has 'token_type_ids'"),
        ({"seq_lengths": [3, 3]}, "has 'seq_lengths' 3, 3 and 5 tokens"),
        ({"seq_lengths": [5, 0]}, "has 'seq_lengths' 5, 0"),
        ({"seq_lengths": [3, 2], "attention_mask": [1, 1, 1, 1, 0]}, "has 'seq_lengths' 3, 2 and 4 tokens"),
        ({"seq_lengths": [3, 2], "position_ids": range(5)}, "by 'seq_lengths' it holds 2 samples that begin at 0, 3, and by 'position_ids' 1"),
        ({"attention_mask": [1, 1, 2, 2, 2], "position_ids": [0, 1, 2, 0, 1]}, "contradicts itself: by 'attention_mask'"),
        ({"attention_mask": [1, 1, 0, 1, 1]}, "zeros within a sample"),
        ({"attention_mask": [2, 2, 2, 1, 1]}, "numbers that do not rise"),
        ({"attention_mask": [0] * 5}, "only zeros"),
        ({"attention_mask": [1, 1, 1]}, r"'attention_mask' \(3,\), which must be one row as long as input_ids, 5"),
        ({"attention_mask": np.ones((5, 5))}, r"'attention_mask' \(5, 5\)"),
        ({"attention_mask": [1, 1, 1, 0.5, 0]}, "other numbers than 0 at padding"),
        ({"attention_mask": [0, 0, 0, -1e9, -1e9]}, "other numbers than 0 at padding"),
        ({"position_ids": [0, 1, 2, 7, 8]}, "go from 2 to 7 at token 3"),
        ({"position_ids": [3, 4, 5, 0, 1]}, "go from 5 to 0 at token 3"),
        ({"position_ids": np.zeros((2, 5), int)}, r"'position_ids' of shape \(2, 5\) and 5 tokens"),
        ({"position_ids": [0.0, 1, 2, 3, 4]}, "'position_ids' of float64"),
        ({"labels": IDS, "attention_mask": [1, 1, 1, 0, 0]}, "has 2 targets in 'labels' where 'attention_mask' marks padding"),
        ({"loss_mask": [1] * 5, "attention_mask": [0, 1, 1, 1, 1]}, "has 1 targets in 'loss_mask'"),
        ({"labels": IDS, "loss_mask": [1, 1, 0, 1, 1]}, "name different targets, first at token 2"),
        ({"loss_mask": [0, 0.5, 1, 1, 1]}, "has 'loss_mask' with other numbers than 0 and 1"),
        ({"loss_weights": [1] * 5, "loss_scale": [1] * 5}, "has 'loss_weights' and 'loss_scale', which mean the same"),
        ({"source_id": [1, 2]}, r"has 'source_id' of shape \(2,\)"),
        ({"labels": [-100, 7, 8, 9, -100]}, "labels must not be shifted"),
        ({"input_ids": [[5, 6]]}, r"'input_ids' of shape \(1, 2\)"),
        ({"input_ids": [[5, 6], [7]]}, "has 'input_ids' that is not an array of numbers"),
    ],
)  # fmt: skip
def test_the_rest_is_refused_by_name(keys, message):
    """Dropped in silence, each of these would be another training than the one that was asked for."""
    with pytest.raises(CollateError, match=f"^sample 3 .*{message}"):
        read(**keys)


@pytest.mark.parametrize("make", ["torch", "numpy", "list"])
@pytest.mark.parametrize("shape", [(4,), (4, 6), (1, 3, 4, 6)])
def test_rows_of_numbers_of_any_library_are_refused(make, shape):
    """A processor returns tensors, whose dtype is not one of NumPy: left out, a model trains on placeholders alone."""
    values = np.zeros(shape, np.float32)
    if make == "torch":
        values = pytest.importorskip("torch").from_numpy(values)
    for value in (values, [values], (None, values)) if make != "list" else (values.tolist(), [values[0]]):
        with pytest.raises(CollateError, match="has 'patches', which a batch of plain samples cannot carry"):
            read(patches=value)


@pytest.mark.parametrize("make", ["torch", "numpy", "list"])
def test_the_length_of_a_row_in_a_list_says_nothing(make):
    """As ms-swift's templates add it, whatever holds the tokens; two lengths would be two samples."""
    ids = {
        "torch": lambda: pytest.importorskip("torch").tensor(IDS),
        "numpy": lambda: np.array(IDS),
        "list": lambda: IDS,
    }
    assert read(input_ids=ids[make](), lengths=[5]).num_segments == 1
    with pytest.raises(CollateError, match="has 'lengths'"):
        read(input_ids=ids[make](), lengths=[2, 3])


def test_text_of_numpy_is_about_the_sample():
    assert read(name=np.array(["a", "b"]), names=[np.str_("a")], where=np.array([b"a"])).input_ids.tolist() == IDS


@pytest.mark.parametrize("bad", [2**31, 2**32 + 7, -(2**31) - 1, 2**63])
def test_ids_that_do_not_fit_are_refused_before_they_wrap(bad):
    """2**32 + 7 in int32 is 7, a token that any vocabulary has."""
    with pytest.raises(CollateError, match=f"sample 3 has {bad} in 'input_ids' at token 1, which no vocabulary has"):
        read(input_ids=np.array([5, bad], dtype=np.uint64 if bad > 2**62 else np.int64))


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    keys=st.sets(st.sampled_from(["seq_lengths", "position_ids", "attention_mask"])),
    data=st.data(),
)
def test_every_way_to_say_it_reads_the_same(lengths, padding, keys, data):
    """Law: tokens, samples and targets that are said in any of the ways come out, and no padding does."""
    if len(lengths) > 1 and not keys:
        keys = {"seq_lengths"}
    total, (left, right) = sum(lengths), padding
    if left or right:
        keys = keys | {"attention_mask"}
    ids = np.arange(10, 10 + total)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
    begins = list(accumulate(lengths, initial=0))

    def padded(row, fill):
        return [fill] * left + list(row) + [fill] * right

    sample = {
        "input_ids": padded(ids, 0),
        "labels": padded(np.where(chosen, ids, -100), -100),
        "seq_lengths": lengths,
        "position_ids": padded([place for length in lengths for place in range(length)], 0),
        "attention_mask": padded(np.repeat(np.arange(1, len(lengths) + 1), lengths), 0),
    }
    given_keys = {"input_ids", "labels", *keys}
    row = read_tokenized({key: sample[key] for key in given_keys}, "sample 0")
    assert row.input_ids.tolist() == ids.tolist()
    assert row.cu_seqlens.tolist() == begins
    chosen[begins[:-1]] = False
    assert row.loss_mask.tolist() == chosen.tolist()
    assert row.indices.tolist() == list(range(left, left + total))
