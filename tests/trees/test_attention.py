"""Rows of trees in models of Transformers: logits, loss and gradients are as of each sample alone."""

import pickle
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")

from torch.nn.functional import cross_entropy  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.base.typing import IGNORE_INDEX  # noqa: E402
from brimful.collate import DIALECTS, Padding  # noqa: E402
from brimful.collate.loss_torch import batch_loss_sum  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.integrations.trainers.attention import choose_attention, collator_for  # noqa: E402
from brimful.testing.toys import toy_pack, toy_tree  # noqa: E402
from brimful.trees import attention as tree_attention  # noqa: E402
from brimful.trees.attention import masks_of, use_tree_attention  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.trees.collate.reading import forest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = ["llama", "qwen3", "mistral", "gemma3_text", "qwen3_moe", "qwen2_5_vl"]
ATTENTIONS = {"brimful_tree": "transformers_tree", "sdpa": "dense_mask", "eager": "dense_mask"}
CLOSE = {"rtol": 0, "atol": 1e-5}


def two_trees():
    """A deep tree and a flat pack as trees of one row, with the samples that they hold, in the order of the row."""
    samples, masks = forest(0)
    packs = [toy_tree(samples, masks), toy_tree([samples[0][:9], [7, 8, 9]])]
    flat = [pack.flat() for pack in packs]
    return packs, [
        (pack.input_ids[slice(*edges)], pack.labels[slice(*edges)])
        for pack in flat
        for edges in zip(pack.cu_seqlens[:-1].tolist(), pack.cu_seqlens[1:].tolist(), strict=True)
    ]


def alone(model, samples):
    """Logits of each sample alone, and the sum of the losses of all, whose gradients the model has then."""
    model.eval()
    logits = [model(input_ids=torch.tensor(ids[None].astype("int64")), use_cache=False).logits[0] for ids, _ in samples]
    loss = sum(
        cross_entropy(one[:-1], torch.from_numpy(labels[1:]), ignore_index=IGNORE_INDEX, reduction="sum")
        for one, (_, labels) in zip(logits, samples, strict=True)
    )
    loss.backward()
    return [one.detach() for one in logits], float(loss.detach())


def batch_for(model, name, branch, packs, **changes):
    """Batch of the packs with padding, in the words of an attention, to which the model is switched."""
    collator = PackCollator(dialect=ATTENTIONS[name], branch=branch, padding=Padding(multiple_of=64))
    batch = collator(packs)
    if name == "brimful_tree":
        use_tree_attention(model)
    else:
        model.set_attn_implementation(name)
        batch["attention_mask"] = masks_of({**batch, **changes}, model.config)
    (row,) = collator.rows(packs)
    return {**batch, **changes}, row


def loss_of(logits, batch):
    """The weighted sum of either form, by torch alone."""
    if "labels" in batch:
        places, targets, weights = slice(0, -1), batch["labels"][0, 1:], batch["loss_weights"][0, 1:]
    else:
        places, targets, weights = (batch[f"loss_{name}"] for name in ("index", "targets", "weights"))
    return (cross_entropy(logits[places], targets, ignore_index=IGNORE_INDEX, reduction="none") * weights).sum()


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_sample_is_as_alone(family, name):
    """Windows of 8 tokens count tokens of the path; two trees and the padding are apart."""
    packs, samples = two_trees()
    truth, loss_alone = alone(reference := tiny_model(family), samples)
    for branch in ("fork", "index"):
        model = tiny_model(family).eval()
        batch, row = batch_for(model, name, branch, packs)
        logits = model(**{key: value for key, value in batch.items() if key != "labels"}).logits[0]
        places = row.sharing.positions(row.cu_seqlens)
        for sample, expected in enumerate(truth):
            torch.testing.assert_close(logits[places.row(sample)], expected, **CLOSE)
        loss = loss_of(logits, batch)
        assert float(loss) == pytest.approx(loss_alone, rel=1e-5)
        loss.backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            if theirs.grad is not None:
                scale = float(theirs.grad.abs().max()) + 1e-9
                torch.testing.assert_close(ours.grad / scale, theirs.grad / scale, **CLOSE)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "deepseek_v3", "phi3"])
