"""Packs that hold ready features: bit for bit as made when a batch is read."""

import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator, Plan, open_packs, pack_dataset, write_packs
from brimful.base.progress import Progress
from brimful.errors import CollateError, CorruptFileError, SettingsError, StoreMismatchError
from brimful.media import BadMediumError
from brimful.media.collate import MediaFeatures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.media.feature_block import block_bytes, from_block, to_block
from brimful.plan import PlanSettings
from brimful.report.store_check import check_store
from brimful.sources import open_source
from tests.flow.parity import names_of_equal_extras
from tests.flow.test_media import png

NUM_ROWS = 8


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    for number in range(3):
        (folder / f"{number}.png").write_bytes(png(112, 84 + 28 * number, number))
    return folder


def inputs(home, processor):
    rows = [
        {"question": "<image>?", "answer": f"It is {number}.", "image": f"{number % 3}.png"}
        for number in range(NUM_ROWS)
    ]
    encoder = MediaChatEncoder(
        processor,
        open_family("qwen2-vl", processor, max_pixels=30_000),
        chat_template=processor / "chat_template_vl.jinja",
    )
    return open_source(rows, media_dir=home), encoder


def pack(home, processor, storage, directory, share="none", **options):
    source, encoder = inputs(home, processor)
    settings = PlanSettings(capacity=100, share=share)
    options = {"num_proc": 1, "cache_dir": home / "cache", **options}
    pack_dataset(source, encoder, directory, settings, media_storage=storage, **options)
    return open_packs(directory)


@pytest.fixture(scope="module")
def stores(home, small_qwen):
    return [pack(home, small_qwen, storage, home / storage) for storage in ("bytes", "features")]


def test_features_are_those_that_are_made_when_read(stores, small_qwen):
    """Without the processor; each distinct picture once; the check of the store passes."""
    made, stored = stores
    read, make = MediaFeatures.of_packs(stored), MediaFeatures.of_packs(made, small_qwen)
    for one, other in zip(made, stored, strict=True):
        extras = read(other)
        assert extras.rope_positions is not None
        names_of_equal_extras(extras, make(one))
    assert stored.census.num_stored == 3
    assert "as features" in stored.census.places()[0]
    assert check_store(stored.directory).media == NUM_ROWS
    assert PackCollator(media=read)([stored[0]])["pixel_values"].shape[0] > 0


def test_features_of_a_plan_without_kept_tokens_are_the_same(stores, home, small_qwen, tmp_path):
    """Without them each sample is encoded again for the size of its features."""
    options = {"num_proc": 1, "cache_dir": home / "cache"}
    write_packs(
        Plan.open(home / "features" / "plan.arrow"),
        *inputs(home, small_qwen),
        tmp_path / "again",
        media_storage="features",
        **options,
    )
    again = open_packs(tmp_path / "again")
    assert (again.fingerprint, again.census.num_stored) == (stores[1].fingerprint, 3)
    read = MediaFeatures.of_packs(again)
    for ours, theirs in zip(map(read, again), map(read, stores[1]), strict=True):
        assert [item.arrays["pixel_values"].tobytes() for item in ours.attached] == [
            item.arrays["pixel_values"].tobytes() for item in theirs.attached
        ]


def test_captions_of_a_picture_share_it(home, small_qwen):
    """Eight captions of three pictures: each picture is encoded, stored and placed once, and each caption sees its own."""
    packs = pack(home, small_qwen, "features", home / "captions", share="prefixes", least_shared=8)
    names = [[item.medium.name for item in pack.attachments] for pack in packs]
    assert sorted(name for pack in names for name in pack) == ["0.png", "1.png", "2.png"]
    (count,) = packs.census.kinds.values()
    assert (count.count, count.distinct, packs.census.num_stored) == (3, 3, 3)
    seen = {
        sample_id: [item.medium.name for item in flat.attachments if item.segment == segment]
        for flat in (pack.flat() for pack in packs)
        for segment, sample_id in enumerate(flat.sample_ids.tolist())
    }
    assert seen == {number: [f"{number % 3}.png"] for number in range(NUM_ROWS)}
    assert check_store(home / "captions").media == 3


