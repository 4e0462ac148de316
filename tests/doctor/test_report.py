"""The report of three depths: order, merging, redaction, and words that are the same in every form."""

import json

import pytest

from brimful.doctor.page import DATA_ID, render_page
from brimful.doctor.report import DoctorReport, Evidence, Finding, Judgment, Line, problems

ON = Line("packing", "on", Evidence.KNOWN, "trl/sft_trainer.py, read 2026-11-26")
APART = Line("isolation", "by positions", Evidence.KNOWN)
LEAK = Finding(
    "isolation", Judgment.WRONG, "sdpa", Evidence.KNOWN, "neighbors_seen", "attn: flash", "https://x.y/issues/1"
)
DOUBT = Finding("packing", Judgment.SUSPECT, "3 % real tokens", Evidence.SEEN, "packing_off")


def test_what_is_wrong_comes_first():
    report = DoctorReport("run", (APART, ON), (DOUBT, LEAK))
    assert [line.topic for line in report.lines] == ["packing", "isolation"]
    assert report.findings == (LEAK, DOUBT)
    assert report.verdict == "WRONG: samples apart"
    assert not report.ok


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence.UNKNOWN, "NOT SHOWN: how samples are kept apart is unknown"),
        (Evidence.KNOWN, "configuration alone"),
        (Evidence.SEEN, "not shown"),
        (Evidence.SHOWN, "shown to be apart"),
    ],
)
def test_nothing_found_says_how_far_it_looked(evidence, words):
    report = DoctorReport("run", (Line("isolation", "by positions", evidence),))
    assert words in report.verdict
    assert ("NOTHING FOUND" in report.verdict) is (evidence is not Evidence.UNKNOWN)
    assert report.verdict.endswith(
        "; unknown: positions (probe), targets (--batch), divisor of the loss (tell_loss of the probe)"
    )
    assert "right" not in str(report)


def test_the_strongest_depth_speaks_and_no_finding_is_lost():
    seen = Line("isolation", "cu_seqlens, 3 segments", Evidence.SEEN)
    both = DoctorReport("a", (ON, APART), (LEAK,)).with_others(DoctorReport("b", (seen,), (DOUBT, LEAK), ("text",)))
    assert both.lines == (ON, seen)
    assert both.findings == (LEAK, DOUBT)
    assert (both.subject, both.notes) == ("a; b", ("text",))


def test_json_holds_the_report():
    report = DoctorReport("run", (ON, APART), (LEAK, DOUBT), ("text",))
    values = json.loads(json.dumps(report.as_dict()))
    assert DoctorReport.from_dict(values) == report
    assert values["findings"][0]["meaning"] == problems()["neighbors_seen"].sentence
    assert values["findings"][0]["threads"] == ["https://x.y/issues/1"]


def test_every_form_has_the_same_words():
    report = DoctorReport("run", (ON, APART), (LEAK, DOUBT))
    page, text = render_page(report), " ".join(str(report).split())
    for words in [report.verdict, "by positions", "sdpa", "attn: flash", problems()["packing_off"].sentence]:
        assert words in page
        assert words in text
    data = page.partition(f'id="{DATA_ID}">')[2].partition("</script>")[0]
    assert json.loads(data) == report.as_dict()


def test_markup_of_a_user_is_text():
    page = render_page(DoctorReport("<script>x</script>", (Line("packing", "</script><b>", Evidence.SEEN),)))
    assert "<script>x" not in page
    assert "</script><b>" not in page


def test_redacted_reports_have_no_paths_and_no_texts():
    leak = Finding(
        "isolation", Judgment.WRONG, "in /data/ann/run.yaml:3, s3://bucket/x", Evidence.KNOWN, "neighbors_seen"
    )
    report = DoctorReport(
        "TRL, /home/ann/w/run.yaml", (Line("packing", r"C:\Users\ann\run.yaml"),), (leak,), ("Hi Ann",)
    )
    text = str(report.redacted())
    assert "ann" not in text.lower()
    assert "bucket" not in text
    assert "run.yaml:3" in text
    assert "https://github.com" in text, "links to threads stay"


def test_problems_have_sentences_and_links():
    for problem in problems().values():
        assert problem.sentence.endswith("."), problem.name
        assert all(link.startswith("https://github.com/") for link in problem.threads)
