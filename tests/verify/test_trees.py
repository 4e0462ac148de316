"""``verify_packing`` on trees: right ones pass in each attention, and each fault is found by the right check and by its name."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify import verify_packing  # noqa: E402
from brimful.verify.drawn_samples import long_trees, random_samples, random_trees  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.marks import long_but  # noqa: E402
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
    collator = PackCollator(branch=branch, pad_to=faults.SIZE, mrope=family == "qwen2_5_vl")
    report = verify_packing(models(family), collator, trees=True, attention=attention)
    assert report.ok, str(report)
    findings = {finding.check: finding for finding in report.findings}
    names = {"isolation", "training", "logits", "loss", "gradients", "passes"} | ({"weights"} if branch == "fork" else set())
    assert {name for name in names if findings[name].passed} == names
    measured = [finding.measured for finding in report.findings if finding.measured is not None]
    assert max(measured) < 1e-5
    assert findings["passes"].measured == 0


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
        (faults.first_token_of_branches_untrained, "labels", "first tokens of branches (6) are not trained", {"branch": "index"}),
        (faults.branches_predicted_by_siblings, "labels", "are predicted by the last token of the branch before", {"branch": "index"}),
        (faults.shared_target_counts_once, "labels", "a target that several samples share counts once", {}),
        (faults.fork_without_its_weight, "labels", "has the weight of one branch instead of all", {}),
        (faults.copies_keep_their_labels, "labels", "a repeated token keeps its label", {}),
        (faults.padding_inside_a_path, "boundaries", "padding lies inside a path", {}),
        (faults.padding_inside_a_path, "padding", "padding", {}),
        (faults.insertion_order, "boundaries", "segments are not in depth-first order", {}),
        (faults.sample_lost, "complete", "is lost", {}),
        (faults.sample_twice, "complete", "is repeated", {}),
        (faults.window_along_the_row, "boundaries", "measured along the row instead of the path", {"family": "mistral"}),
        (faults.window_along_the_row, "logits", "measured along the row instead of the path", {"family": "mistral"}),
        (faults.no_window, "boundaries", "a mask without the window of 8 tokens", {"family": "mistral"}),
        (faults.no_window, "logits", "a mask without the window of 8 tokens", {"family": "mistral"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_found_by_name(models, fault, check, cause, options):
    report = found(models, fault, **options)
    assert cause in causes(report).get(check, ""), str(report)
