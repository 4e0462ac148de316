"""Prefixes that samples share: tokens a second, an aim, and the trie of TRL's ``TreeRow``.

Three sets of random tokens, on one core: a step of reinforcement learning (128 prompts with 16 answers each, lognormal
with medians 4,000 and 1,500), short samples of which one in fifty shares, and dialogues with one sample for each of
their turns. TRL's class runs as it is (``trl>=1.16``): ``fits`` and ``add`` of every sample, on the rollouts of 16
prompts, which ours find in turn with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from compare import Row, in_turn, main_of

from brimful.base.compiling import compiled_forms
from brimful.base.ragged import offsets_of
from brimful.trees.prefixes import find_prefixes, sharing_of

__all__ = ["measure"]

AIM_MILLION = {"compiled": 100.0, "NumPy": 50.0}
"""Million tokens a second at least, on one core."""

AIM_TRL = 50
"""Times as fast as TRL's trie at least."""

Samples = list[npt.NDArray[np.int32]]


def _ids(random: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    return random.integers(0, 151_936, count, dtype=np.int32)


def rollouts(prompts: int) -> Samples:
    """Answers in the order in which they are finished: any."""
    random = np.random.default_rng(0)
    samples: Samples = []
    for _ in range(prompts):
        prompt = _ids(random, int(min(random.lognormal(np.log(4000), 0.5), 16_000)))
        lengths = np.minimum(random.lognormal(np.log(1500), 0.5, 16), 8_000).astype(int)
        samples += [np.concatenate([prompt, _ids(random, length)]) for length in lengths]
    return [samples[index] for index in random.permutation(len(samples))]


def short_samples(count: int) -> Samples:
    random = np.random.default_rng(1)
    ids = _ids(random, count * 350).reshape(count, 350)
    ids[::50, :100] = ids[7::50, :100]
    return list(ids)


def turns(dialogues: int) -> Samples:
    random = np.random.default_rng(2)
    samples: Samples = []
    for _ in range(dialogues):
        lengths = random.integers(20, 80, random.integers(8, 24)).cumsum()
        ids = _ids(random, int(lengths[-1]))
        samples += [ids[:length] for length in lengths]
    return samples


def _trl_trie() -> Callable[[Samples], Any]:
    import torch
    from trl.experimental.async_grpo.packing import TreeRow

    def trie(samples: Samples) -> int:
        row = TreeRow()
        for ids in samples:
            mask = torch.zeros(len(ids), dtype=torch.bool)
            sample = {"input_ids": torch.from_numpy(ids), "completion_mask": mask, "group_id": 0}
            assert row.fits(sample, 2**60)
            row.add(sample)
        return len(row.tokens)

    return trie


def measure(quick: bool) -> list[Row]:
    sets = {
        "rollouts of 128 prompts": partial(rollouts, 8 if quick else 128),
        "short samples": partial(short_samples, 2_000 if quick else 200_000),
        "dialogues by turn": partial(turns, 100 if quick else 6_000),
    }
    rows = []
    for title, make in sets.items():
        samples = make()
        keys, offsets = np.concatenate(samples), offsets_of([*map(len, samples)])
        find = partial(find_prefixes, keys, offsets)
        million = len(keys) / 1e6
        ratio = sharing_of(find(), np.diff(offsets).astype(np.int32)).ratio
        for form, use in (("compiled", True), ("NumPy", False)):
            with compiled_forms(use):
                seconds = in_turn({"ours": find}, repetitions=3 if quick else 7)["ours"]
            name = f"{title}, {million:.1f} M tokens, {ratio:.2f} times the trees', {form}"
            aim = AIM_MILLION[form]
            rows.append(Row(name, "M tokens/s", million / seconds, "aim", aim, aim=1))
    try:
        trie = _trl_trie()
    except ImportError as error:
        print(f"not measured: TRL: {error}", file=sys.stderr)
        return rows
    samples = rollouts(2 if quick else 16)
    keys, offsets = np.concatenate(samples), offsets_of([*map(len, samples)])
    find, million = partial(find_prefixes, keys, offsets), len(keys) / 1e6
    with compiled_forms(True):
        both = {"ours": find, "TRL": partial(trie, samples)}
        seconds_of = in_turn(both, repetitions=1 if quick else 3)
    ours, theirs = million / seconds_of["ours"], million / seconds_of["TRL"]
    name = f"rollouts, {million:.1f} M tokens"
    rows.append(Row(name, "M tokens/s", ours, "TRL's TreeRow", theirs, aim=AIM_TRL))
    return rows


if __name__ == "__main__":
    main_of(measure, __doc__)
