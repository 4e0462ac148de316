"""Batches fed to the code that they are made for, if installed; each test names what it needs."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.collate.layout import indexed_mask  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.serve import Pack  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.examples import build_packed_seq_params, trl_example  # noqa: E402
from tests.integrations.trainers import tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

LENGTHS = [4, 2, 1, 3]
GAPS = Padding(to=24, segment_multiple_of=4)


def real(module):
    """A module of another project, or a skip with the reason: some need more than they say, and fail in other ways."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        pytest.skip(f"{module} cannot be imported here: {str(error).splitlines()[0] if str(error) else error!r}")


def pack_and_samples():
    pack = toy_pack(LENGTHS)
    rows = [{"input_ids": ids.tolist(), "labels": ids.tolist()} for ids in map(pack.segment, range(len(LENGTHS)))]
    return pack, rows


def assert_equal(ours, theirs, *, only=None):
    for key in only or theirs:
        if isinstance(theirs[key], torch.Tensor):
            assert ours[key].dtype == theirs[key].dtype, key
            assert ours[key].tolist() == theirs[key].tolist(), key
        else:
            assert type(ours[key]) is type(theirs[key]), key
            assert ours[key] == theirs[key], key


def test_transformers_collator():
    """``DataCollatorWithFlattening`` on the samples of the pack: all keys, values and types."""
    transformers = real("transformers")
    pack, rows = pack_and_samples()
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(rows)
    ours = PackCollator()([pack])
    assert set(ours) == set(theirs) | {"use_cache"}
    assert_equal(ours, theirs)
    shifted = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, position_ids_start=2)(rows)
    assert_equal(PackCollator(position_start=2)([pack]), shifted)


@pytest.mark.parametrize("pad_to", [None, 16])
def test_what_transformers_finds_in_positions(pad_to):
    """Models that look at positions alone find the same boundaries as in ``cu_seq_lens_q``, the padding as one."""
    utils = real("transformers.modeling_flash_attention_utils")
    masking = real("transformers.masking_utils")
    batch = PackCollator(pad_to=pad_to)([toy_pack(LENGTHS)])
    (found, _), (longest, _) = utils.prepare_fa_kwargs_from_position_ids(batch["position_ids"])
    assert found.tolist() == batch["cu_seq_lens_q"].tolist()
    assert int(longest) == batch["max_length_q"]
    assert masking.find_packed_sequence_indices(batch["position_ids"]).tolist() == batch["seq_idx"].tolist()


def test_trl_collator():
    """TRL's own padding-free collator on the packed example: all keys, values and types."""
    pytest.importorskip("trl", minversion="1.16")
    trl = real("trl.trainer.sft_trainer")
    pack, rows = pack_and_samples()
    example = trl_example(lay_out([pack], padding=Padding(to=16)))
    assert example["seq_lengths"] == LENGTHS
    collator = trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    ours = PackCollator(dialect="trl")([pack])
    for theirs in (collator([example]), collator(rows)):
        assert_equal(ours, theirs)
    assert_equal(PackCollator(dialect="trl")([example]), collator([example]))
    padded = trl.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, pad_to_multiple_of=16)([example])
    ours = PackCollator(dialect="trl", pad_to=16)([pack])
    assert_equal(ours, padded, only=["input_ids", "labels"])
    assert padded["cu_seq_lens_q"].tolist() == [0, 4, 6, 7, *range(10, 17)]
    assert ours["cu_seq_lens_q"].tolist() == [0, 4, 6, 7, 10, 16]


def test_ms_swift_packing_row():
    """The real ``packing_row`` makes the same row; its boundaries are taken from positions."""
    base = real("swift.template.base")
    utils = real("swift.utils.transformers_utils")
    pack, _ = pack_and_samples()
    rows = [
        {"input_ids": ids.tolist(), "labels": [-100, *ids.tolist()[1:]], "length": len(ids)}
        for ids in map(pack.segment, range(len(LENGTHS)))
    ]
    template = object.__new__(base.Template)
    template._data_collator_mm_data = lambda row: {}
    theirs = template.packing_row(rows)
    ours = PackCollator(dialect="ms_swift")([pack])
    for key in ("input_ids", "labels", "position_ids"):
        assert ours[key][0].tolist() == theirs[key], key
    found = utils.get_packed_seq_params(torch.tensor([theirs["position_ids"]]))
    assert_equal(ours, {key: found[key] for key in ("cu_seq_lens_q", "cu_seq_lens_k")})
    assert ours["max_length_q"] == int(found["max_length_q"])


