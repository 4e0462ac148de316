"""Positions of mRoPE equal those of the models' own ``get_rope_index``, which needs a model."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate.extras import PackExtras
from brimful.media import BadMediumError, MediaKind
from brimful.media.rope_positions import (
    QWEN2_5_OMNI,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
    RopeMedium,
    RopeRule,
    rope_positions,
)
from brimful.store.shards.pack import assemble_pack

RULES = {"qwen2_vl": QWEN2_VL, "qwen2_5_vl": QWEN2_5_VL, "qwen3_vl": QWEN3_VL, "qwen2_5_omni": QWEN2_5_OMNI}

TEXT, IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = 5, 101, 102, 103, 104, 105, 106, 107


@dataclass(frozen=True)
class Part:
    """Part of a sample: a number of tokens of text or sound, or a grid of tokens (not of patches)."""

    kind: str
    size: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    seconds: float = 1.0
    is_bare: bool = False


def text(size):
    return Part("text", size)


def sound(size):
    return Part("audio", size)


def image(height, width, *, is_bare=False):
    return Part("image", grid=(1, height, width), is_bare=is_bare)


def video(grids, height, width, seconds=1.0, *, is_bare=False):
    return Part("video", grid=(grids, height, width), seconds=seconds, is_bare=is_bare)


@dataclass
class Sample:
    """Tokens of a sample, what the processor says of its media, and what we are told of them."""

    ids: list[int]
    grids: dict[str, list[list[int]]]
    seconds: list[float]
    audio_sizes: list[int]
    media: list[RopeMedium]


def written(parts, family, merge=2):
    """Write parts as the processor of a family does: between tokens of start and end, or bare.

    A bare medium shows that no rule needs these tokens. Qwen2.5-Omni does, and so does any medium after one of its
    kind: the end of the first one would be unknown.
    """
    sample = Sample([], {"image": [], "video": []}, [], [], [])
    ids = sample.ids
    for part in parts:
        if part.kind == "text":
            ids += [TEXT] * part.size
        elif part.kind == "audio":
            ids += [AUDIO_START] + [AUDIO] * part.size + [AUDIO_END]
            sample.audio_sizes.append(part.size)
        else:
            grids, height, width = part.grid
            token, kind = (IMAGE, MediaKind.IMAGE) if part.kind == "image" else (VIDEO, MediaKind.VIDEO)
            is_bare = part.is_bare and family != "qwen2_5_omni" and (not ids or ids[-1] != token)
            is_apart = part.kind == "video" and family == "qwen3_vl"
            starts = []
            for frame in range(grids if is_apart else 1):
                # Timestamps have different numbers of tokens.
                stamp = [TEXT] * (1 + frame % 3) if is_apart and not is_bare else []
                ids += stamp + ([] if is_bare and frame == 0 else [VISION_START])
                starts.append(len(ids))
                ids += [token] * ((1 if is_apart else grids) * height * width) + ([] if is_bare else [VISION_END])
            patches = (grids, height * merge, width * merge)
            sample.grids[part.kind].append(list(patches))
            if part.kind == "video":
                sample.seconds.append(part.seconds)
            sample.media.append(RopeMedium(kind, starts, patches, part.seconds))
    return sample


@cache
def model_of(family, rate=None, merge=2):
    """A model without weights: ``get_rope_index`` reads its configuration alone."""
    torch = pytest.importorskip("torch")
    # Some versions before cut the seconds of a video, and to 5.2 text behind a video begins elsewhere.
    transformers = pytest.importorskip("transformers", minversion="5.23")
    text_config = {
        "vocab_size": 128, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    vision = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": merge}
    with torch.device("meta"):
        if family == "qwen2_5_omni":
            config = transformers.Qwen2_5OmniThinkerConfig(
                audio_config={"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16,
                              "output_dim": 16},
                vision_config={**vision, "hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 16},
                text_config=text_config,
                position_id_per_seconds=rate or 25, audio_token_id=AUDIO, image_token_id=IMAGE, video_token_id=VIDEO,
                vision_start_token_id=VISION_START, audio_start_token_id=AUDIO_START, audio_end_token_id=AUDIO_END,
            )  # fmt: skip
            return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)
        name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
        sizes = {
            "qwen2_vl": {"embed_dim": 16, "hidden_size": 16},
            "qwen2_5_vl": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "out_hidden_size": 16,
                "tokens_per_second": rate or 2,
            },
            "qwen3_vl": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "out_hidden_size": 16,
                "deepstack_visual_indexes": [0],
            },
        }[family]
        config = getattr(transformers, f"{name}Config")(
            text_config=text_config, vision_config={**vision, **sizes}, image_token_id=IMAGE, video_token_id=VIDEO
        )
        return getattr(transformers, f"{name}Model")(config)


def of_the_model(sample, family, rate=None, merge=2):
    """``get_rope_index`` of one sample: ``int64[3, T]``."""
    torch = pytest.importorskip("torch")
    model = model_of(family, rate, merge)
    ids = torch.tensor([sample.ids])
    grids = {f"{kind}_grid_thw": torch.tensor(rows) if rows else None for kind, rows in sample.grids.items()}
    mask = torch.ones_like(ids)
    if family == "qwen2_5_omni":
        # Of a sound the model is told the frames before two poolings; these become so many tokens.
        frames = torch.tensor([size * 4 for size in sample.audio_sizes])
        seconds = torch.tensor(sample.seconds)
        positions, _ = model.get_rope_index(
            ids, **grids, attention_mask=mask, audio_seqlens=frames, second_per_grids=seconds
        )
    else:
        types = torch.where(ids == IMAGE, 1, torch.where(ids == VIDEO, 2, 0))
        seconds = {"second_per_grid_ts": torch.tensor(sample.seconds)} if family == "qwen2_5_vl" else {}
        positions, _ = model.get_rope_index(ids, types, **grids, **seconds, attention_mask=mask)
    return positions[:, 0].numpy()


def assert_like_the_model(parts, family, rate=None, merge=2):
    sample = written(parts, family, merge)
    rule = replace(RULES[family], merge_size=merge)
    if rate is not None and rule.tokens_per_second is not None:
        rule = replace(rule, tokens_per_second=rate)
    positions = rope_positions(len(sample.ids), sample.media, rule)
    assert positions.dtype == np.int64
    assert positions.tolist() == of_the_model(sample, family, rate, merge).tolist()


LAYOUTS = {
    "text only": [text(7)],
    "one image": [text(3), image(2, 3), text(4)],
    "a wide image and a high one": [text(1), image(1, 5), text(2), image(4, 1), text(1)],
    "a medium first": [image(2, 3, is_bare=True), text(4)],
    "a medium last": [text(4), image(2, 3, is_bare=True)],
    "a medium alone": [video(3, 2, 2, is_bare=True)],
    "adjacent media": [image(2, 3), image(1, 2), video(2, 2, 1), image(2, 2)],
    "adjacent runs": [image(2, 3, is_bare=True), video(2, 1, 2, is_bare=True), image(2, 1, is_bare=True)],
    "a video": [text(3), video(3, 2, 3), text(5)],
    "a video longer than it is wide": [text(3), video(9, 1, 2, 2.0), text(5)],
    "a slow video and a fast one": [text(1), video(3, 2, 2, 0.5), text(2), video(4, 1, 3, 1.3), text(2)],
    "mixed turns": [text(4), image(2, 2), text(3), video(3, 2, 2, 2.0), text(2), image(3, 1), image(1, 1), text(6)],
}


@pytest.mark.parametrize("family", RULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_are_those_of_the_model(layout, family):
    """A token that is off by one is at another place of the picture, and the loss says nothing of it."""
    assert_like_the_model(LAYOUTS[layout], family)


def test_sounds_count_as_text():
    """They have no grid, and need not be named."""
    assert_like_the_model([text(2), sound(7), image(2, 2), sound(3), video(3, 2, 2, 1.5), text(3)], "qwen2_5_omni")


def parts(kinds):
    side = st.integers(1, 4)
    seconds = st.floats(0.0625, 5, width=32, allow_subnormal=False)
    every = {
        "text": st.builds(text, st.integers(1, 6)),
        "image": st.builds(image, side, side, is_bare=st.booleans()),
        "video": st.builds(video, st.integers(1, 6), side, side, seconds, is_bare=st.booleans()),
        "audio": st.builds(sound, st.integers(1, 6)),
    }
    return st.lists(st.one_of([every[kind] for kind in kinds]), min_size=1, max_size=8)


@pytest.mark.parametrize("family", RULES)
@given(data=st.data())
def test_any_layout_is_that_of_the_model(family, data):
    """Any neighbors, at any rate and any size of a token's patch."""
    kinds = ["text", "image", "video", *(["audio"] if family == "qwen2_5_omni" else [])]
    layout = data.draw(parts(kinds))
    rate, merge = data.draw(st.sampled_from([2, 4, 13, 25])), data.draw(st.sampled_from([1, 2, 3]))
    assert_like_the_model(layout, family, rate, merge)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_5_omni"])
