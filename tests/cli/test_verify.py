"""``brimful verify`` on the command line."""

import json
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from tests.cli.tools import outcome  # noqa: E402
from tests.trees.plans import written_trees  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

run = partial(outcome, "verify")


def broken(samples):
    """A collator for --collator: a mask that switches isolation off."""
    batch = PackCollator()(samples)
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}


def test_a_right_architecture_exits_with_0_and_prints_the_table():
    code, out, err = run("--model-type", "qwen2", "--attention", "sdpa,flash_attention_2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split() == ["check", "attention", "result", "measured", "limit"]
    assert any(line.split()[:3] == ["isolation", "sdpa", "PASS"] for line in lines)
    assert "way out: attn_implementation='sdpa', which passes here" in out
    assert lines[-1] == "PASS: packing is right with sdpa"


def test_a_fault_exits_with_1_and_the_last_line_names_it():
    code, out, _ = run("--model-type", "qwen2", "--attention", "sdpa", "--collator", "tests.cli.test_verify:broken")
    assert code == 1
    assert out.splitlines()[-1].startswith("FAIL: isolation (sdpa), training (sdpa), logits (sdpa)")
    assert "cause: mask present" in out


def test_what_cannot_be_proven_does_not_exit_with_0():
    """A script that asks for proof must not go on with a refusal."""
    code, out, _ = run("--model-type", "qwen3_next", "--attention", "eager")
    assert code == 1
    assert out.splitlines()[-1].startswith("NOT PROVEN")


def test_json_holds_every_finding():
    code, out, _ = run("--model-type", "llama", "--attention", "sdpa", "--no-gradients", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (0, True)
    found = {(one["check"], one["attention"]): one for one in report["findings"]}
    assert found["isolation", "sdpa"]["status"] == "PASS"
    assert found["isolation", "sdpa"]["measured"] <= found["isolation", "sdpa"]["limit"]
    assert ("gradients", "sdpa") not in found


def test_samples_come_from_a_pack_store(tmp_path):
    """The user's own data, a few segments of it, with ids within the tiny vocabulary."""
    from brimful import open_source, pack_dataset
    from brimful.testing.toys import toy_chat_encoder

    rows = [{"text": "abcdefgh" * (1 + index % 3) + str(index)} for index in range(30)]
    pack_dataset(open_source(rows), toy_chat_encoder(), tmp_path / "packs", capacity=64)
    code, out, err = run("--model-type", "qwen2", "--attention", "sdpa", "--packs", tmp_path / "packs")
    assert code == 0, out + err
    assert "complete    -                    PASS" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --model DIR|ID or --model-type NAME"),
        (["--model", "a", "--model-type", "qwen2"], "give either"),
        (["--model-type", "quen2"], "did you mean"),
        (["--model-type", "qwen2", "--attention", "spda"], "spda is not one of eager, sdpa"),
        (["--model-type", "qwen2", "--dtype", "fp32"], "'fp32' is none of float32"),
        (["--model-type", "qwen2", "--device", "gpu"], "--device gpu"),
        (["--model-type", "qwen2", "--collator", "nothing"], "must be MODULE:NAME"),
        (["--model-type", "qwen2", "--collator", "brimful:nothing"], "--collator brimful:nothing"),
        (["--model-type", "qwen2", "--packs", "/nowhere"], "/nowhere"),
        (["--model", "/nowhere"], "no causal language model could be loaded"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def pictures(small_qwen, tmp_path_factory):
    """Packs with pictures, and their processor."""
    from tests.verify import media_packs

    folder = media_packs.qwen_folder(tmp_path_factory.mktemp("pictures"), "qwen2-vl")
    media_packs.packs_of(media_packs.rows_of_pictures(), "qwen2-vl", small_qwen, folder)
    return folder


def test_packs_with_media_are_verified_with_a_tiny_model_of_their_family(pictures):
    """The store says which family; the processor makes the pixels."""
    code, out, err = run(pictures / "packs", "--processor", pictures, "--attention", "sdpa")
    assert (code, err) == (0, ""), out + err
    assert out.startswith("Qwen2VLForConditionalGeneration, float32 on cpu; PackCollator; 4 samples")
    assert any(line.split()[:4] == ["media", "-", "PASS", "4"] for line in out.splitlines())
    assert "samples with other media" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "these packs hold media: give --processor DIR"),
        (("--model-type", "qwen2", "--processor", "x"), "--model-type qwen2 has no tower for media"),
        (("--packs", "x"), "packs are given twice"),
    ],
)
def test_what_packs_with_media_need(pictures, arguments, message):
    code, _, err = run(pictures / "packs", *arguments)
    assert code == 2
    assert message in err


def test_a_model_of_the_users_own_is_verified_on_packs_with_media(pictures, tmp_path):
    """Loaded with its tower; tokens are the packs' own."""
    from brimful import open_packs
    from brimful.media import MediaKind
    from brimful.verify.models import tiny_media_model

    store = open_packs(pictures / "packs")
    settings = store.attachment_settings
    assert settings is not None
    tiny_media_model(settings, {MediaKind.IMAGE: 10_268}, 10_300).save_pretrained(tmp_path)
    code, out, err = run(
        pictures / "packs", "--processor", pictures, "--model", tmp_path, "--attention", "sdpa", "--no-gradients"
    )
    assert code == 0, out + err  # Transformers draws a bar on stderr while it loads
    assert any(line.split()[:4] == ["media", "-", "PASS", "4"] for line in out.splitlines())


def test_trees_are_drawn_or_taken_from_packs(tmp_path):
    """A store says itself that its packs are trees; random ones are asked for."""
    code, out, err = run("--model-type", "qwen3", "--share", "prefixes", "--attention", "sdpa")
    assert (code, err) == (0, "")
    assert "14 segments changed, one at a time" in out
    assert out.splitlines()[-1] == "PASS: packing is right with sdpa + masks_of"
    texts = [f"{'the trunk that all have ' * 3}{end}" for end in ("a", "bb", "bc")]
    written_trees(tmp_path, texts, [[0, 1], [2]], capacity=200)
    code, out, _ = run("--model-type", "qwen3", "--packs", tmp_path, "--attention", "brimful_tree")
    assert code == 0, out
    assert "of 3 samples in" in out
    assert out.splitlines()[-1] == "PASS: packing is right with brimful_tree"
    code, _, err = run("--model-type", "qwen3", "--packs", tmp_path, "--share", "prefixes")
    assert code == 2
    assert "packs of trees are verified as trees" in err