def rows_with_media(rng, count):
    """Rows of Qwen2.5-VL as templates make them: text, then pictures and a video between text; some are text alone."""
    rows = []
    for _ in range(count):
        types, grids = [0, 0], {"image": [], "video": []}
        for kind in rng.choice(["image", "video"], rng.integers(0, 4)):
            grid = [1 if kind == "image" else int(rng.integers(1, 4)), *(2 * rng.integers(1, 5, 2)).tolist()]
            grids[kind].append(grid)
            types += [*[1 if kind == "image" else 2] * (int(np.prod(grid)) // 4), *[0] * int(rng.integers(1, 4))]
        types = torch.tensor(types)
        ids = torch.where(types > 0, 151_654 + types, torch.from_numpy(rng.integers(10, 1000, len(types))))
        labels = torch.where((types > 0) | (torch.arange(len(types)) < 2), -100, ids)
        row = {"input_ids": ids, "labels": labels, "mm_token_type_ids": types}
        for kind, suffix in (("image", ""), ("video", "_videos")):
            if grids[kind]:
                row[f"{kind}_grid_thw"] = torch.tensor(grids[kind])
                patches = rng.normal(size=(int(np.prod(grids[kind], axis=1).sum()), 12)).astype(np.float32)
                row[f"pixel_values{suffix}"] = torch.from_numpy(patches)
        if grids["video"]:
            row["second_per_grid_ts"] = rng.choice([0.4, 0.5, 1.0], len(grids["video"])).tolist()
        rows.append(row)
    return rows


def positions_of_qwen():
    """``get_rope_index`` of Qwen2.5-VL, of a model of a few weights."""
    from brimful.verify.models import tiny_media_model

    return tiny_media_model(open_family("qwen2.5-vl").settings, {}, 100).model.get_rope_index


def test_ms_swift_packs_rows_with_media():
    """Its template's own collator, positions by the model itself: all keys, values and types, but for longest segments."""
    qwen = real("swift.template.templates.qwen")
    transformers = real("transformers")
    get_rope_index = positions_of_qwen()

    class Template(qwen.Qwen2_5VLTemplate):  # type: ignore[name-defined]
        use_megatron, sequence_parallel_size, padding_side, mode = False, 1, "right", "train"
        padding_free, transformers_5_3 = True, True
        transformers_version = real("packaging.version").parse(transformers.__version__)
        tokenizer = SimpleNamespace(pad_token_id=0)

        def _get_get_rope_index(self):
            return get_rope_index

    rng = np.random.default_rng(0)
    collate = PackCollator(dialect="ms_swift", media=MediaFeatures(None, "qwen2.5-vl"))
    for _ in range(20):
        rows = rows_with_media(rng, 4)
        lists = {key: [row[key].tolist() for row in rows] for key in ("input_ids", "labels")}
        theirs = object.__new__(Template)._data_collator(
            [
                {**row, "input_ids": ids, "labels": [-100, *labels[1:]], "length": len(ids)}
                for row, ids, labels in zip(rows, lists["input_ids"], lists["labels"], strict=True)
            ]
        )
        ours = collate(rows)
        if not any(row["mm_token_type_ids"].any() for row in rows):
            del theirs["mm_token_type_ids"]  # of zeros, which say nothing
        assert ours.keys() == theirs.keys()
        for key in ("max_length_q", "max_length_k"):
            theirs[key] = int(theirs[key])
        if "second_per_grid_ts" in theirs:  # a list there
            theirs["second_per_grid_ts"] = torch.tensor(theirs["second_per_grid_ts"])
        assert_equal(ours, theirs)


def test_veomni_packs_rows_with_media():
    """Its packing collator on rows of its transform: masks of placeholders, whose tokens are 0, and positions by the model."""
    module = real("veomni.data.data_collator")
    get_rope_index = positions_of_qwen()
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = rows_with_media(rng, 4)
        for row in rows:
            types, ids = row.pop("mm_token_type_ids"), row["input_ids"]
            row.pop("second_per_grid_ts", None)
            grids = {key: row.get(key) for key in ("image_grid_thw", "video_grid_thw")}
            row["attention_mask"] = torch.ones_like(ids)
            row["position_ids"] = get_rope_index(ids[None], mm_token_type_ids=types[None], **grids)[0][:, 0].clone()
            row["image_mask"], row["video_mask"] = types == 1, types == 2
            ids[types > 0] = 0
        ours = PackCollator(dialect="veomni")(rows)
        theirs = module.PackingCollator()([{key: value.clone() for key, value in row.items()} for row in rows])
        assert ours.keys() == theirs.keys()
        assert_equal(ours, theirs)


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), GAPS], ids=["none", "tail", "gaps"])
def test_megatron_packed_seq_params(padding):
    """The real class takes what we say, whatever its version knows."""
    params = real("megatron.core.packed_seq_params")
    batch = lay_out([toy_pack(LENGTHS)], padding=padding)
    made = build_packed_seq_params(batch, params.PackedSeqParams)
    assert made.qkv_format == "thd"
    assert made.cu_seqlens_q.dtype == torch.int32
    assert type(made.max_seqlen_q) is int
    assert made.max_seqlen_q == batch.max_seqlen
    if padding is GAPS:
        assert made.cu_seqlens_q.tolist() == [0, 4, 6, 7, 10, 10]
        assert made.cu_seqlens_q_padded.tolist() == [0, 4, 8, 12, 16, 24]
    else:
        assert made.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()
        assert made.cu_seqlens_q_padded is None


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), GAPS], ids=["none", "tail", "gaps"])
def test_megatron_reads_the_batch(padding):
    """What its reader does first: a padding mask from the boundaries, and every row of one dimension held against it."""
    schedule = real("megatron.core.datasets.data_schedule")
    if not hasattr(schedule, "_build_thd_padding_mask"):
        pytest.skip("this Megatron-Core makes no padding mask, as 0.16")
    given = PackCollator(dialect="megatron", padding=padding)([toy_pack(LENGTHS)])
    mask = schedule._build_thd_padding_mask(given["cu_seqlens"], given["cu_seqlens_padded"])
    assert mask.tolist() == given["padding_mask"].tolist()
    schedule._sanitize_thd_padding_values(given, mask)
    assert given["tokens"][~mask].tolist() == toy_pack(LENGTHS).input_ids.tolist()


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), GAPS], ids=["none", "tail", "gaps"])
def test_megatron_bridge_takes_samples_out_for_positions(padding):
    """Qwen2.5-VL and GLM-4.5V: each sample from its own start, and none that is empty."""
    utils = real("megatron.bridge.training.utils.packed_seq_utils")
    pack = toy_pack(LENGTHS)
    given = PackCollator(dialect="megatron_bridge", padding=padding)([pack])
    params = SimpleNamespace(**{key: value for key, value in given.items() if key.startswith("cu_seqlens")})
    rows, _, _, lengths = utils.unpack_mcore_thd_tensor_for_position_ids(given["input_ids"], params)
    assert lengths[: len(LENGTHS)] == LENGTHS
    assert [rows[n, :size].tolist() for n, size in enumerate(LENGTHS)] == [
        pack.segment(n).tolist() for n in range(len(LENGTHS))
    ]


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16)], ids=["none", "tail"])
def test_megatron_rolls_labels_as_we_shift_them(padding):
    """Multi-token prediction in Megatron rolls what it is given: heads 1 and 2 by hand and by its own code."""
    mtp = real("megatron.core.transformer.multi_token_prediction")
    params = real("megatron.core.packed_seq_params")
    from brimful.collate import shift_labels

    batch = lay_out([toy_pack(LENGTHS)], padding=padding)
    made = build_packed_seq_params(batch, params.PackedSeqParams)
    once, _ = mtp._roll_tensor_packed_seq(torch.from_numpy(batch.labels[None] + 0), -1, -1, made)
    twice, _ = mtp._roll_tensor_packed_seq(once, -1, -1, made)
    for by, theirs in ((1, once), (2, twice)):
        ours = shift_labels(batch.labels, batch.cu_seqlens, by=by)
        assert np.where(ours == -100, 0, ours).tolist() == torch.where(theirs == -100, 0, theirs)[0].tolist()


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), GAPS], ids=["none", "tail", "gaps"])
def test_megatron_bridge_reads_the_legacy_batch(padding):
    """Its own reader finds our boundaries up to the end mark."""
    utils = real("megatron.bridge.training.utils.packed_seq_utils")
    batch = lay_out([toy_pack(LENGTHS)], padding=padding)
    found = utils.get_packed_seq_params(
        PackCollator(dialect="megatron_bridge_legacy", padding=padding)([toy_pack(LENGTHS)])
    )
    assert int(found.max_seqlen_q) == batch.max_seqlen
    if padding is GAPS:
        assert found.cu_seqlens_q.tolist() == batch.cu_seqlens_real.tolist()
        assert found.cu_seqlens_q_padded.tolist() == batch.cu_seqlens.tolist()
    else:
        assert found.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), GAPS], ids=["none", "tail", "gaps"])