def test_softcaps_sinks_and_narrow_values(family):
    """Gemma 2 caps its scores, GPT-OSS has sinks, DeepSeek has values narrower than its keys."""
    if family == "gemma2":
        pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    packs, samples = two_trees()
    truth, _ = alone(tiny_model(family), samples)
    model = tiny_model(family).eval()
    batch, row = batch_for(model, "brimful_tree", "index", packs)
    places = row.sharing.positions(row.cu_seqlens)
    logits = model(**batch).logits[0]
    for sample, expected in enumerate(truth):
        torch.testing.assert_close(logits[places.row(sample)], expected, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"s_aux": torch.zeros(4)}], ids=list)
def test_without_a_scaling_scores_are_divided_by_the_root_of_their_size(options):
    """The default of torch, in the layers that torch cannot compute too: heads of 16 numbers, 4 queries for 2 keys."""
    query, key, value = (torch.randn(heads, 5, 16, generator=torch.Generator().manual_seed(0)) for heads in (4, 2, 2))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    layer = {**dict.fromkeys(tree_attention._Layer._fields), "dropout": 0.0, **options}
    found, expected = (
        tree_attention._attend(query, key, value, mask, tree_attention._Layer(**{**layer, "scaling": scaling}))
        for scaling in (None, 0.25)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_flex_attention_is_as_alone():
    """With full and sliding layers; the CPU computes no gradients of it."""
    packs, samples = two_trees()
    truth, _ = alone(tiny_model("gemma3_text"), samples)
    model = tiny_model("gemma3_text").eval()
    model.set_attn_implementation("flex_attention")
    collator = PackCollator(dialect="flex_attention", branch="index")
    batch, (row,) = collator(packs), collator.rows(packs)
    del batch["block_mask"]
    with torch.no_grad():
        logits = model(**batch, attention_mask=masks_of(batch, model.config)).logits[0]
    places = row.sharing.positions(row.cu_seqlens)
    for sample, expected in enumerate(truth):
        torch.testing.assert_close(logits[places.row(sample)], expected, **CLOSE)


MODEL_DIALECTS = {"transformers_tree": "brimful_tree", "dense_mask": "sdpa", "dense_mask_additive": "eager"}
"""Dialects of trees whose batches a model of Transformers takes on a CPU, and its attention."""
READ_ELSEWHERE = {"flex_attention", "trl_tree", "art", "nemo_automodel_tree", "magi_attention"}
"""Dialects of trees that ``tests/collate/dialects`` and the test of flex attention read."""


@pytest.mark.parametrize("name", ["", *DIALECTS])
def test_every_dialect_refuses_trees_or_is_right(name):
    """The default among them, and each also as a spawned worker has it; no dialect is forgotten."""
    packs, samples = two_trees()
    options = {"dialect": name} if name else {}
    collators = [PackCollator(**options), pickle.loads(pickle.dumps(PackCollator(**options)))]
    if not collators[0].dialect.takes_sharing:
        for collator in collators:
            with pytest.raises(CollateError, match=r"for packs of trees.* use_tree_attention\(model\) before collator"):
                collator(packs)
            assert collator([pack.flat() for pack in packs])
        return
    assert name in MODEL_DIALECTS or name in READ_ELSEWHERE
    if name not in MODEL_DIALECTS:
        return
    _, expected = alone(tiny_model("llama"), samples)
    model = tiny_model("llama")
    if MODEL_DIALECTS[name] == "brimful_tree":
        use_tree_attention(model)
        collators.append(collator_for(model, quiet=True))
        assert collators[-1].dialect.name == name
    else:
        model.set_attn_implementation(MODEL_DIALECTS[name])
    for collator in collators:
        for given in (packs, [pack.flat() for pack in packs]):
            batch = collator(given)
            assert float(batch_loss_sum(model(**batch).logits, batch)) == pytest.approx(expected, rel=1e-5)


def _faults():
    """Changes of a row that a comparison with each sample alone must show."""
    packs, _ = two_trees()
    (row,) = PackCollator(dialect="dense_mask", branch="index", padding=Padding(multiple_of=64)).rows(packs)
    size = len(row.input_ids)
    running = torch.arange(size)[None]
    parents = row.sharing.parents
    edges = torch.from_numpy(row.cu_seqlens)
    own = torch.repeat_interleave(edges[1:], edges.diff())
    trunk_only = own.clone()
    for segment in range(len(parents)):
        children = [child for child in range(len(parents)) if parents[child] == segment]
        if children:
            trunk_only[edges[segment] : edges[segment + 1]] = edges[max(children) + 1]
    return {
        "positions run on": {"position_ids": running},
        "siblings visible": {"tree_out": torch.full((size,), size, dtype=torch.int32)},
        "trunks invisible": {"tree_out": own.int()},
        "a subtree ends with the first segment of its last branch": {"tree_out": trunk_only.int()},
    }


@pytest.mark.parametrize("fault", _faults())
def test_a_wrong_row_is_not_as_alone(fault):
    """The comparison sees the faults of other projects."""
    packs, samples = two_trees()
    truth, _ = alone(tiny_model("llama"), samples)
    model = tiny_model("llama").eval()
    batch, row = batch_for(model, "sdpa", "index", packs, **_faults()[fault])
    logits = model(**batch).logits[0].detach()
    places = row.sharing.positions(row.cu_seqlens)
    differences = [float((logits[places.row(sample)] - expected).abs().max()) for sample, expected in enumerate(truth)]
    assert max(differences) > 1e-2


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_a_flat_row_is_right_too(family):
    """Packs of evaluation need no trees: the boundaries of the row are its runs."""
    packs = [toy_pack([14, 3, 9]), toy_pack([5])]
    model, plain = (tiny_model(family).eval() for _ in range(2))
    batch = PackCollator(pad_to=40)(packs)
    batch["input_ids"] %= 100
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    use_tree_attention(model)
    torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits, **CLOSE)


