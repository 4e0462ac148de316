"""A pack as lines: data is shown, and not obeyed."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given

from brimful.testing.strategies import capacities_and_lengths


@given(case=capacities_and_lengths())
def test_the_terminal_and_the_page_have_the_same_numbers(case: tuple[int, list[int]]) -> None:
    """One rule of quantiles: with two the median of packs was 12 here and 11 there, and the 99th percentile 1,144 and 1,159."""
    from brimful import LengthTable, plan_packs
    from brimful.plan.counts.histogram import Histogram
    from brimful.report.analysis.plan_facts import LengthFacts, PlanFacts
    from brimful.report.text.artefact_lines import describe_lengths, describe_plan

    capacity, lengths = case
    table = LengthTable.from_lengths(lengths)
    plan = plan_packs(table, capacity=capacity)
    marks, facts = LengthFacts.of_items(Histogram.of(table.tokens), table), PlanFacts.of(plan)
    assert marks is not None
    assert facts.sizes is not None
    assert facts.fill is not None
    shown = re.findall(r"(?:p\d+|median) (\d+)", describe_lengths(table)[1].replace(",", ""))
    assert list(map(int, shown)) == [marks.p5, marks.median, marks.p95, marks.p99]
    sizes, fill = (
        next(line for line in describe_plan(plan) if line.startswith(name)) for name in ("samples/", "fill of")
    )
    assert f"median {facts.sizes.median}, most {facts.sizes.most}" in sizes
    assert fill.endswith(f"median {100 * facts.fill.median:.1f} %")


def test_control_characters_of_the_data_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Without it a row of the data can clear the screen, or write its title."""
    from brimful.report.text.artefact_lines import show_pack
    from brimful.testing.toys import toy_pack

    lines = show_pack(toy_pack([3]), 0, 8, lambda ids: "a\x1b[2J\x9b\tb\u202e\u2066\n")
    assert "a\\x1b[2J\\x9b\tb\\u202e\\u2066\n" in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)


def test_lengths_say_what_samples_share() -> None:
    """Only if it was measured."""
    from brimful.report.text.artefact_lines import describe_lengths
    from tests.trees.plans import table_with_prefixes

    lines = describe_lengths(table_with_prefixes([[5, 6, 7], [5, 6, 8], [9]], least=2))
    assert lines[-1] == (
        "shared         2 samples of 3 begin as another does, with 2 tokens or more: 5 tokens if each is there once, "
        "1.40 times fewer"
    )


def test_a_medium_stands_in_the_place_of_its_tokens() -> None:
    """Without it a picture is a word that is written hundreds of times, and its neighbours are out of sight."""
    from dataclasses import replace

    from brimful.media import MediaKind, Medium, PlacedMedium
    from brimful.report.text.artefact_lines import pack_as_dict, show_pack
    from brimful.testing.toys import toy_pack

    items = [
        PlacedMedium(
            Medium(MediaKind.IMAGE, "gone\x1b[2J.png", path="/nowhere/gone.png"), 1, 300, 300, grid=(1, 30, 40)
        ),
        PlacedMedium(Medium(MediaKind.AUDIO, "", data=b"no sound"), 311, 4, 4, segment=1),
    ]
    pack = replace(toy_pack([310, 6]), attachments=tuple(items))
    lines = show_pack(pack, 0, 400, lambda ids: "x" * len(ids), full=True)
    assert (
        lines[2]
        == "x[image 'gone\\x1b[2J.png': does not exist, looked for at '/nowhere/gone.png', 300 tokens, 30×40 patches]⟦xxxxxxxxx⟧"
    )
    assert lines[4].startswith("x[audio: libsndfile cannot read it")
    assert lines[4].endswith("4 tokens]⟦x⟧")
    without_text = show_pack(pack, 0, 400, None)
    assert [line[:7] for line in without_text[1:]] == ["── toke", "[image ", "── toke", "[audio:"]
    (picture,) = pack_as_dict(pack, 0, 400, None)["segments"][0]["media"]
    assert (picture["kind"], picture["length"], picture["problem"]) == (
        "image",
        300,
        "does not exist, looked for at '/nowhere/gone.png'",
    )