def test_nemo_automodel_reads_the_batch(padding):
    """``process_input_for_thd`` makes of our rows the boundaries and the padding mask that we have."""
    thd = real("nemo_automodel.components.distributed.thd_utils")
    pack = toy_pack(LENGTHS)
    batch = lay_out([pack], padding=padding)
    given = PackCollator(dialect="nemo_automodel", padding=padding)([pack])
    found = thd.process_input_for_thd(given)
    assert found["input_ids"].tolist() == batch.input_ids.tolist()
    assert found["position_ids"].tolist() == batch.position_ids.tolist()
    if padding is GAPS:
        assert found["cu_seqlens"].tolist() == batch.cu_seqlens_real.tolist()
        assert found["cu_seqlens_padded"].tolist() == batch.cu_seqlens.tolist()
        assert found["padding_mask"].tolist() == batch.padding_mask.tolist()
    else:
        assert found["cu_seqlens"].tolist() == batch.cu_seqlens.tolist()
        assert "cu_seqlens_padded" not in found
    assert found["padding_mask"].dtype == torch.bool


def test_nemo_automodel_collater():
    """Its own collater on the same rows, as lists, with the last segment stretched over the padding."""
    utils = real("nemo_automodel.components.datasets.utils")
    packs = [toy_pack([3, 2]), toy_pack([4])]
    given = PackCollator(dialect="nemo_automodel", pad_to=6)(packs)
    rows = [
        {
            **{key: given[key][row].tolist() for key in ("input_ids", "labels", "position_ids")},
            **{key: [n for n in given[key][row].tolist() if n != -1000] for key in ("seq_lens", "seq_lens_padded")},
        }
        for row in range(2)
    ]
    assert_equal(given, utils.packed_sequence_thd_collater(rows))