def test_times_are_cut_where_the_model_cuts_them(family):
    """Two thirds of a second at 25 a second: in float64, some grids are at one position more or less."""
    for seconds in (0.04, 0.12, 0.28, 0.56, 1.12, 2 / 3, 2 / 29.97):
        assert_like_the_model([text(1), video(200, 1, 1, seconds), text(1)], family, 25)


def test_text_behind_a_video_in_other_versions():
    """The video of transformers#45381: its text is at 348 in Transformers 5.2, and at 31 from 5.3 on."""
    video_of_issue = RopeMedium(MediaKind.VIDEO, [15], (84, 24, 32), seconds_per_grid=2.0)
    num_tokens = 15 + 84 * 12 * 16 + 10
    older = rope_positions(num_tokens, [video_of_issue], replace(QWEN2_5_VL, is_after_time=True))
    newer = rope_positions(num_tokens, [video_of_issue], QWEN2_5_VL)
    assert older[:, -11].tolist() == newer[:, -11].tolist() == [347, 26, 30]
    assert (older[:, -10].tolist(), newer[:, -10].tolist()) == ([348] * 3, [31] * 3)


@pytest.mark.parametrize("family", RULES)
def test_a_pack_has_the_positions_of_its_samples(family):
    """Four rows, the text's first: with three, Transformers would not see several samples."""
    pytest.importorskip("torch")
    from brimful import PackCollator

    layouts = ["mixed turns", "text only", "a medium last", "a video", "a medium first"]
    samples = [written(LAYOUTS[name], family) for name in layouts]
    packs = []
    for first, group in ((0, samples[:3]), (3, samples[3:])):
        masks = [np.ones(len(sample.ids), dtype=bool) for sample in group]
        pack = assemble_pack([np.array(sample.ids) for sample in group], masks, range(first, first + len(group)))
        rope = [rope_positions(len(sample.ids), sample.media, RULES[family]) for sample in group]
        packs.append((pack, PackExtras(rope_positions=np.concatenate(rope, axis=1))))
    sizes = [len(sample.ids) for sample in samples]
    batch = PackCollator(dialect="transformers", pad_to=sum(sizes) + 5)(packs)
    positions = batch["position_ids"].numpy()
    assert positions.shape == (4, 1, sum(sizes) + 5)
    edges = [0, *accumulate(sizes)]
    for sample, (start, stop) in zip(samples, pairwise(edges), strict=True):
        assert positions[0, 0, start:stop].tolist() == list(range(stop - start))
        assert positions[1:, 0, start:stop].tolist() == of_the_model(sample, family).tolist()
    # The padding is a segment of text.
    assert positions[:, 0, edges[-1] :].tolist() == [list(range(5))] * 4


