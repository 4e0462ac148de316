"""A pack store as lines."""

from brimful.base.fingerprint import short
from brimful.base.wording import counted
from brimful.plan import Plan
from brimful.report.text.plan_lines import describe_plan
from brimful.serve import PackStore

_PLAN_LABELS = ("samples ", "tokens ", "cut ", "targets ", "without any", "dropped for")
"""Labels of the lines of a plan that describe its store too."""


def describe_store(packs: PackStore, plan: Plan | None = None) -> list[str]:
    """Describe a pack store, with the fate of its samples if the plan is given."""
    identity = packs.identity
    lines = [
        f"packs          {len(packs):,} of {counted(packs.capacity, 'token')} in {counted(packs.num_shards, 'shard')}",
        f"fill           {100 * packs.fill_ratio:.2f} %, {counted(packs.num_tokens, 'token')}",
        f"labels         train on {identity.get('train_on')}",
        f"fingerprints   plan {short(identity['plan'])}, source {short(identity['source'])}, "
        f"encoder {short(identity['encoder'])}",
    ]
    if plan is not None:
        lines += [line for line in describe_plan(plan) if line.startswith(_PLAN_LABELS)]
    if not packs.alignment.is_none:
        lines.append(f"alignment      segments to {packs.alignment.segment}, rows to {packs.alignment.total} tokens")
    lines += packs.media.lines()
    # Path and fingerprint of the tokenizer are one line.
    notes = dict(packs.notes)
    notes.pop("media_root", None)
    fingerprint = notes.pop("tokenizer_fingerprint", None)
    if fingerprint is not None:
        notes["tokenizer"] = f"{notes.get('tokenizer') or 'given'}, {short(str(fingerprint))}"
    lines += [f"{name:<15}{value}" for name, value in notes.items()]
    return lines
