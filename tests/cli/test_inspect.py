"""``brimful inspect``: a description of any file that brimful writes."""

from __future__ import annotations

import json
from pathlib import Path

from brimful.plan import Plan
from tests.cli.tools import one_json, outcome, refused, run, value
from tests.trees.plans import written_trees


def test_inspect_shows_a_length_table(packs: Path) -> None:
    """Without it one of the files that brimful writes does not introduce itself."""
    out, _ = run("inspect", packs / "lengths.arrow")
    assert value(out, "lengths").startswith("6 samples, 218 tokens, ")


def test_inspect_shows_a_plan_and_a_pack_of_it(packs: Path) -> None:
    """Without it users cannot see which samples share a pack before they are written."""
    plan = Plan.open(packs / "plan.arrow")
    out, _ = run("inspect", packs / "plan.arrow")
    assert value(out, "packs") == f"4 of 70 tokens, {plan.fingerprint[:7]}"
    number = next(index for index in range(4) if len(plan.pack(index)) == 2 and plan.pack(index)[0].length == 30)
    first, second = (segment.sample_id for segment in plan.pack(number))
    out, _ = run("inspect", packs / "plan.arrow", "--pack", number)
    assert out == [
        f"pack {number}: 60 of 70 tokens, 2 segments",
        f"  sample {first:>10}  tokens 0 … 29",
        f"  sample {second:>10}  tokens 0 … 29",
    ]


def test_inspect_shows_a_store_and_checks_it(packs: Path, chats: Path, tokenizer: Path) -> None:
    """Without it a directory of packs does not say what it was made from, or whether it is whole."""
    out, _ = run("inspect", packs, "--check")
    assert value(out, "targets") == "86 in: 86 packed, 0 dropped, 0 lost to cuts"
    assert value(out, "packs") == "4 of 70 tokens in 1 shard"
    assert value(out, "fill") == "77.86 %, 218 tokens"
    assert value(out, "labels") == "train on assistant"
    assert value(out, "fingerprints").startswith(f"plan {Plan.open(packs / 'plan.arrow').fingerprint[:7]}, source ")
    assert value(out, "tokenizer").startswith(f"{tokenizer}, ")
    assert value(out, "source") == str(chats)
    assert value(out, "checked") == "1 shard, 4 packs, 218 tokens of 6 samples agree with log and plan"
    (packs / "plan.arrow").unlink()
    out, _ = run("inspect", packs, "--check")
    assert value(out, "checked").endswith("agree with log (no plan.arrow next to it)")


def test_inspect_shows_a_pack_with_its_text_and_targets(packs: Path) -> None:
    """Without it labels on the wrong tokens are found after the training run."""
    plan = Plan.open(packs / "plan.arrow")
    number = next(index for index in range(4) if plan.pack(index)[0].sample_id == 2)
    out, _ = run("inspect", packs, "--pack", number)
    assert out[:2] == [
        f"pack {number}: 50 of 70 tokens (71.4 %), 1 segments, 28 loss tokens",
        "── tokens 0 … 49 · sample 2 · 50 tokens, 28 loss",
    ]
    answer = "c" * 27
    assert "\n".join(out[2:]) == f"<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n⟦{answer}<|im_end|>⟧\n"