def test_checkpoints_of_layers_and_autocast_change_nothing():
    """Layers that are computed again get the runs again; in bfloat16 the loss is near."""
    packs, samples = two_trees()
    model = tiny_model("qwen3")
    batch, _ = batch_for(model, "brimful_tree", "index", packs)
    inputs = {key: value for key, value in batch.items() if not key.startswith("loss_")}
    _, expected = alone(tiny_model("qwen3"), samples)
    model.train()
    model.gradient_checkpointing_enable()
    loss = loss_of(model(**inputs).logits[0], batch)
    loss.backward()
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(**inputs).logits[0].float(), batch)
    assert float(loss) == pytest.approx(expected, rel=2e-2)


def _bottom_right(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window):
    """A kernel with the arguments of flash attention: causal from the bottom right."""
    outputs = []
    for run in range(len(cu_q) - 1):
        of_q, of_k = slice(cu_q[run], cu_q[run + 1]), slice(cu_k[run], cu_k[run + 1])
        queries, keys, values = q[of_q].transpose(0, 1), k[of_k].transpose(0, 1), v[of_k].transpose(0, 1)
        assert queries.shape[1] <= max_q
        assert keys.shape[1] <= max_k
        distance = torch.arange(len(k[of_k]) - len(q[of_q]), len(k[of_k]))[:, None] - torch.arange(len(k[of_k]))
        mask = (distance >= 0) & ((distance <= window[0]) | (window[0] < 0))
        groups = len(queries) // len(keys)
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale).transpose(0, 1)
        )
    return torch.cat(outputs)


def _like_flash_attn(*arguments, softmax_scale, causal, window_size):
    assert causal
    assert window_size[1] == (-1 if window_size[0] < 0 else 0)
    return _bottom_right(*arguments, scale=softmax_scale, window=window_size), None


def _like_torch(*arguments, scale, window_size, enable_gqa):
    assert enable_gqa == (arguments[0].shape[1] != arguments[1].shape[1])
    assert window_size[1] == 0
    return _bottom_right(*arguments, scale=scale, window=window_size)


@pytest.mark.parametrize(("wrap", "function"), [("_flash_attention", _like_flash_attn), ("_torch_varlen", _like_torch)])
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "deepseek_v3"])
def test_one_call_of_flash_attention_is_all_runs(family, wrap, function, monkeypatch):
    """Its arguments are the ones of a kernel that computes what its documentation says."""
    packs, _ = two_trees()
    model = tiny_model(family).eval()
    batch, _ = batch_for(model, "brimful_tree", "index", packs)
    run_by_run = model(**batch).logits
    kernel = getattr(tree_attention, wrap)(function)
    monkeypatch.setattr(tree_attention, "_flash_kernel", lambda *_: kernel)
    torch.testing.assert_close(model(**batch).logits, run_by_run, **CLOSE)


