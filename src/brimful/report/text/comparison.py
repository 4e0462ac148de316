"""Other capacities and algorithms as tables."""

from collections.abc import Sequence

from brimful.messages import percent
from brimful.report.analysis.capacity_sweep import CapacityPoint
from brimful.report.analysis.what_if import Alternative


def draw_sweep(points: Sequence[CapacityPoint], has_steps: bool) -> list[str]:
    """Draw the capacities as a table, with steps an epoch if these say more than the packs."""
    steps = f"  {'steps/epoch':>11}" if has_steps else ""
    lines = [
        f"{'capacity':>9}  {'packs':>11}  {'fill':>8}  {'samples/pack':>12}  {'too long':>9}  {'tokens lost':>11}  "
        f"{'padded to it':>12}{steps}"
    ]
    for point in points:
        steps = f"  {point.steps_per_epoch:>11,}" if has_steps else ""
        lines.append(
            f"{point.capacity:>9,}  {point.num_packs:>11,}  {100 * point.fill_ratio:>6.2f} %  "
            f"{point.samples_per_pack:>12.1f}  {point.oversized:>9,}  {percent(point.lost_ratio, 2):>11}  "
            f"{100 * point.padded_fill_ratio:>5.1f} % full{steps}{'  ← much is lost' if point.loses_much else ''}"
        )
    return lines


def draw_comparison(rows: Sequence[Alternative]) -> list[str]:
    """Draw the alternatives as a table; the plan has an arrow."""
    head = (
        f"{'capacity':>9}  {'algorithm':<21} {'packs':>11}  {'over bound':>10}  {'fill':>8}  {'samples/pack':>12}  "
        f"{'too long':>9}  {'tokens lost':>11}  {'steps/epoch':>11}"
    )
    return [head] + [
        f"{row.capacity:>9,}  {row.algorithm:<21} {row.num_packs:>11,}  {row.over_bound:>10,}  "
        f"{100 * row.fill_ratio:>6.2f} %  {row.samples_per_pack:>12.1f}  {row.oversized:>9,}  "
        f"{100 * row.lost_ratio:>9.2f} %  {row.steps_per_epoch:>11,}{'  ← this plan' if row.chosen else ''}"
        for row in rows
    ]
