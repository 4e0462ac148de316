"""Loader of one rank's micro-batches by a token budget, from samples or a live stream."""

from brimful.serve.composed_batches import ComposedBatches
from brimful.serve.token_budget import SampleCount, TokenBudget


class TokenBudgetBatches(ComposedBatches):
    """Micro-batches of one data-parallel rank, each filled with samples up to its token budget.

    All ranks compose the same micro-batches from the same lengths, and number ``k`` of a step goes to rank ``k`` modulo
    the number of ranks: equal steps everywhere, nothing to agree on::

        2 ranks, 2 micro-batches a step      composed    0 1 2 3 | 4 5 6 7 | 8
                                             rank 0      0   2   | 4   6   | 8   –     – : no loss (tail ``pad``)
                                             rank 1        1   3 |   5   7 |   –   –

    Three kinds of source:

    * By index, with ``lengths``: ``source[i]`` gives an ``EncodedSample``; a rank encodes only what it serves. Each epoch
      has an order of its own. A saved state holds numbers of samples and no tokens. ``source.__getitems__`` is asked for
      the samples of a micro-batch together, if there is one: ``EncodedSamples`` encodes them at once.
    * A stream that all ranks read: an iterable of ``EncodedSample`` or ``Pack``. Every rank reads all of it. To save a
      state, the stream needs ``state_dict`` and ``load_state_dict``; the state holds the tokens of waiting samples.
    * A separate stream on every rank: leave ``dp_world_size`` at 1 and give ``agree``.

    Iterating serves one epoch, after ``load_state_dict`` the remainder of it, and moves on to the next.

    Args:
        source: one of the three kinds. Its ``set_epoch`` method is called, if there is one.
        batching: ``TokenBudget`` (``dyn_bsz`` on) or ``SampleCount`` (off).
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        lengths: ``int[num_samples]``, tokens of each sample of a source by index; negative ones are left out.
        loss_tokens: ``int[num_samples]``, targets of each sample, the first token never being one; needed with
            ``lengths`` for a budget that counts targets.
        dp_rank, dp_world_size: this rank among those that see different data. TP, CP and PP peers share one.
        micro_batches: forwards of one step (gradient accumulation).
        seed: of the order of a source by index; None keeps its order.
        tail: of a last step that is not full: ``pad`` (batches without loss), ``drop``, or ``repeat`` (its own again).
        agree: ``RankAgreement(tail)``; or a function that is called once a step with true if this rank has one, and returns
            true if all ranks serve it: reduced by MAX over the ranks with tail ``pad`` or ``repeat``, by MIN with ``drop``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=length) for length in (3, 5, 2, 4)]
    >>> batches = TokenBudgetBatches(stream, TokenBudget(8, min_buffered=2))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[3, 5]], [[2, 4]]]
    """

    _kinds = (TokenBudget, SampleCount)
    _kinds_in_words = "a TokenBudget or a SampleCount"