def test_inspect_shortens_long_texts_unless_asked(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a pack of 128k tokens floods the terminal, or its middle can never be seen."""
    (tmp_path / "one.jsonl").write_text(json.dumps({"prompt": "?", "completion": "x" * 500}) + "\n")
    packs = tmp_path / "one"
    run("pack", tmp_path / "one.jsonl", "-o", packs, "--tokenizer", tokenizer, "--max-length", 1000, "--quiet")
    short = "\n".join(run("inspect", packs, "--pack", 0)[0])
    full = "\n".join(run("inspect", packs, "--pack", 0, "--full")[0])
    assert "… 450 tokens …" in short
    assert "x" * 500 not in short
    assert "x" * 500 in full


def test_inspect_shows_boundaries_where_the_tokenizer_is_gone(packs: Path, tmp_path: Path) -> None:
    """Without it a store that was copied to another machine cannot be looked into."""
    out, err = run("inspect", packs, "--pack", 0, "--tokenizer", tmp_path / "gone")
    assert out[0].startswith("pack 0: ")
    assert all(line.startswith("── tokens ") for line in out[1:])
    assert len(err) == 1
    assert str(tmp_path / "gone") in err[0]


def test_inspect_gives_json_of_all_that_it_shows(home: Path) -> None:
    """Without it scripts read tables meant for people."""
    packs = home / "packs"
    store = one_json(outcome("inspect", packs, "--json")[1])
    assert (store["kind"], store["num_packs"], store["samples_dropped"], store["capacity"]) == ("store", 2, 1, 20)
    plan = one_json(outcome("inspect", packs / "plan.arrow", "--json")[1])
    assert (plan["kind"], plan["num_packs"], plan["tokens_in"]) == ("plan", 2, 52)
    table = one_json(outcome("inspect", packs / "lengths.arrow", "--json")[1])
    assert (table["kind"], table["samples"], table["tokens"], table["rejected"]) == ("length_table", 5, 52, 1)
    planned = one_json(outcome("inspect", packs / "plan.arrow", "--pack", 0, "--json")[1])
    written = one_json(outcome("inspect", packs, "--pack", 0, "--json")[1])
    assert planned["kind"] == written["kind"] == "pack"
    assert [s["sample_id"] for s in planned["segments"]] == [s["sample_id"] for s in written["segments"]]
    assert sum(segment["tokens"] for segment in written["segments"]) == written["tokens"]
    checked = one_json(outcome("inspect", packs, "--check", "--json")[1])
    assert checked["checked"] == {"shards": 1, "packs": 2, "tokens": 22, "samples": 3, "against": "log and plan"}


def test_inspect_finds_a_sample(home: Path) -> None:
    """Without it users cannot tell which pack holds sample 4, or why none holds sample 2."""
    packs, rows = home / "packs", home / "chats.jsonl"
    found = [outcome("inspect", packs, "--sample", number)[1].splitlines() for number in range(5)]
    assert [lines[0] for lines in found] == [f"sample         {number} at {rows}:{number + 1}" for number in range(5)]
    assert found[2][2] == "dropped        longer than a pack (20 tokens)"
    assert found[3][1].startswith("rejected       not JSON")
    place = one_json(outcome("inspect", packs, "--sample", 4, "--json")[1])["places"][0]
    assert found[4][2] == f"packed         pack {place['pack']}, tokens {place['first']} … {place['first'] + 3}"
    segments = one_json(outcome("inspect", packs, "--pack", place["pack"], "--json")[1])["segments"]
    assert {"sample_id": 4, "first": place["first"]}.items() <= next(s for s in segments if s["sample_id"] == 4).items()
    assert outcome("inspect", packs / "plan.arrow", "--sample", 4)[1].splitlines() == found[4]
    assert outcome("inspect", packs / "lengths.arrow", "--sample", 2)[1].splitlines() == found[2][:2]


def test_inspect_draws_packs_of_trees(tmp_path: Path) -> None:
    """Planned and written, in words and as JSON; without it shared tokens look like tokens of one sample."""
    packs = tmp_path / "packs"
    plan = written_trees(packs, ["abcd", "abce", "abc", "x"], [[3], [0, 1, 2]])
    plan.save(packs / "plan.arrow")
    out, _ = run("inspect", packs, "--check")
    assert value(out, "tokens") == "12 in: 6 packed, 6 shared, 0 dropped (0.00 %), 0 truncated (0.00 %)"
    assert value(out, "shared").startswith("12 tokens of samples are 6 in the packs, 2.00 times fewer; 3 of 4 samples")
    assert value(out, "checked") == "1 shard, 2 packs, 6 tokens of 4 samples agree with log and plan"
    out, _ = run("inspect", packs, "--pack", 1)
    assert out == [
        "pack 1: 5 of 64 tokens (7.8 %), 3 samples of 11 tokens in 3 segments, 4 loss tokens",
        "── sample 2, trunk of 3 samples · tokens 0 … 2 · depth 0 · 3 tokens, 2 loss",
        "├─ sample 0 · tokens 3 … 3 · depth 3 · 1 token, 1 loss",
        "└─ sample 1 · tokens 4 … 4 · depth 3 · 1 token, 1 loss",
    ]
    planned, _ = run("inspect", packs / "plan.arrow", "--pack", 1)
    assert [line.partition(",")[0] for line in planned] == [line.partition(",")[0] for line in out]
    for path in (packs, packs / "plan.arrow"):
        segments = one_json(outcome("inspect", path, "--pack", 1, "--json")[1])["segments"]
        assert [(one["sample_id"], one["parent"], one["ends"], one["samples"]) for one in segments] == [
            *((2, -1, True, 3), (0, 0, True, 1), (1, 0, True, 1))
        ]
    assert run("inspect", packs / "plan.arrow", "--sample", 1)[0] == [
        "sample         1",
        "packed         pack 1, tokens 0 … 2: shared with 2 other samples",
        "packed         pack 1, tokens 4 … 4",
    ]


def test_inspect_refuses_what_it_cannot_show(home: Path) -> None:
    """Without it one of two wishes is dropped in silence."""
    assert refused("inspect", home / "packs", "--sample", 5) == "--sample 5: the samples are 0 … 4"
    assert (
        refused("inspect", home / "packs", "--sample", 1, "--pack", 0)
        == "--pack and --sample show two things: leave one out"
    )