def test_its_bytes_are_refused_by_name(stores):
    """An export needs them, and says how to get them."""
    with pytest.raises(BadMediumError, match=r"as features.*media_storage"):
        stores[1][0].attachments[0].read()


def test_a_flipped_byte_is_found(stores, home):
    """In the features themselves; and by the check of the store."""
    shutil.copytree(home / "features", home / "flipped")
    path = next((home / "flipped" / "media").iterdir())
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    packs = open_packs(home / "flipped")
    features = MediaFeatures.of_packs(packs)
    with pytest.raises(CollateError, match="features differ from what was written"):
        [features(pack) for pack in packs]
    with pytest.raises(CorruptFileError, match="other bytes"):
        check_store(home / "flipped")


def test_features_of_another_medium_are_found(stores):
    """A whole block in the place of another passes its own digest."""
    from dataclasses import replace

    items = {item.fingerprint: item for pack in stores[1] for item in pack.attachments}
    one, other = list(items.values())[:2]
    pack = stores[1][0]
    swapped = replace(pack, attachments=(replace(one, medium=other.medium, segment=0),))
    with pytest.raises(CollateError, match="another medium"):
        MediaFeatures.of_packs(stores[1])(swapped)


def test_other_settings_are_refused(stores, home, small_qwen, tmp_path):
    """Of the processor that is given, and of the job that goes on."""
    other = tmp_path / "processor"
    shutil.copytree(small_qwen, other)
    text = (other / "preprocessor_config.json").read_text()
    (other / "preprocessor_config.json").write_text(text.replace("0.4814", "0.5814"))
    with pytest.raises(SettingsError, match="other settings"):
        MediaFeatures.of_packs(stores[1], other)
    with pytest.raises(CollateError, match="another processor"):
        MediaFeatures(other, "qwen2-vl", max_pixels=30_000)(stores[1][0])
    with pytest.raises(StoreMismatchError, match="media"):
        pack(home, other, "features", home / "features")
    with pytest.raises(SettingsError, match="hold no features"):
        MediaFeatures.of_packs(stores[0])


def test_the_size_is_said_before_it_is_written(home, small_qwen):
    """Exactly, from headers; the containers then have that size and the end of their tars."""

    said = []

    class Said(Progress):
        def say(self, text):
            said.append(text)

    progress = Said()
    packs = pack(home, small_qwen, "features", home / "said", progress=progress)
    line = next(line for line in said if line.startswith("media:"))
    assert "3 distinct ones stored as features" in line
    assert "× their bytes" in line
    assert packs.census.holds_features
    # Stages come one after the other: one within another would count twice among the seconds of the job.
    ends = [stage.started + stage.seconds for stage in progress.stages]
    assert "features" in {stage.name for stage in progress.stages}
    assert all(end <= later.started for end, later in zip(ends, progress.stages[1:], strict=False))


def test_a_block_is_safetensors():
    """Read by the library of that format; another dtype or shape in its header is found."""
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {"grid": np.array([[1, 2, 2]]), "mask": np.ones((1, 3), np.int32), "pixels": np.ones((4, 6), np.float32)}
    metadata = {"kind": "image"}
    block = to_block(arrays, metadata)
    assert len(block) == block_bytes(arrays, metadata)
    loaded = numpy.load(block)
    assert all(loaded[name].tobytes() == array.tobytes() for name, array in arrays.items())
    for damaged in (block.replace(b'"F32"', b'"I32"'), block.replace(b"[4,6]", b"[6,4]"), block[:-1], block[:5]):
        with pytest.raises(BadMediumError, match="features differ from what was written"):
            from_block(damaged)
