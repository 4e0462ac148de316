"""Packs of a step and the way back: every value comes home, and both passes see the same numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.rl import SampleColumn, pack_step, plan_step, restore_tokens  # noqa: E402
from brimful.rl.context_parallel_split import gather_from_context_parallel, split_for_context_parallel  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402


def step_of(seed, samples=24, ranks=2):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, samples)
    ids = [generator.integers(3, 100, length) for length in lengths]
    return ids, plan_step(lengths, capacity=96, dp_world_size=ranks)


@given(seed=st.integers(0, 99), ranks=st.integers(1, 3), cp_size=st.sampled_from([1, 2, 4]))
def test_every_value_comes_home(seed, ranks, cp_size):
    """Through packing, padding, splitting over ranks and gathering: what went in for a sample comes out for it."""
    ids, step = step_of(seed, ranks=ranks)
    values = [np.stack([row, 2 * row], axis=1).astype(np.float32) for row in ids]
    column = SampleColumn("routes", values, fill=-1, place="token")
    padding = Padding(segment_multiple_of=2 * cp_size, multiple_of=16)
    home = {}
    for rank in range(ranks):
        batches = [
            lay_out([pack], extras=[extras], padding=padding)
            for pack, extras in pack_step(step, ids, dp_rank=rank, columns=[column])
        ]
        outputs = []
        for batch in batches:
            shards = [split_for_context_parallel(batch, cp_rank=cp_rank, cp_size=cp_size) for cp_rank in range(cp_size)]
            outputs.append(
                gather_from_context_parallel([shard.columns[0].values for shard in shards], batch.cu_seqlens)
            )
        restored = restore_tokens(batches, outputs)
        assert restored.sample_ids.tolist() == sorted(step.positions(rank).tolist())
        home |= dict(zip(restored.sample_ids.tolist(), restored, strict=True))
    assert sorted(home) == list(range(len(ids)))
    assert all((home[sample] == values[sample]).all() for sample in home)


def test_ratios_of_a_transformer_are_exactly_one():
    """Log-probabilities of the first pass go through a column into the second: one plan, so not a bit differs."""
    pytest.importorskip("transformers")
    from brimful.verify.models import tiny_model

    ids, step = step_of(0, samples=12)
    model = tiny_model("qwen2").train()
    answers = [np.arange(len(row)) >= len(row) // 3 for row in ids]
    collate = PackCollator(padding=Padding(multiple_of=8))

    def log_probabilities(batch):
        """Of the token that each place predicts; 0 at the end."""
        names = ("input_ids", "position_ids", "use_cache")
        logits = model(**{name: batch[name] for name in names}).logits[0]
        chosen = torch.log_softmax(logits[:-1].float(), dim=-1).gather(1, batch["input_ids"][0, 1:, None])[:, 0]
        return torch.nn.functional.pad(chosen, (0, 1))

    num_ratios = 0
    for rank in range(2):
        packs = pack_step(step, ids, dp_rank=rank, loss_masks=answers)
        rows = [collate.rows([features])[0] for features in packs]
        with torch.no_grad():
            outputs = [log_probabilities(collate([features])) for features in packs]
        restored = restore_tokens(rows, outputs, predicted=True)
        old = [np.zeros(len(row), dtype=np.float32) for row in ids]
        for sample, values in zip(restored.sample_ids.tolist(), restored, strict=True):
            old[sample] = values
        columns = [SampleColumn("old_log_probs", old)]
        for features in pack_step(step, ids, dp_rank=rank, loss_masks=answers, columns=columns):
            batch = collate([features])
            is_target = batch["labels"][0, 1:] != -100
            new = log_probabilities(batch)[:-1][is_target]
            ratios = torch.exp(new - batch["old_log_probs"][0, 1:][is_target])
            assert torch.equal(ratios, torch.ones_like(ratios))
            assert new.requires_grad
            num_ratios += len(ratios)
    assert num_ratios == sum(int(mask[1:].sum()) for mask in answers)


def test_weights_and_numbers_of_samples():
    """One advantage of a sample holds for all its tokens; weights of the step become weights of its targets."""
    step = plan_step([2, 3, 4], capacity=5, dp_world_size=1, loss_tokens=[1, 2, 3])
    advantages = SampleColumn("advantages", np.array([0.5, -1.0, 2.0]))
    packs = pack_step(
        step, [[1] * 2, [1] * 3, [1] * 4], dp_rank=0, columns=[advantages], weights=step.weights("token-mean")
    )
    batches = [lay_out([pack], extras=[extras]) for pack, extras in packs]
    assert [batch.column("advantages").values.tolist() for batch in batches] == [[0, 0.5, 0, -1, -1], [0, 2, 2, 2]]
    assert sum(float(batch.target_weights.sum()) for batch in batches) == pytest.approx(1)
    assert batches[0].columns[0].values.dtype == np.float32


def test_values_of_predictions_move_to_the_token_that_is_predicted():
    batch = lay_out([toy_pack([2, 3])], padding=Padding(segment_multiple_of=4))
    restored = restore_tokens([batch], [[1, 2, 0, 0, 3, 4, 5, 0]], predicted=True, fill=9)
    assert [row.tolist() for row in restored] == [[9, 1], [9, 3, 4]]
    assert [row.tolist() for row in restore_tokens([batch], [[[1, 2, 0, 0, 3, 4, 5, 0]]])] == [[1, 2], [3, 4, 5]]
    assert restored[-1].tolist() == [9, 3, 4]
    with pytest.raises(IndexError):
        restored[2]


@pytest.mark.parametrize(("arguments", "words"), [
    ({"input_ids": [[1, 2]]}, "input_ids must have one entry for each of the 2 samples of the step and has 1"),
    ({"input_ids": [[1] * 9, [1] * 9]}, "18 tokens and the capacity is 8"),
    ({"input_ids": [[1, 2], []]}, "sample 1 of the step has no tokens"),
    ({"loss_masks": [[1, 1], [1]]}, "sample 1: its loss mask has the shape"),
    ({"columns": [SampleColumn("x", [[0.0], [0.0] * 3])]}, "sample 0: column 'x' has the shape"),
    ({"columns": [SampleColumn("x", [[0.0, 1]])]}, "column 'x' must have one entry for each of the 2 samples"),
])  # fmt: skip
def test_other_samples_than_were_planned(arguments, words):
    step = plan_step([2, 3], capacity=8, dp_world_size=1)
    with pytest.raises(CollateError, match=words):
        pack_step(step, **{"input_ids": [[1, 2], [1, 2, 3]], "dp_rank": 0, **arguments})


def test_outputs_that_are_none_of_the_batches():
    batch = lay_out([toy_pack([2, 3])])
    with pytest.raises(CollateError, match="output 0 has the shape"):
        restore_tokens([batch], [[1, 2, 3]])
    with pytest.raises(CollateError, match="1 batches and 2 outputs"):
        restore_tokens([batch], [[], []])
    with pytest.raises(CollateError, match="sample 0 is in two segments"):
        restore_tokens([batch, batch], [range(5), range(5)])


def test_samples_are_found_from_both_ends():
    """As in a list; without the check a number too high would be another sample, counted from the front again."""
    restored = restore_tokens([lay_out([toy_pack([2, 3])])], [[1, 2, 3, 4, 5]])
    assert (restored[1].tolist(), restored[-2].tolist()) == ([3, 4, 5], [1, 2])
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"sample {index} is not in 0 … 1"):
            restored[index]