@pytest.mark.parametrize("pad_to", [None, 16])
def test_torchtitan_finds_our_boundaries(pad_to):
    """Documents begin where positions are 0, in the rows of its releases."""
    attention = real("torchtitan.models.common.attention")
    given = PackCollator(dialect="torchtitan", pad_to=pad_to)([toy_pack(LENGTHS)])
    found = attention.create_varlen_metadata_for_document(given["positions"][None], include_host_offsets=True)
    ours = attention.VarlenMetadata(**given["varlen_metadata"])
    assert found.cu_seq_q.tolist() == ours.cu_seq_q.tolist()
    assert found.cu_seq_q.dtype == ours.cu_seq_q.dtype
    assert (found.max_q, found.cu_seq_q_host) == (ours.max_q, ours.cu_seq_q_host)


@pytest.mark.parametrize("pad_to", [None, 16])
def test_veomni_collator(pad_to):
    """The real packing collator on the samples: all keys, values and types, but its zero positions in the padding."""
    module = real("veomni.data.data_collator")
    pack, rows = pack_and_samples()
    features = [
        {**{key: torch.tensor(row[key]) for key in row}, "attention_mask": torch.ones(len(row["labels"]), dtype=torch.int64),
         "position_ids": torch.arange(len(row["labels"]))}
        for row in rows
    ]  # fmt: skip
    features[0]["labels"][0] = -100  # VeOmni leaves the first label of a row, which nothing predicts
    theirs = module.PackingCollator(pad_to_length=pad_to or False)(features)
    ours = PackCollator(dialect="veomni", pad_to=pad_to)([pack])
    assert set(ours) == set(theirs)
    assert_equal(ours, theirs, only=set(theirs) - {"position_ids"})
    assert ours["position_ids"][0, : len(pack)].tolist() == theirs["position_ids"][0, : len(pack)].tolist()


def test_verl_reads_nested_rows():
    """The row that its engine makes of the nesting, and the mask for engines that pad."""
    padding = real("verl.workers.utils.padding")
    pack = toy_pack(LENGTHS)
    given = PackCollator(dialect="verl", pad_to=16)([pack])
    assert given["input_ids"].values().tolist() == pack.input_ids.tolist()
    assert given["input_ids"].offsets().tolist() == pack.cu_seqlens.tolist()
    mask = padding.build_attention_mask_from_nested(given["input_ids"])
    plain = PackCollator(dialect="plain")([pack])
    assert mask.tolist() == plain["attention_mask"].tolist()


