"""Loader of one rank's micro-batches with a token budget, from samples or a live stream."""

from brimful.serve.composed_batches import ComposedBatches
from brimful.serve.token_budget import SampleCount, TokenBudget


class TokenBudgetBatches(ComposedBatches):
    """Micro-batches of one data-parallel rank, each filled with samples up to its token budget.

    All ranks compose the same micro-batches from the same lengths, and micro-batch ``k`` of a step goes to rank ``k``
    modulo the number of ranks: all ranks have equal steps without communication::

        2 ranks, 2 micro-batches a step      composed    0 1 2 3 | 4 5 6 7 | 8
                                             rank 0      0   2   | 4   6   | 8   –     – : no loss (tail ``pad``)
                                             rank 1        1   3 |   5   7 |   –   –

    Three kinds of source:

    * By index, with ``lengths``: ``source[i]`` returns an ``EncodedSample``; a rank encodes only what it serves. Each
      epoch has its own order. A saved state holds sample numbers and no tokens. If ``source`` has ``__getitems__``, it
      is called with all samples of a micro-batch: ``EncodedSamples`` encodes them together.
    * A stream that all ranks read: an iterable of ``EncodedSample`` or ``Pack``. Every rank reads all of it. To save a
      state, the stream needs ``state_dict`` and ``load_state_dict``; the state holds the tokens of waiting samples.
    * A separate stream on every rank: leave ``dp_world_size`` at 1 and give ``agree``.

    Iterating serves one epoch, after ``load_state_dict`` its remainder, and moves on to the next.

    Args:
        source: one of the three kinds. Its ``set_epoch`` method is called if it exists.
        batching: ``TokenBudget`` (``dyn_bsz`` on) or ``SampleCount`` (off).
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        lengths: ``int[num_samples]``, tokens of each sample of a source by index; samples with a negative length are
            left out.
        loss_tokens: ``int[num_samples]``, number of targets of each sample; the first token is never a target. Needed
            with ``lengths`` for a budget that counts targets.
        dp_rank, dp_world_size: this rank among the ranks that see different data. TP, CP and PP peers share one.
        micro_batches: forward passes of one step (gradient accumulation).
        seed: seed of the order of a source by index; None keeps its order.
        tail: treatment of an incomplete last step: ``pad`` (batches without loss), ``drop``, or ``repeat`` (repeats its
            micro-batches).
        agree: ``RankAgreement(tail)``; or a function that is called once per step with true if this rank has a step,
            and returns true if all ranks serve it: reduced by MAX over the ranks with tail ``pad`` or ``repeat``, by
            MIN with ``drop``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=length) for length in (3, 5, 2, 4)]
    >>> batches = TokenBudgetBatches(stream, TokenBudget(8, min_buffered=2))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[3, 5]], [[2, 4]]]
    """

    _kinds = (TokenBudget, SampleCount)
    _kinds_in_words = "a TokenBudget or a SampleCount"