INSTALLED = ["flash_attn_interface", "flash_attn", "torch.nn.attention.varlen"]


@pytest.mark.parametrize("installed", [names for n in range(4) for names in combinations(INSTALLED, n)], ids=",".join)
def test_the_fastest_installed_kernel_that_can_is_chosen(installed, monkeypatch):
    """Flash attention 3 runs on Hopper alone and without dropout, torch's own without dropout, none of them before
    Ampere, in float32, or with a softcap or sinks: such layers are computed run by run."""

    def import_module(name):
        if name not in installed:
            raise ImportError(name)
        return SimpleNamespace(flash_attn_varlen_func=name, varlen_attn=name)

    monkeypatch.setattr(tree_attention, "import_module", import_module)
    monkeypatch.setattr(tree_attention, "_installed_kernel", tree_attention._installed_kernel.__wrapped__)

    def chosen(major=9, device="cuda", dtype=torch.bfloat16, **options):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 0))
        layer = tree_attention._Layer(**{**dict.fromkeys(tree_attention._Layer._fields), "dropout": 0.0, **options})
        kernel: Any = tree_attention._flash_kernel(torch.device(device), dtype, layer)
        return kernel and kernel.args[0]

    for major in (7, 8, 9, 10):
        for dropout in (0.0, 0.1):
            usable = {name for name in installed if major >= 8 and (dropout == 0 or name == "flash_attn")}
            usable -= set() if major == 9 else {"flash_attn_interface"}
            expected = min(usable, key=INSTALLED.index, default=None)
            assert chosen(major, dropout=dropout) == chosen(major, dropout=dropout, dtype=torch.float16) == expected
    assert chosen(dtype=torch.float32) is chosen(device="cpu") is chosen(softcap=1.0) is None
    assert chosen(s_aux=torch.zeros(2)) is None


def test_a_kernel_gets_the_dropout_of_the_layer():
    """It would train without: flash attention 3 has no such argument, so it is given only with dropout."""
    for dropout in (0.0, 0.1):
        layer = tree_attention._Layer(dropout, None, None, None, None)
        kernel: Any = tree_attention._flash_attention(lambda: None)
        options = kernel.args[1](layer, False)
        assert options.get("dropout_p", 0.0) == dropout


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("mamba2", "its layers carry states"),
        ("qwen3_next", "its layers carry states"),
        ("lfm2", "its layers carry states"),
        ("rwkv", "its layers carry states"),
        ("llama4_text", "it has layers of the type chunked_attention"),
        ("roberta", "its tokens see later tokens"),
        ("bloom", "its attention is its own"),
        ("doge", "its layers do not"),
        ("nemotron", "its layers do not pass the keywords of a batch on"),
    ],
)
def test_models_in_which_branches_would_see_each_other_are_refused(family, words):
    with pytest.raises(SettingsError, match=f"cannot train on trees, since {words}.*plan with share"):
        use_tree_attention(tiny_model(family))


def test_a_model_whose_images_see_later_tokens_is_refused():
    """Gemma 3 attends in both directions within an image."""
    with torch.device("meta"):
        model = transformers_model("Gemma3ForConditionalGeneration", "Gemma3Config")
    with pytest.raises(SettingsError, match="since tokens of its images see later tokens"):
        use_tree_attention(model)


def transformers_model(model_name, config_name):
    import transformers

    return getattr(transformers, model_name)(getattr(transformers, config_name)())


def test_only_the_language_model_of_a_model_with_towers_is_switched():
    model = tiny_model("qwen2_5_vl")
    before = model.config.vision_config._attn_implementation
    use_tree_attention(model)
    assert model.config.text_config._attn_implementation == "brimful_tree"
    assert model.config.vision_config._attn_implementation == before


