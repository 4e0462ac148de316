"""Dialects side by side: positions, weights, padding, and what a model makes of each; and no key
without a line in the table. What each one says is read in ``dialects/test_<name>.py``."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.collate import (  # noqa: E402
    DIALECTS,
    AttachedInputs,
    PackExtras,
    Padding,
    dialect_of,
    lay_out,
)
from brimful.errors import BrimfulError, CollateError, SettingsError  # noqa: E402
from brimful.store.shards import assemble_pack  # noqa: E402
from brimful.testing.toys import toy_pack, toy_tree  # noqa: E402
from tests.collate.dialects.reading import F32, key_of, pack_with_image  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and its compiler; as errors they would break it

DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
LENGTHS = [7, 12, 1, 5]


@pytest.mark.parametrize("name", DIALECTS)
def test_positions_of_mrope(name):
    """Time, height and width come from the samples; the text row is added, and padding counts like text."""
    forms = {key.name: key.form for key in dialect_of(name).keys if key.note.startswith("only with mRoPE")}
    if not forms:
        with pytest.raises(CollateError):
            PackCollator(dialect=name)([pack_with_image()])
        return
    given = PackCollator(dialect=name, pad_to=12)([pack_with_image()])
    for key, form in forms.items():
        assert has_form(given[key], form), key
    assert given["image_grid_thw"].tolist() == [[1, 2, 4]]


@pytest.mark.parametrize("name", DIALECTS)
def test_positions_of_mrope_where_samples_have_padding(name):
    """Context parallelism pads each sample: its tokens keep the positions of their picture, or the dialect refuses them."""
    rope = np.arange(100, 118).reshape(3, 6)
    collator = PackCollator(dialect=name, padding=Padding(segment_multiple_of=4))
    try:
        batch = collator([(toy_pack([1, 5]), PackExtras(rope_positions=rope))])
    except BrimfulError:
        return
    given = batch.get("mrope_positions", batch.get("position_ids"))
    given = torch.cat(given.unbind(), dim=-1) if given.is_nested else given
    assert given[given >= 100].tolist() == rope.ravel().tolist()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_carries_media_in_the_order_of_segments(name):
    """Pictures, videos and sounds of several packs, under the names of the model: a tower knows no other order."""

    def extras(number, kinds):
        arrays = {
            "image": {"pixel_values": np.full((2, 3), number, np.float32), "image_grid_thw": np.array([[1, 1, 2]])},
            "video": {
                "pixel_values_videos": np.full((4, 3), number, np.float32),
                "video_grid_thw": np.array([[2, 1, 2]]),
                "second_per_grid_ts": np.full(1, number, np.float32),
            },
            "audio": {
                "input_features": np.full((1, 2, 5), number, np.float32),
                "feature_attention_mask": np.full((1, 5), number, np.int32),
            },
        }
        return PackExtras(attached=tuple(AttachedInputs(kind, np.array([0], np.int32), arrays[kind]) for kind in kinds))

    packs = [
        (toy_pack([4, 2]), extras(1, ["image", "audio"])),
        (toy_pack([6]), extras(2, ["video"])),
        (toy_pack([2, 4]), extras(3, ["image", "video", "audio"])),
    ]
    given = PackCollator(dialect=name, pad_to=8 if dialect_of(name).row_per_pack else 24)(packs)
    assert given["pixel_values"][:, 0].tolist() == [1, 1, 3, 3]
    assert given["image_grid_thw"].tolist() == [[1, 1, 2]] * 2
    assert given["pixel_values_videos"][:, 0].tolist() == [2] * 4 + [3] * 4
    assert given["video_grid_thw"].tolist() == [[2, 1, 2]] * 2
    assert given["second_per_grid_ts"].tolist() == [2, 3]
    assert given["input_features"][:, 0, 0].tolist() == [1, 3]
    assert given["feature_attention_mask"][:, 0].tolist() == [1, 3]


def test_positions_of_text_stay_where_documents_begin_at_0():
    """torchtitan makes its masks from them, with mRoPE too."""
    extras = PackExtras(rope_positions=np.tile(np.arange(6), (3, 1)))
    assert PackCollator(dialect="torchtitan")([(toy_pack([4, 2]), extras)])["positions"].tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("name", DIALECTS)
def test_weights_lie_beside_their_labels(name):
    """Every sample counts the same; where labels are shifted, so are the weights."""
    weights_key = key_of(name, "weights")
    if weights_key is None:
        with pytest.raises(CollateError, match="has weights of the loss"):
            PackCollator(dialect=name, loss_weights="sample")([toy_pack([3, 2])])
        return
    given = PackCollator(dialect=name, pad_to=6, loss_weights="sample")([toy_pack([3, 2])])
    weights = given[weights_key]
    weights = torch.cat(weights.unbind()) if weights.is_nested else weights
    assert weights[weights > 0].tolist() == [0.5, 0.5, 1]
    assert weights.dtype == F32
    labels = given.get(key_of(name, "labels", "shifted labels", "targets") or "")
    if labels is not None and labels.shape == weights.shape:
        assert ((labels != -100) & (labels != 0)).equal(weights > 0)


def test_rows_of_several_packs_are_equally_long():
    """One row a pack where the dialect has rows; missing lengths are marked."""
    given = PackCollator(dialect="nemo_automodel")([toy_pack([3, 2]), toy_pack([4])])
    assert given["seq_lens"].tolist() == [[3, 2], [4, 0]]
    assert given["seq_lens_padded"].tolist() == [[3, 2], [4, 1]]
    given = PackCollator(dialect="nemo_automodel")([toy_pack([1, 1, 2]), toy_pack([4])])
    assert given["seq_lens"].tolist() == [[1, 1, 2], [4, -1000, -1000]]
    given = PackCollator(dialect="llama_factory")([toy_pack([3, 2]), toy_pack([4])])
    assert given["attention_mask"].tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]


def test_padding_at_the_end_alone_is_no_gap():
    """Then the boundaries are one tensor, and the kernels that know no gaps are used."""
    batch = lay_out([toy_pack([3, 2])], padding=Padding(to=8))
    engine = PackCollator(dialect="transformer_engine").convert([batch])
    assert engine["cu_seqlens_q"] is engine["cu_seqlens_q_padded"]
    assert engine["pad_between_seqs"] is False
    assert engine["cu_seqlens_q"].tolist() == [0, 3, 5, 8]
    megatron = PackCollator(dialect="megatron").convert([batch])
    assert megatron["packed_seq_params"]["cu_seqlens_q_padded"] is None
    assert megatron["cu_seqlens"].tolist() == [0, 3, 5, 5]
    assert megatron["cu_seqlens_padded"].tolist() == [0, 3, 5, 8]
    assert "cu_seqlens_q_padded" not in PackCollator(dialect="megatron_bridge").convert([batch])
    assert "cu_seqlens_unpadded" not in PackCollator(dialect="megatron_bridge_legacy").convert([batch])


def test_an_unknown_dialect_is_refused_with_the_known_ones():
    """Typing errors end at the constructor."""
    with pytest.raises(SettingsError, match=r"no dialect 'megatrn'.*transformers, trl, ms_swift"):
        PackCollator(dialect="megatrn")


def test_dialects_are_loaded_when_they_are_asked_for():
    """A list of names costs no torch."""
    import subprocess
    import sys

    code = "import sys; from brimful.collate import DIALECTS, lay_out, Padding; print(len(DIALECTS), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(DIALECTS)), "False"]


@pytest.fixture
def logits_of(monkeypatch):
    transformers = pytest.importorskip("transformers")
    import transformers.integrations.flex_attention as integration

    def uncompiled(query, key, value, training=False, **options):
        """The compiled form is tested with the parity of whole packs; here its compiler would only cost a minute."""
        return flex_attention(query, key, value, **options)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", uncompiled)

    def run(attention, **inputs):
        torch.manual_seed(0)
        config = transformers.Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
        net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
        with torch.no_grad():
            return net(**{"use_cache": False, **inputs}).logits

    return run


def samples():
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 64, length).astype(np.int32) for length in LENGTHS]
    return assemble_pack(ids, [np.ones(length, bool) for length in LENGTHS], range(4))


@pytest.mark.parametrize(
    ("name", "attention", "mask"),
    [
        ("transformers", "sdpa", None),
        ("trl", "sdpa", None),
        ("dense_mask", "sdpa", "attention_mask"),
        ("dense_mask_additive", "eager", "attention_mask"),
        pytest.param("flex_attention", "flex_attention", "block_mask", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("unit", [1, 4])
def test_logits_equal_the_plain_reference(logits_of, name, attention, mask, unit):
    """Packed in any dialect, with padding after segments and at the end: what padded rows give, sample by sample."""
    pack = samples()
    plain = PackCollator(dialect="plain")([pack])
    expected = logits_of("sdpa", **{key: plain[key] for key in ("input_ids", "attention_mask", "position_ids")})
    expected = expected[plain["attention_mask"].bool()]
    collator = PackCollator(dialect=name, padding=Padding(to=48, segment_multiple_of=unit))
    (batch,) = collator.rows([pack])
    given = collator([pack])
    inputs = {key: given[key] for key in ("input_ids", "position_ids")}
    if mask is not None:
        inputs["attention_mask"] = given[mask]
    found = logits_of(attention, **inputs)[0][torch.from_numpy(~batch.padding_mask)]
    assert (found - expected).abs().max() < 1e-5


SIZES = {"T": "12", "S": "3", "S + 1": "4", "S + 2": "5", "M": "3", "B": "[12]", "L": "1[236]"}
"""Sizes in forms of keys, as patterns: of a row of 12 tokens with 2 samples, 3 segments and 3 targets."""

STARTS = {
    "boundaries": [0, 4, 8],
    "boundaries without padding": [0, 3, 5],
    "lengths": [4, 4],
    "lengths without padding": [3, 2],
    "longest segment": [4],
    "number of tokens": [12],
    "divisor": [3],
}
"""First values of keys in this row, by what they hold."""


def values_of(batch, name=""):
    """Values of a batch by the names of keys; of a list of mappings, the values of the first."""
    batch = batch[0] if isinstance(batch, list) and isinstance(batch[0], dict) else batch
    if not isinstance(batch, dict):
        return {name: batch}
    inner = [values_of(value, f"{name}.{key}" if name else key) for key, value in batch.items()]
    return {name: value for values in inner for name, value in values.items()}


def has_form(value, form):
    """Whether a value has a form of the table."""
    name, shape = type(value).__name__, list(getattr(value, "shape", ()))
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
    elif isinstance(value, (list, tuple)):
        shape = [len(value)]
    pattern = re.sub(r"S \+ .|\b[TSMBL]\b|\*", lambda size: SIZES.get(size[0], ".+"), form.replace("[", r"\["))
    return form == repr(value) or re.fullmatch(pattern, f"{name}{shape}" if "[" in form else name)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_batch_has_the_keys_of_the_table(name):
    """A trainer selects keys by their names and kernels by dtype: int64 instead of int32 is another kernel."""
    padding = Padding(to=12, segment_multiple_of=4)
    values = values_of(PackCollator(dialect=name, padding=padding)([toy_pack([3, 2])]))
    keys = dialect_of(name).keys
    assert {key.name for key in keys if not key.note.startswith("only")} <= values.keys() <= {key.name for key in keys}
    for key, value in values.items():
        forms = [one for one in keys if one.name == key and has_form(value, one.form)]
        assert forms, f"{key}, {value}, has none of its forms"
        if start := STARTS.get(forms[0].holds):
            assert np.ravel(value)[: len(start)].tolist() == start, key


@pytest.mark.parametrize("branch", ["fork", "index"])
@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.takes_sharing])
def test_a_batch_of_trees_has_keys_of_the_table(name, branch):
    """The page has a section for what is the same in several dialects."""
    keys = dialect_of(name).keys
    try:
        batch = PackCollator(dialect=name, branch=branch)(
            [toy_tree([[5, 6, 7], [5, 6, 8]], [[False, False, True]] * 2)]
        )
    except CollateError:
        return
    assert set(batch) <= {key.name for key in keys}
    section = re.search(r"^## Trees\n(.*?)(?=^## )", DOCS.read_text(), flags=re.MULTILINE | re.DOTALL)[1]
    assert {key.name for key in keys if "branch=" in key.note or key.name == "parents"} <= set(
        re.findall(r"\w+", section)
    )


def _plain(value):
    """A batch as lists and numbers, to be compared."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "block_mask"}
    if isinstance(value, torch.Tensor):
        return [row.tolist() for row in value.unbind()] if value.is_nested else value.tolist()
    return value


