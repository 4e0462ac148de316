"""``verify_packing`` on packs with media: right ones pass, and each of these faults is found by its name."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from brimful import PackCollator  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.verify import verify_packing  # noqa: E402
from brimful.verify.drawn_samples import (  # noqa: E402
    few_with_media,
    remembered,
    renumbered,
)
from brimful.verify.models import tiny_media_model  # noqa: E402
from tests.marks import long_but  # noqa: E402
from tests.verify import media_faults as faults  # noqa: E402
from tests.verify import media_packs as packs_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and Transformers; as errors they would break it


def setup_of(store, features):
    """Small packs of a store, a tiny model of its family, and a right collator."""
    small = renumbered(few_with_media(store, max_tokens=600))
    model = tiny_media_model(store.attachment_settings, small.token_ids, small.vocab)
    size = sum(len(pack) for pack in small.packs) + 9
    return small.packs, model, PackCollator(pad_to=size, media=remembered(features))


@pytest.fixture(scope="module")
def pictures(small_qwen, tmp_path_factory):
    """Packs of pictures and texts for Qwen2.5-VL."""
    folder = packs_of.qwen_folder(tmp_path_factory.mktemp("qwen"), "qwen2.5-vl")
    return setup_of(*packs_of.packs_of(packs_of.rows_of_pictures(), "qwen2.5-vl", small_qwen, folder))


def failures(report):
    return {finding.check: finding.cause for finding in report.failures}


@pytest.mark.parametrize("family", long_but({"qwen2-vl"}, ["qwen2-vl", "qwen3-vl", "llava", "qwen2-audio"]))
def test_a_right_collator_passes(family, small_qwen, tmp_path):
    """Towers, positions in space, loss and gradients; and other media in one sample move no other sample."""
    if family == "llava":
        case = setup_of(*packs_of.llava_packs(small_qwen, tmp_path))
    elif family == "qwen2-audio":
        case = setup_of(*packs_of.audio_packs(small_qwen, tmp_path))
    else:
        folder = packs_of.qwen_folder(tmp_path, family)
        case = setup_of(*packs_of.packs_of(packs_of.rows_of_pictures(), family, small_qwen, folder))
    packs, model, collator = case
    report = verify_packing(model, collator, packs, attention="sdpa")
    # Qwen2-Audio of Transformers ignores num_items_in_batch: found here, and no fault of the packs.
    assert set(failures(report)) == ({"weights"} if family == "qwen2-audio" else set()), str(report)
    details = {finding.check: finding.detail for finding in report.findings}
    assert details["media"] == ("3 audio clips" if family == "qwen2-audio" else "4 images")
    assert f"{2 if family == 'qwen2-audio' else 3} samples with other media" in details["isolation"]


@pytest.mark.long
def test_videos_pass(small_qwen, tmp_path):
    """Frames between timestamps, and a video in the place of another one."""
    pytest.importorskip("av")
    from tests.media.clips import clip

    rows = [
        {"messages": packs_of.turns("<video>What?"), "videos": [clip(num_frames=20, rate=10)]},
        {"messages": packs_of.turns("Hello?")},
        {"messages": packs_of.turns("<video>Which?"), "videos": [clip(num_frames=30, rate=10, size=(64, 64))]},
    ]
    folder = packs_of.qwen_folder(tmp_path, "qwen3-vl")
    packs, model, collator = setup_of(*packs_of.packs_of(rows, "qwen3-vl", small_qwen, folder, capacity=150))
    report = verify_packing(model, collator, packs, attention="sdpa")
    assert report.ok, str(report)
    details = {finding.check: finding.detail for finding in report.findings}
    assert details["media"] == "2 videos"
    assert "2 samples with other media" in details["isolation"]


@pytest.mark.parametrize(
    ("fault", "check", "cause"),
    [
        (faults.pictures_exchanged, "media", "images of two samples exchanged: sample "),
        (faults.grid_of_the_wrong_sample, "media", "a grid of the wrong sample: sample "),
        (faults.one_picture_dropped, "media", "one image dropped: number 3, of sample "),
        (faults.patches_in_another_order, "media", "patches in another order: sample "),
        (faults.features_of_a_text_only_neighbour, "media", "of a text-only neighbor"),
        (faults.mrope_over_the_whole_row, "positions", "mRoPE over the whole row: all 4 rows of position_ids run on"),
        (faults.all_pictures_dropped, "media", "the collator drops all images"),
        (faults.another_processor, "media", "another image, or another processor"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_found_by_name(pictures, fault, check, cause):
    """Each leaves every shape as it should be, or the model trains on without a word."""
    packs, model, collator = pictures
    report = verify_packing(model, faults.Broken(collator, fault), packs, attention="sdpa", gradients=False)
    assert cause in failures(report).get(check, ""), str(report)


@pytest.mark.long
def test_a_tower_that_sees_all_pictures_is_found(pictures):
    """The tokens do not show it: another picture moves its neighbors."""
    packs, model, collator = pictures
    report = verify_packing(faults.TowerOfAllPictures(model), collator, packs, attention="sdpa", gradients=False)
    found = [finding for finding in report.failures if finding.check == "isolation"]
    assert found, str(report)
    assert "other media in sample" in found[0].detail


def test_packs_with_media_need_their_features(pictures):
    """The truth is the model on each sample alone, which needs its pixels."""
    packs, model, collator = pictures
    with pytest.raises(SettingsError, match=r"has media: give media_maker=MediaFeatures"):
        verify_packing(model, lambda samples: collator(samples), packs, attention="sdpa")
    report = verify_packing(
        model, lambda samples: collator(samples), packs, attention="sdpa", gradients=False, media_maker=collator.media
    )
    assert not report.failures, str(report)
