"""The page: its numbers, its form, and that it loads nothing from elsewhere."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.measure import LengthTable
from brimful.plan import Alignment
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import CostModel
from brimful.report.analysis.facts import gather_facts
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import CAPACITIES, sweep_capacities
from brimful.report.html.page import DATA_ID, render_page
from brimful.report.table_model import sweep_table
from brimful.report.text.artefact_lines import describe_plan
from brimful.report.text.report_lines import describe_facts, draw_table
from brimful.testing.strategies import capacities_and_lengths

VOID = {"meta", "br", "img", "input", "hr", "link"}


LENGTHS = [3, 3, 5, 6, 1, 1]


class Page(HTMLParser):
    """Elements with their attributes, texts by id, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.data, self.ids = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if "id" in dict(attributes):
            self.ids.append(dict(attributes)["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.data += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


def page_of(facts):
    text = render_page(facts)
    page = Page(text)
    return text, page, json.loads(page.data)


def six(capacity=7, title="six", run=None, sources=None, lengths=None, **settings):
    table = lengths if lengths is not None else LengthTable.from_lengths(LENGTHS)
    plan = plan_packs(table, capacity=capacity, algorithm="next_fit", **settings)
    return gather_facts(title, table=table, plan=plan, run=run or TrainingRun(), sources=sources)


def test_the_numbers_of_six_samples():
    """Next fit at 7: 3 3 · 5 · 6 1 · 1, of 28 tokens."""
    _, page, data = page_of(six())
    assert data["lengths"]["number"] == 6
    assert data["lengths"]["tokens"] == 19
    assert (data["lengths"]["shortest"], data["lengths"]["median"], data["lengths"]["longest"]) == (1, 3, 6)
    assert [(c["begin"], c["end"], c["number"], c["total"]) for c in data["lengths"]["classes"]] == [
        (1, 2, 2, 2), (2, 3, 0, 0), (3, 4, 2, 6), (4, 6, 1, 5), (6, 8, 1, 6),
    ]  # fmt: skip
    plan = data["plan"]
    assert (plan["num_packs"], plan["capacity"], plan["fill_ratio"]) == (4, 7, 19 / 28)
    assert plan["ledger"]["samples_packed"] == 6
    assert plan["fill"]["full"] == 1
    assert sum(plan["fill"]["packs"]) + plan["fill"]["below"] == 4
    assert [(c["begin"], c["number"]) for c in plan["samples_per_pack"]["classes"]] == [(1, 2), (2, 2), (3, 0)]
    assert data["advice"]["packing_factor"] == 1.5
    assert [(point["capacity"], point["num_packs"]) for point in data["sweep"]] == [(7, 3), (1024, 1)]
    assert data["work"] is None
    assert page.count("svg") == 4


def test_the_padding_of_an_alignment_is_told():
    """Without it the fill is lower for a hidden reason, and a larger capacity promises what it cannot hold."""
    facts = six(capacity=18, alignment=Alignment(segment=4, total=8))
    # Usable are 16: 4 4 8 (3 3 5) · 8 4 4 (6 1 1), 5 and 8 tokens after segments, rows of 16 need none at their ends.
    text, _, data = page_of(facts)
    assert data["plan"]["num_packs"] == 2
    assert data["plan"]["padding"] == {"behind_segments": 13, "at_ends_of_rows": 0}
    assert "adds 13 tokens of padding after segments and 0 at the ends of rows, 36.11 % of the packs" in text
    assert "padding        36.11 %: 13 tokens after segments, 0 at the ends of rows, as aligned" in describe_plan(
        facts.plan
    )
    assert [(point["capacity"], point["num_packs"]) for point in data["sweep"]] == [(18, 2), (1024, 1)]
    assert data["advice"]["positions_per_token"] == 32 / 19
    assert page_of(six(capacity=18))[2]["advice"]["positions_per_token"] == 1
    plain = six(capacity=18)
    assert page_of(plain)[2]["plan"]["padding"] == {"behind_segments": 0, "at_ends_of_rows": 0}
    assert not any("padding" in line for line in describe_plan(plain.plan))


def test_the_page_is_whole_and_alone():
    """Without it a page needs a network, runs something, or is repaired by every browser in another way."""
    run = TrainingRun(dp_world_size=2, learning_rate=1e-4, warmup_steps=10)
    text, page, _ = page_of(six(run=run, sources=(np.array([0, 0, 1, 1, 1, 1]), ["a", "b"])))
    assert text.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        assert tag not in {"img", "link", "iframe", "object", "embed", "base", "form", "style "}
        assert not {"href", "src", "srcset", "xlink:href", "data", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "script":
            assert attributes == {"type": "application/json", "id": DATA_ID}
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    policy = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    for section in ("packing", "lengths", "packs", "capacities", "ledger", "sources", "work"):
        assert section in page.ids


def test_every_chart_has_a_title_and_a_sentence_on_how_to_read_it():
    text, page, _ = page_of(six(run=TrainingRun(dp_world_size=2)))
    charts = [attributes for tag, attributes in page.elements if tag == "svg"]
    assert len(charts) == 4
    for chart in charts:
        assert chart["role"] == "img"
        for name in chart["aria-labelledby"].split():
            assert name in page.ids
    assert page.count("figcaption") == len(charts) == page.count("desc")
    assert not re.search(r'="-?(nan|inf)', text)


def test_texts_are_texts_everywhere():
    """Without it a file name is a program in the reader's browser."""
    evil = "</script><script>alert(1)</script>\"'&<b>"
    table = LengthTable(
        {"tokens": np.array([3, -1, 5, 9], dtype=np.int32)}, rejects=[[1, f"{evil}.jsonl:2", f"reason {evil}"]]
    )
    sources = (np.array([0, 0, 1, 1]), [evil, "b"])
    facts = six(
        title=evil, lengths=table, overflow="drop", sources=sources, run=TrainingRun(model=evil, dp_world_size=2)
    )
    text, page, data = page_of(facts)
    assert page.count("script") == 1
    assert "<script>alert" not in text
    assert "<b>" not in re.sub(r"<b>[\d.,<> %&lt;gt]*</b>", "", text)
    raw = text.split(f'id="{DATA_ID}">')[1].rsplit("</script>", 1)[0]
    assert not set("<>&") & set(raw), "nothing in the data may end its element"
    assert data["title"] == evil
    assert data["shares"][0]["name"] == evil
    assert data["rejects"][0][2] == f"reason {evil}"


def test_where_everything_went():
    table = LengthTable(
        {"tokens": np.array([3, -1, 5, 9], dtype=np.int32)}, rejects=[[1, "data.jsonl:2", "is no JSON"]]
    )
    text, _, data = page_of(six(lengths=table, overflow="truncate"))
    assert data["plan"]["ledger"]["tokens_truncated"] == 2
    assert "longer than 7 tokens, overflow policy truncate" in text
    assert "data.jsonl:2" in text
    assert "is no JSON" in text


def test_equal_facts_give_equal_pages():
    assert render_page(six()) == render_page(six())


def test_a_plan_alone_and_lengths_alone():
    """Without the table the page has no sweep; without a plan no advice."""
    plan = plan_packs(LENGTHS, capacity=7)
    _, page, data = page_of(gather_facts("plan", table=None, plan=plan, run=TrainingRun(dp_world_size=2)))
    assert data["lengths"]["of"] == "segments"
    assert data["sweep"] == []
    assert data["advice"]["dp_world_size"] == 2
    assert "capacities" not in page.ids
    table = LengthTable.from_lengths(LENGTHS)
    _, page, data = page_of(gather_facts("table", table=table, plan=None, run=TrainingRun()))
    assert data["plan"] is None
    assert data["advice"] is None
    assert {"lengths", "capacities"} <= set(page.ids)


def test_a_plan_without_packs_and_samples_too_long_for_any_sweep():
    """Everything dropped, and nothing that fits 128k."""
    table = LengthTable.from_lengths([10, 200_000])
    plan = plan_packs(table, capacity=5, overflow="drop")
    _, _, data = page_of(gather_facts("none", table=table, plan=plan, run=TrainingRun(dp_world_size=2)))
    assert data["plan"]["num_packs"] == 0
    assert data["advice"] is None
    table = LengthTable.from_lengths([200_000])
    _, page, data = page_of(gather_facts("long", table=table, plan=None, run=TrainingRun()))
    assert data["sweep"] == []
    assert "capacities" not in page.ids


@settings(max_examples=25)
@given(capacities_and_lengths(max_capacity=3000, oversized=True), st.integers(1, 4))
def test_any_lengths_make_a_whole_page(case, world):
    capacity, lengths = case
    table = LengthTable.from_lengths(lengths)
    plan = plan_packs(table, capacity=capacity, overflow="truncate", algorithm="best_fit_decreasing")
    text, _, data = page_of(gather_facts("any", table=table, plan=plan, run=TrainingRun(dp_world_size=world)))
    assert sum(one["number"] for one in data["lengths"]["classes"]) == len(lengths)
    assert sum(one["total"] for one in data["lengths"]["classes"]) == sum(lengths)
    assert sum(one["number"] for one in data["plan"]["samples_per_pack"]["classes"]) == plan.num_packs
    assert data["plan"]["fill"]["below"] + sum(data["plan"]["fill"]["packs"]) == plan.num_packs
    drawn = [float(number) for number in re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height)="(-?[\d.]+)"', text)]
    assert min(drawn) >= 0
    assert max(drawn) <= 480


FEW_LONG = [1] * 18 + [40, 42]  # a tenth of the samples, 82 of 100 tokens


def few_long(overflow, capacity=20, **others):
    return gather_facts(
        "few", table=LengthTable.from_lengths(FEW_LONG),
        plan=plan_packs(FEW_LONG, capacity=capacity, overflow=overflow), run=TrainingRun(), **others,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("overflow", "tile", "warning"),
    [
        ("drop", "2 samples (10.00 %) dropped", "82.00 % of the tokens are lost, with 10.00 % of the samples"),
        ("truncate", "2 samples cut", "42.00 % of the tokens are lost, cut off 2 samples"),
        ("split", "0 samples (0.00 %) dropped", None),
    ],
)
def test_a_loss_has_its_colour_and_its_line(overflow, tile, warning):
    """A grey tile that says 82 % of the tokens are gone is read as one more number."""
    facts = few_long(overflow)
    text, page, data = page_of(facts)
    assert f"<span>{tile}</span>" in text
    lines = [line for line in describe_plan(facts.plan) if line.startswith("warning")]
    tiles = sum(attributes.get("class") == "lost" for tag, attributes in page.elements if tag == "div")
    if warning is None:
        assert (data["plan"]["lost"]["warning"], tiles, lines) == (None, 0, [])
        return
    why = f"{warning}: longer than 20 tokens, overflow policy {overflow}"
    assert lines == [f"warning        {why}"]
    assert data["plan"]["lost"]["warning"] == why
    assert f"<strong>Warning:</strong> {why}." in text
    assert tiles == 1
    share = why.split(" of the")[0]
    assert f'<td><span class="lost">{share}</span></td>' in text.split('id="ledger"')[1]


def test_a_source_that_loses_much_stands_out():
    """Books that lose all their tokens look like chats that lose none."""
    sources = (np.array([0] * 18 + [1, 1]), ["chats", "books"])
    text, _, _ = page_of(few_long("drop", sources=sources))
    chats, books = text.split('id="sources"')[1].split("<tr>")[2:4]
    assert '<span class="lost">100.00 %</span>' in books
    assert "lost" not in chats


def test_a_small_loss_has_no_warning():
    """A warning on every plan is read on none."""
    facts = gather_facts(
        "one", table=None, plan=plan_packs([10] * 96 + [40], capacity=20, overflow="drop"), run=TrainingRun()
    )
    text, page, data = page_of(facts)
    assert data["plan"]["lost"]["tokens_ratio"] == 0.04
    assert "Warning" not in text
    assert "lost" not in [attributes.get("class") for _, attributes in page.elements]
    assert "samples        97 in: 96 packed, 1 dropped (1.03 %), 0 rejected" in describe_plan(facts.plan)  # type: ignore[arg-type]
    assert "tokens         1,000 in: 960 packed, 40 dropped (4.00 %), 0 truncated (0.00 %)" in describe_plan(facts.plan)  # type: ignore[arg-type]


def test_every_capacity_says_what_it_loses():
    """Two of twenty samples look like little without the tokens."""
    lengths = [*FEW_LONG[:-2], 2000, 42]  # 18 + 42 fit 1,024, 2,000 do not
    table = LengthTable.from_lengths(lengths)
    points = sweep_capacities(Histogram.of(table.tokens), CAPACITIES, alignment=Alignment(), packs_per_step=1)
    assert [(point.capacity, point.oversized, point.tokens_lost, point.loses_much) for point in points[:2]] == [
        (1024, 1, 2000, True), (2048, 0, 0, False),
    ]  # fmt: skip
    assert points[0].lost_ratio == 2000 / 2060
    first, second = draw_table(sweep_table(points))[1:3]
    assert "97.09 %" in first
    assert first.endswith("← much is lost")
    assert "0.00 %" in second
    assert "lost" not in second
    text, _, data = page_of(gather_facts("capacities", table=table, plan=None, run=TrainingRun()))
    assert '<td><span class="lost">97.09 %</span></td>' in text
    assert data["sweep"][0]["tokens_lost"] == 2000


def test_every_axis_of_a_page_has_round_marks():
    """The fill of these packs begins at 50 %, in quarters of which are 62.5 and 87.5."""
    lengths = [50, 60, 70, 80, 90, 100, 50, 50] * 60
    plan = plan_packs(lengths, capacity=100, algorithm="next_fit")
    table = LengthTable.from_lengths(lengths)
    text, _, data = page_of(gather_facts("axes", table=table, plan=plan, run=TrainingRun(dp_world_size=8)))
    assert data["plan"]["fill"]["edges"][0] == 50
    charts = {
        name: chart for chart in text.split("<svg")[1:] for name in re.findall(r'id="(chart-[\w-]+)-title"', chart)
    }
    marks = {name: re.findall(r'text-anchor="middle">([^<]*)</text>', chart)[:-1] for name, chart in charts.items()}
    assert marks["chart-fill"] == ["50 %", "60 %", "70 %", "80 %", "90 %", "100 %"]
    assert marks["chart-sizes"] == ["1", "2", "4"]


def test_a_table_that_is_cut_off_shows_it():
    """On a phone a table that ends at the edge of the screen looks like a whole one."""
    text, page, _ = page_of(six())
    tables = [attributes for tag, attributes in page.elements if tag == "div" and attributes.get("class") == "scroll"]
    assert len(tables) == page.count("table")
    assert all(attributes["tabindex"] == "0" for attributes in tables), "and scrolls without a finger"
    rule = re.search(r"\.scroll \{(.*?)\}", text, flags=re.DOTALL)[1]
    assert "overflow-x: auto" in rule
    assert rule.count("no-repeat scroll") == 2, "a shade at each edge that stays"
    assert rule.count("no-repeat local") == 2, "covered where there is no more to come"
    assert text.count("--shade:") == 2, "in light and in dark"


def test_one_is_said_in_the_singular():
    """One rank, one pack, one step: "1 samples a step" is what a page says that was not read."""
    table = LengthTable.from_lengths([5])
    text, _, _ = page_of(gather_facts("one", table=table, plan=plan_packs(table, capacity=5), run=TrainingRun()))
    shown = re.sub(r"<[^>]*>", " ", text.split("<body>")[1].split("<script")[0])
    assert re.findall(r"(?<![\d.,])1 (?:data-parallel )?(?:samples|ranks|packs|steps|tokens)\b", shown) == []
    assert "1 data-parallel rank, micro-batch 1" in shown
    assert "1 sample in 1 pack of 5 tokens" in shown
    assert "1 sample holds 5 tokens." in shown


def test_parts_of_a_model_are_shown_beside_each_other():
    """A page that hides the tower says that ranks are balanced while they wait."""
    table = LengthTable.from_lengths([8, 8, 6, 6], patches=[16, 4, 16, 4], patch_blocks=[1, 1, 1, 1])
    model = CostModel(linear=1, quadratic=0, encoder_linear=1)
    run = TrainingRun(dp_world_size=2, cost_model=model)
    facts = gather_facts("parts", table=table, plan=plan_packs(table, capacity=8, seed=None), run=run)
    page = render_page(facts)
    for text in ("vision tower", "language model"):
        assert text in page
    lines, one = describe_facts(facts), facts.work.parts[1]
    (tower,) = [line.split() for line in lines if line.strip().startswith("vision tower")]
    numbers = [f"{number:.3f}" for number in (one.as_it_comes, one.balanced, one.alone)]
    assert tower == ["vision", "tower", "58.8", "%", *numbers], "the terminal shows the same"
    assert facts.as_dict()["work"]["parts"][1]["part"] == "vision_tower"