@pytest.mark.parametrize(
    ("medium", "rule", "message"),
    [
        (RopeMedium(MediaKind.IMAGE, [3], (1, 4, 6)), QWEN2_VL, "has 6 tokens at token 3, where tokens 0 … 8 of its"),
        (
            RopeMedium(MediaKind.IMAGE, [0], (1, 4, 5)),
            QWEN2_VL,
            "has the grid .1, 4, 5., which tokens of 2 · 2 do not",
        ),
        (RopeMedium(MediaKind.IMAGE, [0], (1, 4, 0)), QWEN2_VL, "has the grid .1, 4, 0."),
        (RopeMedium(MediaKind.IMAGE, [0], (2, 2, 2)), QWEN2_VL, "only videos have several grids"),
        (RopeMedium(MediaKind.AUDIO, [0], (1, 2, 2)), QWEN2_5_OMNI, "is audio, which has no grid"),
        (RopeMedium(MediaKind.VIDEO, [0], (2, 2, 2)), QWEN3_VL, "has 1 runs of tokens, and 2 are expected"),
        (RopeMedium(MediaKind.VIDEO, [0, 3], (2, 2, 2)), QWEN2_VL, "has 2 runs of tokens, and 1 are expected"),
        (RopeMedium(MediaKind.VIDEO, [4, 0], (2, 2, 2)), QWEN3_VL, "has 1 tokens at token 0, where tokens 5 … 8"),
    ],
)
def test_a_grid_that_does_not_go_with_its_tokens(medium: RopeMedium, rule: RopeRule, message: str):
    """A truncated sample, or a grid of another processor: all later positions would be wrong."""
    with pytest.raises(BadMediumError, match=message):
        rope_positions(8, [medium], rule)
