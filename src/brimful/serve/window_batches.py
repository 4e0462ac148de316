"""Loader of one rank's packs, planned in a window of samples during training."""

from brimful.serve.composed_batches import ComposedBatches
from brimful.serve.window import Window


class WindowBatches(ComposedBatches):
    """Packs of one data-parallel rank from an online window: ``Lookahead`` sees some samples ahead; nothing is stored.

    A micro-batch is one pack. All ranks plan the same packs from the same lengths, and micro-batch ``k`` of a step goes
    to rank ``k`` modulo the number of ranks: all ranks have equal steps, at the end of the samples too::

        2 ranks, 1 micro-batch a step        planned     0 1 | 2 3 | 4
                                             rank 0      0   | 2   | 4
                                             rank 1        1 |   3 |   –      – : no loss (tail ``pad``)

    Sources, arguments, state and steps are the same as in ``TokenBudgetBatches``: samples by index with ``lengths``, a
    stream that all ranks read, or a separate stream on every rank with ``agree``. If all lengths are known in advance,
    a plan of the whole (``plan_packs``, ``PackLoader``) has fuller packs.

    If PyTorch is imported, this is an ``IterableDataset``, for ``DataLoader(batches, batch_size=None)``, or without
    ``collate_fn`` for ``Trainer(train_dataset=batches, data_collator=PackCollator())``. With several workers, each
    makes every n-th micro-batch of samples by index, in the order of the loader; a stream needs a single worker,
    because it has one position. Workers have copies: get states from ``WorkerLoader``, and select an epoch with
    ``set_epoch`` before iterating.

    Args:
        source: samples by index, or a stream.
        batching: a ``Window``.
        collate_fn, lengths, dp_rank, dp_world_size, micro_batches, seed, tail, agree: see ``TokenBudgetBatches``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=number) for number, length in enumerate((7, 6, 4, 2, 5, 3))]
    >>> batches = WindowBatches(stream, Window(10, size=4))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[1, 2]], [[0, 5]], [[4, 3]]]
    """

    _kinds = (Window,)
    _kinds_in_words = "a Window"