def padded():
    """Two rows of plain tokens, one with padding."""
    ids = torch.arange(8, 26).reshape(2, 9)
    return {"input_ids": ids, "attention_mask": torch.tensor([[0] * 3 + [1] * 6, [1] * 9])}


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "gpt_oss", "qwen2_5_vl"])
def test_generation_and_padded_rows_have_the_attention_before(family):
    """Also with checkpointing, between rows of trees, and after a second call; windows, sinks and towers stay."""
    model, plain = (tiny_model(family) for _ in range(2))
    use_tree_attention(model)
    use_tree_attention(model)
    options = {**padded(), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for cache in ({}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(**options, **cache), plain.generate(**options, **cache))
    inputs = {**padded(), "labels": padded()["input_ids"], "use_cache": False}
    for one in (model, plain):
        one.train()
        one.gradient_checkpointing_enable()
    trees, _ = two_trees()
    expected = plain(**inputs).loss
    expected.backward()
    loss = model(**inputs).loss
    batch = collator_for(model, quiet=True)(trees)
    assert "tree_kv_index" in batch
    model(**batch).loss.detach()
    loss.backward()
    torch.testing.assert_close(loss, expected, **CLOSE)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)


def test_a_model_that_could_not_be_made_small_may_have_dropped_the_runs(monkeypatch):
    """Other batches are refused then: the runs of a tree would be lost without a word."""
    monkeypatch.setattr(tree_attention, "_fault_with_trees", lambda kind, config: None)
    model = tiny_model("qwen3")
    use_tree_attention(model)
    with pytest.raises(SettingsError, match=r"Qwen3Attention got none: .* do not pass keywords on.*'sdpa'"):
        model(**padded())


def test_rows_with_runs_and_something_else_are_refused():
    model = tiny_model("qwen3").eval()
    use_tree_attention(model)
    batch = PackCollator(dialect="transformers_tree")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    mask = torch.zeros_like(batch["input_ids"])
    with pytest.raises(SettingsError, match="takes no attention_mask with padding in a row with runs"):
        model(**batch, attention_mask=mask)
    batch = PackCollator(dialect="transformers_tree")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    batch = {**batch, "input_ids": batch["input_ids"].repeat(2, 1), "position_ids": batch["position_ids"].repeat(2, 1)}
    del batch["labels"]
    with pytest.raises(SettingsError, match="takes one row without a cache, and the batch has 2 rows"):
        model(**batch)
    batch = PackCollator(dialect="transformers_tree")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    cache = model(**padded(), use_cache=True).past_key_values
    cache.batch_select_indices(torch.tensor([1]))
    with pytest.raises(SettingsError, match="the batch has 1 rows and 14 keys"):
        model(**{**batch, "use_cache": True}, past_key_values=cache)


def test_the_collator_of_a_model_says_what_to_call():
    """Without it, the model would take segments for samples."""
    model = tiny_model("qwen3")
    pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    with pytest.raises(SettingsError, match=r"call use_tree_attention\(model\) before collator_for\(model\)"):
        collator_for(model, quiet=True)([pack])
    # OPT gets a mask of the batch, which is right, and its loss would ignore the weights.
    with pytest.raises(SettingsError, match=r"call use_tree_attention\(model\)"):
        collator_for(tiny_model("opt"), device="cpu", quiet=True)([pack])
    use_tree_attention(model)
    assert choose_attention(model).name == "brimful_tree"
    collate = collator_for(model, quiet=True)
    assert "tree_kv_index" in collate([pack])


def test_the_loss_of_the_model_has_the_weights():
    """Transformers' own loss ignores them; a divisor that counts labels is of another loss."""
    model = tiny_model("qwen3").eval()
    use_tree_attention(model)
    packs, samples = two_trees()
    batch = PackCollator(dialect="transformers_tree")(packs)
    _, expected = alone(tiny_model("qwen3"), samples)
    count = float(batch["loss_weights"].sum())
    assert float(model(**batch).loss) == pytest.approx(expected / count, rel=1e-5)
    assert float(model(**batch, num_items_in_batch=10.0).loss) == pytest.approx(expected / 10, rel=1e-5)
    with pytest.raises(SettingsError, match="its trainer divides by the number of labels"):
        model(**batch, num_items_in_batch=torch.tensor(10))
    empty = PackCollator(dialect="transformers_tree")([toy_tree([[5, 6], [5, 7]], [[True, False]] * 2)])
    assert float(model(**empty).loss) == 0


def test_masks_of_a_flat_batch_are_transformers_own():
    with pytest.raises(CollateError, match="makes the masks of trees, and the batch has none"):
        masks_of(PackCollator()([toy_pack([3])]), tiny_model("qwen3").config)
