"""Trees: samples of a pack share the tokens that they begin with.

Tokens of all samples come in; packs come out in which a shared beginning is there once, and the
batches, masks, losses and checks of such packs.

It begins at the seam ``base/sharing.py``: what samples share travels in the field ``sharing`` of
length tables, plans, packs and batches, as ``Prefixes``, ``PlanTrees`` and ``PackTree``.

The names here are the ones that ``base.sharing.wing_of`` lists; each loads its module when it is
first asked for.
"""

from brimful.base.optional import at_first_use

TITLE = "tree"
"""Noun of a pack whose samples share, for messages."""

DIALECTS = "brimful.trees.dialects"
"""Module with the dialects of rows of trees."""

__getattr__ = at_first_use(
    __name__,
    {
        "account": ("account_of",),
        "collate.branch": ("LossForm",),
        "collate.rows": ("boundaries", "lay_out", "refusal", "without_loss"),
        "pack_tree": ("SHARD_COLUMNS",),
        "packs": ("assemble", "fault", "flat", "of_shard"),
        "plan.pack_trees": ("check_settings", "pack"),
        "plan.plan_trees": (
            "PLAN_COLUMNS",
            "PlanSharing",
            "amounts",
            "ends_sample",
            "sizes",
            "validate",
        ),
        "prefix_search": ("Search",),
        "prefixes": ("joined", "of_table", "saved_in_groups"),
    },
)
