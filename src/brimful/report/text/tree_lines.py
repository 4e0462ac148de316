"""A pack of samples that share their beginnings, drawn as lines: trunks, and their branches."""

from collections.abc import Callable, Sequence

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray
from brimful.base.wording import counted, percent
from brimful.trees.pack_tree import PackTree

_BRANCHES = 16
"""Branches of a trunk that are drawn; of more, the others are counted."""

_LEVELS = 12
"""Levels of branches that are indented; deeper ones stand below each other."""


def branch_line(name: str, first: int, depth: int, tokens: int) -> str:
    """Return the line of a segment of a tree.

    >>> branch_line("sample 7", 9, 3, 2), branch_line("sample 8", 11, 3, 0)
    ('sample 7 · tokens 9 … 10 · depth 3 · 2 tokens', 'sample 8 · ends where its trunk does')
    """
    if not tokens:
        return f"{name} · ends where its trunk does"
    last = first + tokens - 1
    return f"{name} · tokens {first:,} … {last:,} · depth {depth:,} · {counted(tokens, 'token')}"


def tree_heading(
    tree: PackTree, stops: AnyIntArray, lengths: AnyIntArray, index: int, capacity: int
) -> str:
    """Return the heading of a pack of trees.

    Args:
        tree: of the pack.
        stops: tokens of the sample up to the end of each segment.
        lengths: tokens of each segment.
        index: number of the pack.
        capacity: of the plan.
    """
    num_tokens, flat_tokens = int(lengths.sum()), int(stops[tree.ends].sum())
    return (
        f"pack {index}: {num_tokens:,} of {capacity:,} tokens "
        f"({percent(num_tokens / capacity)}), {counted(tree.num_samples, 'sample')} of "
        f"{flat_tokens:,} tokens in {counted(len(lengths), 'segment')}"
    )


def draw_tree(
    tree: PackTree,
    lengths: AnyIntArray,
    describe: Callable[[int], Sequence[str]],
    *,
    full: bool = False,
) -> list[str]:
    """Draw the segments of a pack, each below its parent. A segment that alone continues its parent
    has an arrow and takes no new level::

        ── trunk of 5 samples
        ├─ sample 0
        └─ trunk of 4 samples
           ├─ sample 1, trunk of 3 samples
           │  ↳─ sample 2, trunk of 2 samples
           │  ↳─ sample 3
           └─ sample 4

    Args:
        tree: of the pack.
        lengths: tokens of each segment.
        describe: lines of a segment, one at least; only called for segments that are drawn.
        full: draw every branch, of which there may be thousands.
    """
    parents, subtree_ends = tree.parents.tolist(), tree.subtree_ends().tolist()
    tokens, ends = offsets_of(lengths), offsets_of(np.bincount(tree.ends, minlength=len(parents)))
    children: dict[int, list[int]] = {}
    for segment, parent in enumerate(parents):
        children.setdefault(parent, []).append(segment)
    lines: list[str] = []
    # What is still to draw, the next one last: a segment, its place among its siblings, and the
    # lines that pass it on the left. A deep tree would be too deep for a recursive function.
    waiting = [(segment, index, "") for index, segment in enumerate(children[-1])][::-1]
    while waiting:
        segment, index, left = waiting.pop()
        siblings = children[parents[segment]]
        is_last = segment == siblings[-1]
        is_root = parents[segment] < 0
        if index == _BRANCHES < len(siblings) - 1 and not full:
            num_tokens, num_samples = (
                int(counts[subtree_ends[siblings[-1]]] - counts[segment])
                for counts in (tokens, ends)
            )
            lines.append(
                f"{left}{'── ' if is_root else '└─ '}… {len(siblings) - index:,} more "
                f"{'trees' if is_root else 'branches'}: {counted(num_samples, 'sample')}, "
                f"{counted(num_tokens, 'token')}"
            )
            del waiting[len(waiting) - (len(siblings) - index - 1) :]
            continue
        head, *body = describe(segment)
        is_alone = len(siblings) == 1
        mark = "── " if is_root else "↳─ " if is_alone else "└─ " if is_last else "├─ "
        side = "" if is_root or is_alone else "   " if is_last else "│  "
        below = f"{left}{side}"[-3 * _LEVELS :]
        branches = children.get(segment, [])
        lines.append(f"{left}{mark}{head}")
        lines += [f"{below}{'│  ' if branches else '   '}{line}".rstrip() for line in body]
        waiting += [(branch, index, below) for index, branch in enumerate(branches)][::-1]
    return lines
