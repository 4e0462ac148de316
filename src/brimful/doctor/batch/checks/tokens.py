"""Tokens: BOS once, EOS at the end of each sample and nowhere else.

All of them need the ids of these tokens, from a tokenizer or a configuration.
"""

from collections.abc import Iterator

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.doctor.batch.run_facts import OPENING, reopenings
from brimful.doctor.batch.view import BatchView
from brimful.doctor.report import Finding, suspect, wrong

_TOPIC = "tokens"

LAST_TOKENS = 3
"""Last tokens of a sample in which its end is searched: templates write a newline after it."""


def check_doubled_bos(view: BatchView) -> Iterator[Finding]:
    """Check that no sample begins with BOS twice."""
    starts, stops = view.bounds
    starts = starts[stops - starts > 1]
    doubles = starts[
        view.facts.is_bos(view.tokens[starts]) & view.facts.is_bos(view.tokens[starts + 1])
    ]
    if len(doubles):
        yield wrong(
            _TOPIC,
            "doubled_bos",
            f"{counted(len(doubles), 'sample')} of {len(starts)} begin with BOS "
            f"({view.facts.bos[0]}) twice: {view.places(doubles)}",
            "tokenize texts of a template with add_special_tokens=False",
        )


def check_lost_eos(view: BatchView) -> Iterator[Finding]:
    """Check that samples train the token that ends them."""
    facts = view.facts
    if not facts.ends or not view.has_labels or not view.num_targets:
        return
    starts, stops = view.bounds[0], view.sample_stops
    is_end = np.isin(view.tokens, facts.ends)
    # A sample that ends with its row may have been cut.
    targets = offsets_of(view.is_predicted)
    is_whole = (stops % view.shape[1] != 0) & (targets[stops] > targets[starts])
    starts, stops = starts[is_whole], stops[is_whole]
    if not len(starts):
        return
    untrained = stops[is_end[stops - 1] & ~view.is_predicted[stops - 1]]
    if len(untrained) == len(stops):
        yield wrong(
            _TOPIC,
            "lost_eos",
            f"{counted(len(stops), 'sample')} end with EOS, and it is not trained in any of them: "
            f"{view.places(untrained - 1)}",
            "labels: keep EOS. Padding must be told by position, not by the token of EOS",
        )
        return
    ends = offsets_of(is_end & view.is_predicted)
    if not (ends[stops] - ends[np.maximum(starts, stops - LAST_TOKENS)]).any():
        yield suspect(
            _TOPIC,
            "lost_eos",
            f"none of {counted(len(stops), 'sample')} ends with a trained EOS "
            f"({', '.join(map(str, facts.ends))})",
            "append EOS to each answer",
        )


def check_several_samples(view: BatchView) -> Iterator[Finding]:
    """Check that no segment holds the end of one sample and the beginning of the next."""
    inner = _inner_beginnings(view)
    if not len(inner):
        return
    segments = len(np.unique(view.segment_of[inner]))
    detail = (
        f"EOS or BOS stands inside {counted(segments, 'segment')}, {counted(len(inner), 'time')}: "
        f"{view.places(inner)}"
    )
    if len(view.inner_starts(view.believed)):
        yield suspect(
            "isolation",
            "boundaries_guessed",
            f"{detail}, and {view.evidence} has no boundary there",
            "take boundaries from the lengths of samples, not from a token",
        )
    else:
        yield suspect(
            "isolation",
            "boundaries_missing",
            f"{detail}, and nothing in the batch tells samples apart (a row that is one sample of "
            "several turns may look the same)",
            "position_ids that begin again with each sample, or cu_seq_lens_q and cu_seq_lens_k",
        )


def _inner_beginnings(view: BatchView) -> Int64Array:
    """Return the tokens inside segments at which another sample seems to begin.

    Such a token is a BOS, or follows an EOS, or repeats the first tokens of the row or of the chat
    template after an EOS: whatever a single sample of several turns does not have.
    """
    facts, ids, segment = view.facts, view.tokens, view.segment_of
    begins = np.zeros(len(ids), dtype=bool)
    is_bos, is_eos = facts.is_bos(ids), facts.is_eos(ids)
    if not facts.inner_bos and not set(facts.bos) & set(facts.eos):
        begins[1:] |= is_bos[1:] & ~is_bos[:-1]
    if not facts.inner_eos:
        begins[1:] |= ~is_eos[1:] & is_eos[:-1]
    opening = ids[segment >= 0][:OPENING].tolist()
    # Where packing is on and nothing begins samples, several turns are rather several samples.
    is_lost = bool(facts.packing) and not len(view.inner_starts(view.believed))
    if not facts.inner_opening:
        # A row that is cut from a stream begins anywhere.
        begins[reopenings(ids, facts.eos, facts.turns[:OPENING])] = True
        if is_lost or not facts.begins_turns(opening):
            begins[reopenings(ids, facts.eos, opening)] = True
    begins[1:] &= (segment[1:] == segment[:-1]) & (segment[1:] >= 0)
    places = np.flatnonzero(begins)
    return np.asarray(places[places < view.sample_stops[segment[places]]], dtype=np.int64)
