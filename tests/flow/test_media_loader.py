"""Media in the workers of a data loader: decoded where the batch is made, kept no longer, and never the end of a pack."""

import gc
import json
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator, PackedDataset, PackLoader, open_packs, pack_dataset  # noqa: E402
from brimful.base.typing import IGNORE_INDEX  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.encode.media_chat import MediaChatEncoder  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.plan import PlanSettings  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from tests.flow.test_media import png  # noqa: E402

NUM_ROWS = 8
BAD = "3.png"


@pytest.fixture(scope="module")
def store(small_qwen, tmp_path_factory):
    """Packs of chats with a picture each, and their files, which may be broken afterwards."""
    folder = tmp_path_factory.mktemp("media")
    for number in range(NUM_ROWS):
        (folder / f"{number}.png").write_bytes(png(112, 84, number))
    rows = [
        {"question": "<image>?" if number % 4 else "Hm?", "answer": f"It is {number}."}
        | ({"image": f"{number}.png"} if number % 4 else {})
        for number in range(NUM_ROWS)
    ]
    family = open_family("qwen2-vl", small_qwen, max_pixels=30_000)
    encoder = MediaChatEncoder(small_qwen, family, chat_template=small_qwen / "chat_template_vl.jinja")
    source = open_source(rows, media_dir=folder)
    settings = PlanSettings(capacity=100)
    pack_dataset(source, encoder, folder / "p", settings, num_proc=1, cache_dir=folder / "c")
    return folder / "p"


@pytest.fixture
def broken(store):
    """The store while one of its pictures is cut short."""
    path = store.parent / BAD
    content = path.read_bytes()
    path.write_bytes(content[:100])
    yield store
    path.write_bytes(content)


def test_a_medium_that_cannot_be_decoded_stops_by_name(broken, small_qwen):
    """The default: no run trains on less than its user thinks."""
    collator = PackCollator(media=MediaFeatures.of_packs(open_packs(broken), small_qwen))
    pack = next(pack for pack in open_packs(broken) if 3 in pack.sample_ids)
    with pytest.raises(
        CollateError, match=r"sample 3, image '3.png': has 100 bytes and .* cut short.*on_bad_medium=\"no_loss\""
    ):
        collator([pack])


def test_or_its_sample_is_trained_without_loss(broken, small_qwen, tmp_path):
    """Zeros of the same shape, no label of that sample, all others as they were; counted, warned of once, in the log."""
    packs = open_packs(broken)
    log = tmp_path / "bad.jsonl"
    features = MediaFeatures.of_packs(packs, small_qwen, on_bad_medium="no_loss", bad_media_log=log)
    collator = PackCollator(media=features)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            samples = []
            for pack in packs:
                (batch,) = collator.rows([pack])
                samples += batch.sample_ids.tolist()
                assert batch.num_loss_tokens == int((batch.labels != IGNORE_INDEX).sum())
                patches = sum(item.num_patches for item in pack.attachments)
                for media in batch.attached:
                    assert len(media.arrays["pixel_values"]) == patches
                bad = [segment for segment, sample in enumerate(pack.sample_ids.tolist()) if sample == 3]
                assert batch.no_loss == tuple(bad)
                labels = pack.labels
                for segment in bad:
                    labels[pack.cu_seqlens[segment] : pack.cu_seqlens[segment + 1]] = IGNORE_INDEX
                assert batch.labels.tolist() == labels.tolist()
                assert ("without loss" in repr(batch)) == bool(bad)
                rows = 0
                for item in pack.attachments:
                    block = batch.attached[0].arrays["pixel_values"][rows : rows + item.num_patches]
                    assert bool(block.any()) == (item.medium.name != BAD)
                    rows += item.num_patches
            assert sorted(samples) == list(range(NUM_ROWS))
            assert features.num_bad_media == epoch + 1
    ours = [warning for warning in caught if "trained without loss" in str(warning.message)]
    assert len(ours) == 1
    assert "sample 3, image '3.png': has 100 bytes and 28,376 are due: the file was cut short" in str(ours[0].message)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["sample_id"] for line in lines] == [3, 3]
    assert "cut short" in lines[0]["reason"]
    with pytest.raises(SettingsError, match=r'on_bad_medium="skip" is none of error, no_loss'):
        MediaFeatures.of_packs(packs, small_qwen, on_bad_medium="skip")  # type: ignore[arg-type]


def test_a_fill_pack_is_not_counted(broken, small_qwen, tmp_path):
    """Its picture is broken where its sample is trained: that is in the log once, and no sample has the number -1."""
    packs = open_packs(broken)
    (pack,) = (pack for pack in packs if 3 in pack.sample_ids)
    log = tmp_path / "bad.jsonl"
    features = MediaFeatures.of_packs(packs, small_qwen, on_bad_medium="no_loss", bad_media_log=log)
    (batch,) = PackCollator(media=features).rows([pack.without_loss()])
    assert (batch.no_loss, features.num_bad_media, log.exists()) == ((), 0, False)
    assert len(batch.attached[0].segments) == len(pack.attachments)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_make_the_batches_of_one_process(context, broken, small_qwen):
    """Forked with a processor that is loaded, and spawned without: the same tensors, a broken picture among them."""
    dataset = PackedDataset(broken)
    features = MediaFeatures.of_packs(dataset, small_qwen, on_bad_medium="no_loss")
    collator = PackCollator(media=features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [collator([pack]) for pack in dataset]
        loader = torch.utils.data.DataLoader(
            dataset, collate_fn=collator, num_workers=1, multiprocessing_context=context, prefetch_factor=2
        )
        batches = list(loader)
    assert len(batches) == len(expected)
    for ours, theirs in zip(batches, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value


def test_ranks_stay_in_step(broken, small_qwen):
    """A broken picture takes no batch from one rank and not from another."""
    packs = open_packs(broken)
    features = MediaFeatures.of_packs(packs, small_qwen, on_bad_medium="no_loss")
    collator = PackCollator(media=features)
    steps = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rank in range(2):
            loader = PackLoader(packs, dp_rank=rank, dp_world_size=2, collate_fn=collator, seed=0)
            steps.append([batch["labels"].shape for batch in loader])
    assert len(steps[0]) == len(steps[1]) > 0


@pytest.mark.long
def test_nothing_decoded_outlives_its_batch(store, small_qwen):
    """Kept pixels of an epoch are what fills hosts; each epoch here would leave a megabyte."""
    packs = open_packs(store)
    collator = PackCollator(media=MediaFeatures.of_packs(packs, small_qwen))
    pack = max(packs, key=lambda pack: len(pack.attachments))
    (batch,) = collator.rows([pack])
    alive = [weakref.ref(array) for media in batch.attached for array in media.arrays.values()]
    assert alive
    del batch
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)
    collator([pack])  # imports and caches of libraries are no pixels
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(4):
            for one in packs:
                collator([one])
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    pixels = sum(item.num_patches for one in packs for item in one.attachments) * 3 * 2 * 14 * 14 * 4
    assert sizes[-1] - sizes[1] < pixels / 20, sizes
    assert np.diff(sizes).max() < pixels
