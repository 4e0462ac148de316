"""Values of places in a row of trees come back to each sample that passes through them."""

import numpy as np

from brimful.errors import CollateError
from brimful.rl.step_packs import restore_tokens
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import Finding, failed, passed


def check_restored_paths(setup: PackingSetup) -> Finding | None:
    """Number the tokens of a row where the samples were found, and bring the numbers back.

    None if the samples are not packs of trees, or the collator does not give its rows.
    """
    rows_of = getattr(setup.collator, "rows", None)
    packs = setup.samples.packs()
    if rows_of is None or not setup.samples.has_trees or not packs or len(setup.batch.ids) > 1:
        return None
    sample_ids = np.concatenate([pack.flat().sample_ids for pack in packs])
    if len(np.unique(sample_ids)) < len(sample_ids):
        return None
    # A token that a branch repeats is the same token, and has the same number.
    first_numbers = np.cumsum([0, *map(len, setup.samples.parts)])
    numbers = np.full(setup.batch.ids.shape[1], -1, dtype=np.int64)
    for index, place in setup.batch.located:
        numbers[place.columns] = np.concatenate(
            [
                first_numbers[part] + np.arange(len(setup.samples.parts[part]))
                for part in setup.samples.segments[index].parts
            ]
        )
    try:
        restored = restore_tokens(rows_of(packs), [numbers])
    except CollateError as error:
        return failed("restoring", str(error), "the rows and the batch differ", "")
    values = dict(zip(restored.sample_ids.tolist(), restored, strict=True))
    for index, place in setup.batch.located:
        sample = int(sample_ids[index])
        if sample not in values or not np.array_equal(values[sample], numbers[place.columns]):
            name = setup.samples.segments[index].name
            return failed(
                "restoring",
                f"{name} gets back values that are not of its tokens",
                "values of a row are cut by segments, and a sample of a tree is a path",
                "restore_tokens, or restore_index, with the rows of PackCollator.rows",
            )
    return passed("restoring", f"{len(sample_ids)} samples")
