"""``brimful inspect``: everything that brimful writes introduces itself."""

from __future__ import annotations

import os
from typing import Any

import click

from brimful.cli.flags import in_flags
from brimful.cli.options import is_ours
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BrimfulError, NotAPackStoreError, SettingsError, SourceNotFoundError
from brimful.materialize import check_store
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.progress import make_progress
from brimful.remote import is_remote
from brimful.report.lengths import describe_lengths
from brimful.report.pack import show_pack
from brimful.report.plan import describe_plan
from brimful.report.store import describe_store
from brimful.serve import open_packs
from brimful.words import counted

__all__ = ["inspect"]


@click.command()
@click.argument("path")
@click.option("--pack", "index", type=int, metavar="N", help="Show pack N: its segments, and their text.")
@click.option("--tokenizer", metavar="DIR|ID", help="Tokenizer for the text (default: the one that packed).")
@click.option("--full", is_flag=True, help="Show whole texts, not their beginnings and ends.")
@click.option("--check", is_flag=True, help="Read every byte of a pack store and hold it against its log and plan.")
def inspect(path: str, index: int | None, tokenizer: str | None, full: bool, check: bool) -> None:
    """Show what PATH is: a length table, a plan, a pack store, or one pack of it."""
    if not (is_remote(path) or os.path.exists(path)):
        raise SourceNotFoundError(f"{path}: no such file or directory")
    if is_remote(path) or os.path.isdir(path):
        _store(path, index, tokenizer, full, check)
        return
    if check:
        raise SettingsError("--check reads a pack store: name its directory")
    if is_ours(path, "length_table"):
        lines = describe_lengths(LengthTable.open(path))
    elif is_ours(path, "plan"):
        plan = Plan.open(path)
        lines = describe_plan(plan) if index is None else _planned(plan, index)
    else:
        raise NotAPackStoreError(f"{path} is nothing that brimful wrote: no length table, plan or pack store")
    for line in lines:
        click.echo(line)


def _planned(plan: Plan, index: int) -> list[str]:
    if not 0 <= index < plan.num_packs:
        raise SettingsError(f"--pack {index}: the plan has packs 0 … {plan.num_packs - 1}")
    segments = plan.pack(index)
    total = sum(segment.length for segment in segments)
    lines = [f"pack {index}: {total:,} of {plan.capacity:,} tokens, {len(segments)} segments"]
    return lines + [f"  sample {s.sample_id:>10}  tokens {s.start:,} … {s.start + s.length - 1:,}" for s in segments]


def _store(path: str, index: int | None, tokenizer: str | None, full: bool, check: bool) -> None:
    packs = open_packs(path)
    plan_path = os.path.join(path, "plan.arrow")
    plan = Plan.open(plan_path) if os.path.exists(plan_path) else None
    if index is not None:
        if not 0 <= index < len(packs):
            raise SettingsError(f"--pack {index}: the store has packs 0 … {len(packs) - 1}")
        lines = show_pack(
            packs[index], index, packs.capacity, _decoder(tokenizer or packs.notes.get("tokenizer")), full
        )
    else:
        lines = describe_store(packs, plan)
    for line in lines:
        click.echo(line)
    if check:
        found = check_store(path, plan=plan, progress=make_progress("auto"))
        against = "log and plan" if plan is not None else "log (no plan.arrow beside it)"
        click.echo(
            f"checked        {counted(found.shards, 'shard')}, {counted(found.packs, 'pack')}, "
            f"{found.tokens:,} tokens of {counted(found.samples, 'sample')} agree with {against}"
        )


def _decoder(name: str | None) -> Any:
    """Tokens to text, or None where the tokenizer is not at hand: the boundaries can be shown all the same."""
    if not name:
        return None
    try:
        hf = Tokenizer(name).hf
    except BrimfulError as error:
        click.echo(f"(no text: {in_flags(error.message)})", err=True)
        return None
    return lambda ids: str(hf.decode(list(map(int, ids)), skip_special_tokens=False))