def _batch(name, extras, **options):
    """The batch of a pack with something more than tokens; None if it is refused."""
    try:
        return _plain(PackCollator(dialect=name, **options)([(toy_pack([4, 2]), extras)]))
    except BrimfulError:
        return None


ROWS_OF_PAGE = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|(?:[^|\n]+\|){2}$", DOCS.read_text(), re.MULTILINE
    )
}


def test_every_dialect_has_a_row_on_the_page():
    """The table is where a dialect is chosen."""
    assert list(ROWS_OF_PAGE) == list(DIALECTS)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_page_says_what_the_table_says(name):
    """Shape of the tokens, form of the labels, and keys that hold boundaries."""
    shape, labels, boundaries = ROWS_OF_PAGE[name]
    keys = {key.name: key for key in reversed(dialect_of(name).keys)}
    assert keys[key_of(name, "tokens")].form.endswith(shape.replace("(", "[").replace(")", "]"))
    label = keys.get(key_of(name, "labels", "shifted labels") or "")
    if label is None:
        assert labels == f"none: `{key_of(name, 'targets', 'weights')}`"
    else:
        assert labels.startswith("shifted") == dialect_of(name).labels_shifted
        assert labels.endswith("0 for tokens without target") == (label.note == "0 without a target")
    for word in re.findall("`([^`]+)`", boundaries):
        pattern = word.replace("*", ".*").replace("…", ".*") + r"(\..*)?"
        assert any(re.fullmatch(pattern, key) for key in keys), f"{word} is not a key of {name}"


@pytest.mark.parametrize("name", DIALECTS)
def test_the_table_of_dialects_says_whether_labels_are_shifted(name):
    """``compute_metrics`` and losses shift by it: a wrong flag shifts twice, or not at all."""
    pack = toy_pack([3])
    batch = PackCollator(dialect=name)([pack])
    if "labels" in batch:
        is_shifted = int(batch["labels"].flatten()[0]) == int(pack.input_ids[1])
        assert dialect_of(name).labels_shifted == is_shifted


@pytest.mark.parametrize("name", DIALECTS)
def test_positions_and_weights_reach_the_batch_or_are_refused(name):
    """Left out without a word, pictures get the positions of text, and weights are 1."""
    rope = np.tile(np.arange(6), (3, 1))
    one = _batch(name, PackExtras(rope_positions=rope))
    assert one is None or one != _batch(name, PackExtras(rope_positions=rope[:, ::-1].copy()))
    weighted = _batch(name, None, loss_weights="sample")
    assert weighted is None or weighted != _batch(name, None)