def test_llama_factory_makes_our_dense_mask():
    """Its mask of four dimensions from the numbers of segments; it leaves padding blind, ours lets it see itself."""
    collator = real("llamafactory.data.collator")
    pack = toy_pack(LENGTHS)
    given = PackCollator(dialect="llama_factory", pad_to=12)([pack])
    found = collator.prepare_4d_attention_mask(given["attention_mask"], torch.float32)[0, 0]
    batch = lay_out([pack], padding=Padding(to=13))
    expected = PackCollator(dialect="dense_mask", pad_to=13)([pack])["attention_mask"][0, 0]
    expected = expected & torch.from_numpy(indexed_mask(batch) > 0)[:, None]
    assert torch.equal(found == 0, expected)


def test_axolotl_collator():
    """The real multipack collator on the samples of the pack."""
    batching = real("axolotl.utils.collators.batching")
    pack, rows = pack_and_samples()

    class Tokenizer:
        """What the collator asks of one."""

        padding_side = "right"

        def pad(self, features, **options):
            return {key: torch.tensor(np.stack([feature[key] for feature in features])) for key in features[0]}

    features = [
        {**row, "labels": [-100, *row["labels"][1:]], "attention_mask": [1] * len(row["labels"]),
         "position_ids": list(range(len(row["labels"]))), "length": len(row["labels"])}
        for row in rows
    ]  # fmt: skip
    theirs = batching.V2BatchSamplerDataCollatorForSeq2Seq(tokenizer=Tokenizer())([features])
    assert_equal(PackCollator(dialect="axolotl")([pack]), theirs)


def test_accelerate_moves_a_batch():
    """Tensors go to the device, integers and flags stay what they are."""
    operations = real("accelerate.utils.operations")
    batch = PackCollator(pad_to=16)([toy_pack(LENGTHS)])
    moved = operations.send_to_device(batch, "cpu")
    assert_equal(batch, moved)


@pytest.mark.parametrize("dialect", ["transformers", "dense_mask", "plain"])
def test_a_batch_without_a_target_has_loss_0(dialect):
    """Ranks get one at the tail of an epoch; the mean of nothing would be NaN in their logs."""

    pack = tiny.packs(1)[0]
    silent = Pack(pack.input_ids, np.zeros_like(pack.loss_mask), pack.cu_seqlens, pack.sample_ids, pack.starts)
    model = tiny.model()
    batch = PackCollator(dialect=dialect)([silent])
    without = {key: value for key, value in batch.items() if key != "num_items_in_batch"}
    assert np.isnan(float(model(**without).loss))
    loss = model(**batch).loss
    loss.backward()
    assert float(loss) == 0
    assert all(not parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)
    assert "num_items_in_batch" not in PackCollator(dialect=dialect)([pack])


@pytest.mark.parametrize("padding", [Padding(), Padding(to=24), GAPS, Padding(to=24, num_segments=8)])
def test_unsloth_counts_and_cuts_as_we_do(padding):
    """Its trainer divides by what it counts, with the lengths; its mask is as wide as they sum to, and isolates each."""
    real("unsloth")  # first: its other modules cannot be imported alone
    count = real("unsloth_zoo.loss_utils").count_batch_items
    packing = real("unsloth.utils.packing")
    ours = PackCollator(dialect="unsloth", padding=padding)([toy_pack(LENGTHS)])
    targets, is_short, is_degenerate = count(ours["labels"], None, ours["input_ids"], ours["packed_seq_lengths"])
    assert (int(targets), is_short, is_degenerate) == (sum(LENGTHS) - len(LENGTHS), False, False)
    info = packing.get_packed_info_from_kwargs(dict(ours), torch.device("cpu"))
    assert info[1].tolist() == ours["cu_seq_lens_q"].tolist()
    mask = packing.build_sdpa_packed_attention_mask(info, dtype=torch.float32, device=torch.device("cpu"))
    positions, number = torch.arange(mask.shape[-1]), ours["seq_idx"][0]
    seen = (number[:, None] == number) & (positions[:, None] >= positions)
    assert ((mask[0, 0] == 0) == seen).all()
    assert packing.mask_packed_boundary_labels(ours["labels"], ours["packed_seq_lengths"]).equal(ours["labels"])
