"""Sharing: what samples of a pack have in common, such as the tokens that they begin with.

The packages of the line carry it in one field, ``sharing``, and do not look into it: what samples
could share in a length table, what they do share in a plan, in a pack, and in the row of a batch.
None means that a segment is a sample or a part of one. ``SHARING`` has the kinds; the module of a
kind is loaded when something shares.
"""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple, Protocol

LEAST_SHARED = 64
"""Tokens below which sharing costs more than it saves: half a block of attention kernels."""


class ShareMode(str, Enum):
    """Choice of the tokens that samples of a pack share."""

    NONE = "none"
    """Nothing: each sample has all of its tokens. The default."""
    PREFIXES = "prefixes"
    """Tokens with which several samples begin are there once."""


class Sharing(Protocol):
    """Sharing of the samples of a table, a plan, a pack or a batch."""

    @property
    def kind(self) -> ShareMode:
        """Kind, by which ``wing_of`` finds what understands it."""

    @property
    def columns(self) -> dict[str, Any]:
        """Arrays that a file has in addition, by the names of its columns: of a table for each
        sample, of a plan for each segment, of a pack in a shard as one list each.
        """


class SharedLengths(Sharing, Protocol):
    """Sharing of a length table."""

    @property
    def description(self) -> dict[str, Any]:
        """Description in the file of the table, of what its columns need to be read."""

    @property
    def identity(self) -> dict[str, Any]:
        """Part of the fingerprint of the table."""

    def __len__(self) -> int: ...


class SharingKind(NamedTuple):
    """Module of a kind, and its versions of files.

    Attributes:
        module: its name; it has what ``wing_of`` lists.
        plan_version: of files of plans.
        shard_version: of shards; the next number is of shards that have attachments too.
    """

    module: str
    plan_version: int
    shard_version: int


SHARING = {ShareMode.PREFIXES: SharingKind("brimful.trees", plan_version=3, shard_version=5)}
"""Kinds of sharing. A further kind is a member of ``ShareMode``, an entry here, and its module."""


def wing_of(sharing: Sharing | ShareMode | str) -> Any:
    """Return the module of a kind of sharing. For the packages of the line, in their order, it has:

    - ``of_table(columns, description)``: the ``SharedLengths`` of a saved table;
    - ``joined(sharings)``: of several tables whose samples share nothing with another's;
    - ``Search(least)``: looks for what samples share, while they are measured
      (``trees.prefix_search.Search``);
    - ``check_settings(settings)``: refuses settings of plans that have no meaning with it;
    - ``saved_in_groups(table, groups, sample_ids, lengths)``: tokens that each sample need not
      take, ``int64[num_samples]``;
    - ``pack(table, items, settings, pack)``: packs, their segments and account
      (``trees.plan.pack_trees.PackedTrees``); ``pack`` packs items that share nothing;
    - ``PLAN_COLUMNS``, which a pack has too, and ``PlanSharing(*columns)``: the sharing of a saved
      plan;
    - ``ends_sample(plan)``: ``bool[num_segments]``, whether a sample ends with each segment;
    - ``sizes(plan, table, budgets)`` and ``amounts(plan, table, budget)``: what each segment takes;
    - ``validate(plan, table)``: proves that each sample has its tokens;
    - ``account_of(plan, table)``: what is shared, with ``lines()``, ``room(plan)`` and
      ``as_dict()``;
    - ``SHARD_COLUMNS`` and ``of_shard(columns, sample_ids, lengths)``: the ``SharedPack`` of a
      stored pack;
    - ``assemble(ids, masks, sample_ids, lengths, sharing, rows, attachments)``: a pack of whole
      samples, of these rows of a plan;
    - ``flat(pack)``: the samples one after the other;
    - ``fault(pack)``: the first fault in words; ``TITLE``: the noun of such a pack;
    - ``lay_out(batch, packs)``: gives a row the sharing of its packs; ``boundaries(batch)``, within
      which a token predicts the next; ``without_loss(batch, segments)``;
    - ``LossForm(branch, shared_targets)``: the loss of a row (``trees.collate.branch.LossForm``);
    - ``DIALECTS``: the module that converts rows which share, for dialects with ``takes_sharing``;
      ``refusal(dialect, others)``: the error of the other dialects.
    """
    kind = ShareMode(sharing) if isinstance(sharing, str) else sharing.kind
    return import_module(SHARING[kind].module)
