"""``verify_packing`` on trees: right ones pass in each attention, and each fault is found by the right check and by its name."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify import verify_packing  # noqa: E402
from brimful.verify.drawn_samples import remembered, renumbered  # noqa: E402
from brimful.verify.models import tiny_media_model, tiny_model  # noqa: E402
from tests.flow.test_media import png  # noqa: E402
from tests.marks import long_but  # noqa: E402
from tests.trees.collate.reading import forest  # noqa: E402
from tests.verify import media_packs as packs_of  # noqa: E402
from tests.verify import tree_faults as faults  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and Transformers; as errors they would break it

FAMILIES = ["llama", "qwen3", "gemma3_text", "mistral", "qwen3_moe", "qwen2_5_vl"]


@pytest.fixture(scope="module")
def models():
    made = {}
    return lambda name: made.setdefault(name, made.get(name) or tiny_model(name))


def causes(report):
    return {finding.check: finding.cause for finding in report.failures}


def attentions_of(family):
    """Three for each family: Transformers has no flex attention for Qwen2.5-VL."""
    return [*("sdpa", "brimful_tree"), "eager" if family == "qwen2_5_vl" else "flex_attention"]


@pytest.mark.parametrize(
    ("family", "attention", "branch"),
    long_but(
        {
            ("qwen3", "sdpa", "fork"),
            ("mistral", "brimful_tree", "fork"),
            ("gemma3_text", "flex_attention", "index"),
            ("qwen3_moe", "brimful_tree", "index"),
            ("qwen2_5_vl", "brimful_tree", "fork"),
        },
        [
            (family, attention, branch)
            for family in FAMILIES
            for attention in attentions_of(family)
            for branch in ("fork", "index")
        ],
    ),
)
def test_right_trees_pass(models, family, attention, branch):
    """Depths 0 to 3 with padding and several trees in a row; windows of 8 tokens count along the path."""
    collator = PackCollator(
        dialect="transformers_tree", branch=branch, pad_to=faults.SIZE, mrope=family == "qwen2_5_vl"
    )
    report = verify_packing(models(family), collator, trees=True, attention=attention)
    assert report.ok, str(report)
    findings = {finding.check: finding for finding in report.findings}
    names = {"isolation", "training", "logits", "loss", "gradients", "passes", "weights"}
    assert {name for name in names if findings[name].passed} == names
    measured = [finding.measured for finding in report.findings if finding.measured is not None]
    assert max(measured) < 1e-5
    assert findings["passes"].measured == 0
    # The masks that verify added are named, and the loss.
    given = {"sdpa": "sdpa + masks_of", "flex_attention": "flex_attention + masks_of", "eager": "eager + masks_of"}
    assert report.verdict == f"PASS: packing is right with {given.get(attention, attention)}"
    assert "as use_loss_weights weighs it" in findings["loss"].detail


def found(models, fault, family="llama", attention="sdpa", wrap=None, **options):
    """The report of the fault in a right row of trees."""
    collator = faults.Trees(fault, **options)
    model = models(family) if wrap is None else wrap(models(family))
    return verify_packing(model, collator, trees=True, attention=attention)


@pytest.mark.parametrize(
    ("fault", "check", "cause", "options"),
    [
        (faults.positions_run_on, "positions", "positions run on along the row", {}),
        (faults.positions_begin_again, "positions", "positions begin again at 0 in every branch", {}),
        (faults.siblings_visible, "boundaries", "siblings are visible: a branch sees the branch before it", {}),
        (faults.siblings_visible, "isolation", "siblings are visible", {}),
        (faults.trunk_of_the_trunk_invisible, "boundaries", "right at depth 1, wrong below", {}),
        (faults.trunk_of_the_trunk_invisible, "logits", "right at depth 1, wrong below", {}),
        (faults.mask_by_causality_alone, "boundaries", "a mask by causality alone", {}),
        (faults.mask_by_causality_alone, "isolation", "a mask by causality alone", {}),
        (faults.trunks_invisible, "boundaries", "branches do not see their trunk", {}),
        (faults.trunks_invisible, "isolation", "branches do not see their trunk", {}),
        (
            faults.first_token_of_branches_untrained,
            "labels",
            "first tokens of branches (6) are not trained",
            {"branch": "index"},
        ),
        (
            faults.branches_predicted_by_siblings,
            "labels",
            "are predicted by the last token of the branch before",
            {"branch": "index"},
        ),
        (
            faults.weights_of_a_micro_batch,
            "weights",
            "the weights of a target depend on its micro-batch",
            {"branch": "index"},
        ),
        (faults.shared_target_counts_once, "labels", "a target that several samples share counts once", {}),
        (faults.fork_without_its_weight, "labels", "has the weight of one branch instead of all", {}),
        (faults.copies_keep_their_labels, "labels", "a repeated token keeps its label", {}),
        (faults.padding_inside_a_path, "boundaries", "padding lies inside a path", {}),
        (faults.padding_inside_a_path, "padding", "padding", {}),
        (faults.insertion_order, "boundaries", "segments are not in depth-first order", {}),
        (faults.sample_lost, "complete", "is lost", {}),
        (faults.sample_twice, "complete", "is repeated", {}),
        (
            faults.window_along_the_row,
            "boundaries",
            "measured along the row instead of the path",
            {"family": "mistral"},
        ),
        (faults.window_along_the_row, "logits", "measured along the row instead of the path", {"family": "mistral"}),
        (faults.no_window, "boundaries", "a mask without the window of 8 tokens", {"family": "mistral"}),
        (faults.no_window, "logits", "a mask without the window of 8 tokens", {"family": "mistral"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_found_by_name(models, fault, check, cause, options):
    report = found(models, fault, **options)
    assert cause in causes(report).get(check, ""), str(report)


@pytest.mark.parametrize(
    ("wrap", "check", "cause"),
    [
        (faults.LossOfLabels, "loss", "a mean in which a target that several samples share counts once"),
        (faults.OtherKernelInTraining, "passes", "computes a batch in another way if it trains"),
        (faults.LeakOfSiblings, "gradients", "leak in the backward"),
    ],
)
def test_a_fault_of_the_model_is_found_by_name(models, wrap, check, cause):
    report = found(models, lambda batch, packs: batch, wrap=wrap)
    assert cause in causes(report).get(check, ""), str(report)


def test_values_that_come_back_to_other_samples_are_found(models):
    report = verify_packing(
        models("llama"),
        faults.RowsOfSegments(dialect="transformers_tree", pad_to=faults.SIZE),
        trees=True,
        attention="sdpa",
    )
    assert "values of a row are cut by segments" in causes(report)["restoring"], str(report)


def rows_that_share():
    """Two that part, one that ends where they part, one alone."""
    ids = [[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 12, 13], [5, 6, 7, 8], [20, 21, 22], [5, 6, 7, 14, 15]]
    return [{"input_ids": list(one), "labels": [-100, *one[1:]]} for one in ids]


def test_a_collator_that_makes_trees_of_samples_passes(models):
    """It looks at tokens, so other ones are laid out alike only if they share alike."""
    report = verify_packing(models("llama"), faults.trie_of, rows_that_share(), trees=True, attention="sdpa")
    assert report.ok, str(report)
    assert {finding.check: finding.detail for finding in report.findings}["complete"] == "5 samples, each once"
    flat = verify_packing(models("llama"), PackCollator(), rows_that_share(), trees=True, attention="sdpa")
    assert flat.ok, str(flat)


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [
        (faults.trie_without_a_sample, "complete", "sample 4 is lost"),
        (faults.trie_that_ends_at_a_shared_token, "labels", "sample 2 is not trained: it ends where others go on"),
    ],
)
def test_a_sample_that_a_trie_loses_is_named(models, fault, check, cause):
    """The tokens of the second may all be there, and its targets are not."""
    report = verify_packing(models("llama"), fault, rows_that_share(), trees=True, attention="sdpa")
    assert cause in causes(report)[check], str(report)


def test_a_collator_that_reads_tokens_is_found_by_what_it_says(models):
    """It refuses the markers, so samples are looked for as what its tokens see."""

    def collate(samples):
        if max(max(sample["input_ids"]) for sample in samples) > 99:
            raise ValueError("such tokens do not exist")
        return faults.trie_of(samples)

    report = verify_packing(models("llama"), collate, rows_that_share(), trees=True, attention="sdpa")
    assert report.ok, str(report)


def test_long_trees_are_laid_out_too(models):
    """Blocks of flex attention hold 128 tokens: a wrong one shows in a long row alone."""

    def of_a_first_block(batch, packs):
        ends = batch["tree_out"].clone()
        ends[1024:] = torch.arange(len(ends))[1024:] + 1
        return {**batch, "tree_out": ends}

    collator = PackCollator(dialect="transformers_tree")
    report = verify_packing(
        models("llama"), lambda packs: of_a_first_block(collator(packs), packs), trees=True, attention="sdpa"
    )
    (finding,) = report.failures
    assert finding.check == "boundaries"
    assert finding.detail.startswith("with a sample of 1,600 tokens")


def test_an_attention_without_runs_is_refused(models):
    """A mask of pairs goes with sdpa, and the attention for trees reads runs alone."""
    collator = faults.Trees(dialect="dense_mask")
    report = verify_packing(models("llama"), collator, trees=True, attention=["sdpa", "brimful_tree"])
    assert report.ok, str(report)
    (refusal,) = [finding for finding in report.findings if finding.check == "attention"]
    assert (refusal.attention, refusal.detail) == ("brimful_tree", "the batch has no runs (tree_kv_index)")


def test_the_model_is_left_as_it_was(models):
    model = models("llama")
    before = model.config._attn_implementation, model.loss_function
    verify_packing(
        model,
        PackCollator(dialect="transformers_tree", pad_to=faults.SIZE),
        trees=True,
        attention=["eager", "brimful_tree"],
        gradients=False,
    )
    assert (model.config._attn_implementation, model.loss_function) == before


def test_weights_of_samples_are_another_loss(models):
    """They would look like targets that count too little."""
    with pytest.raises(SettingsError, match="verify trees with a PackCollator without it"):
        verify_packing(models("llama"), PackCollator(dialect="transformers_tree", loss_weights="sample"), trees=True)


def test_refused_models_are_told(models):
    report = verify_packing(
        models("qwen3_next"), PackCollator(dialect="transformers_tree"), trees=True, attention="brimful_tree"
    )
    assert not report.ok
    assert "cannot train on trees" in report.verdict


@pytest.fixture(scope="module")
def pictures(small_qwen, tmp_path_factory):
    """Packs of questions on pictures, a tiny Qwen2.5-VL, and the features of its tower: three samples share a picture."""
    pytest.importorskip("PIL")
    first, second = png(56, 84, 1), png(56, 84, 2)
    rows = [
        {"messages": packs_of.turns("<image>What?", "A picture."), "images": [first]},
        {"messages": packs_of.turns("<image>What?", "Another word for it."), "images": [first]},
        {"messages": packs_of.turns("Hello?", "Hello there.")},
        {"messages": packs_of.turns("<image>What?", "Nothing."), "images": [second]},
        {"messages": packs_of.turns("<image>Why?", "Nobody knows."), "images": [first]},
    ]
    folder = packs_of.qwen_folder(tmp_path_factory.mktemp("qwen"), "qwen2.5-vl")
    store, features = packs_of.packs_of(rows, "qwen2.5-vl", small_qwen, folder, capacity=200)
    small = renumbered(list(store))
    return small.packs, tiny_media_model(store.attachment_settings, small.token_ids, small.vocab), remembered(features)


@pytest.mark.parametrize("branch", ["fork", "index"])
@pytest.mark.parametrize("attention", ["sdpa", "brimful_tree"])
def test_a_picture_in_a_trunk_passes(pictures, attention, branch):
    """Its features are there once, its positions in space are the ones of each sample, and other values move all that share it."""
    packs, model, features = pictures
    trees = [faults.as_tree(packs, faults.tokens_and_pictures)]
    report = verify_packing(
        model, PackCollator(dialect="transformers_tree", branch=branch, media=features), trees, attention=attention
    )
    assert report.ok, str(report)
    details = {finding.check: finding.detail for finding in report.findings}
    assert details["media"] == "2 images"
    assert "2 samples with other media" in details["isolation"]


@pytest.mark.parametrize(
    ("key", "cause"),
    [
        (faults.tokens_and_pictures, ""),
        (faults.tokens_alone, "samples with other images share a trunk: their tokens are equal"),
    ],
)
def test_a_trunk_of_two_pictures_is_found(pictures, key, cause):
    """A trie that compares tokens alone takes one picture for another: the placeholders of both are equal."""
    packs, model, features = pictures
    collator = PackCollator(dialect="transformers_tree", media=features)

    def collate(packs):
        return collator([faults.as_tree(packs, key)])

    report = verify_packing(model, collate, packs, trees=True, attention="sdpa", media_maker=features, gradients=False)
    assert causes(report).get("media", "").startswith(cause), str(report)
    assert report.ok == (not cause), str(report)


def test_positions_in_space_of_a_branch_are_those_of_the_sample(pictures):
    """A picture takes more tokens than positions, so depth is not a position there."""

    def by_depth(batch, packs):
        return {**batch, "position_ids": batch["position_ids"][:1].expand(4, -1, -1)}

    packs, model, features = pictures
    collator = PackCollator(dialect="transformers_tree", media=features)
    trees = [faults.as_tree(packs, faults.tokens_and_pictures)]
    report = verify_packing(
        model, lambda packs: by_depth(collator(packs), packs), trees, attention="sdpa", media_maker=features
    )
    assert "positions" in causes(report), str(report)
    assert "positions" in causes(report)["logits"], str(report)


@pytest.mark.parametrize("seed", long_but({0, 1}, range(12)))
def test_any_forest_passes(models, seed):
    """Samples that end where others go on, equal ones, trees in several packs; and shuffled paths of any depth up to 3."""
    packs = []
    for number in range(1 + seed % 3):
        samples, masks = forest(10 * seed + number, roots=1 + number, depth=3 - number)
        packs.append(toy_tree(samples, masks))
    attention = ("sdpa", "brimful_tree")[seed % 2]
    collator = PackCollator(
        dialect="transformers_tree", branch=("fork", "index")[seed % 4 // 2], padding=Padding(multiple_of=16)
    )
    report = verify_packing(models("mistral"), collator, packs, attention=attention)
    assert report.ok, str(report)
