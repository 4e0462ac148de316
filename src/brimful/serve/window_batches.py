"""Loader of one rank's packs that are planned in a window of samples while it trains."""

from brimful.serve.composed_batches import ComposedBatches
from brimful.serve.window import Window


class WindowBatches(ComposedBatches):
    """Packs of one data-parallel rank from an online window: ``Lookahead`` sees some samples ahead, and nothing is stored.

    A micro-batch is one pack. All ranks plan the same packs from the same lengths, and number ``k`` of a step goes to rank
    ``k`` modulo the number of ranks: equal steps everywhere, at the end of the samples too::

        2 ranks, 1 micro-batch a step        planned     0 1 | 2 3 | 4
                                             rank 0      0   | 2   | 4
                                             rank 1        1 |   3 |   –      – : no loss (tail ``pad``)

    Sources, arguments, state and steps are those of ``TokenBudgetBatches``: samples by index with ``lengths``, a stream that
    all ranks read, or a stream of its own on every rank with ``agree``. Where all lengths are known before, a plan of the
    whole (``plan_packs``, ``PackLoader``) is fuller.

    Where PyTorch is imported this is an ``IterableDataset``, for ``DataLoader(batches, batch_size=None)``, or without
    ``collate_fn`` for ``Trainer(train_dataset=batches, data_collator=PackCollator())``. Of several workers each makes every n-th
    micro-batch of samples by index, in the order of the loader; a stream goes into one worker, as it has one position. Workers
    have copies: states come from ``WorkerLoader``, and an epoch from ``set_epoch`` before it is iterated.

    Args:
        source: samples by index, or a stream.
        batching: a ``Window``.
        collate_fn, lengths, dp_rank, dp_world_size, micro_batches, seed, tail, agree: as of ``TokenBudgetBatches``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=number) for number, length in enumerate((7, 6, 4, 2, 5, 3))]
    >>> batches = WindowBatches(stream, Window(10, size=4))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[1, 2]], [[0, 5]], [[4, 3]]]
    """

    _kinds = (Window,)
    _kinds_in_words = "a Window"
