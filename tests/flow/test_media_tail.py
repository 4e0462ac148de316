"""The last step of an epoch with media: the tower runs on each rank, also where a pack only fills an empty place.

A rank whose batch has no features runs no tower, and the others wait for its gradients forever; a batch of placeholders
without features trains on the embeddings of those.
"""

import datetime
import itertools
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator, PackedDataset, PackLoader, TokenBudgetBatches  # noqa: E402
from brimful.base.typing import IGNORE_INDEX  # noqa: E402
from brimful.collate.dialects import DIALECTS  # noqa: E402
from brimful.collate.loss_torch import batch_loss_sum, batch_weight, global_sum, scale_for_ddp  # noqa: E402
from brimful.dynamic import Window, WindowBatches  # noqa: E402
from brimful.dynamic.request_sampler import RequestSampler  # noqa: E402
from brimful.dynamic.token_budget import SampleCount, TokenBudget  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.integrations.trainers import collator_for  # noqa: E402
from brimful.integrations.trainers.pack_sampler import PackSampler, ServedPacks  # noqa: E402
from brimful.media import MediaKind  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.media.families.qwen_audio import sound_tokens  # noqa: E402
from brimful.media.tokenized import ARRAY_KEYS  # noqa: E402
from brimful.serve.worker_loader import WorkerLoader  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from brimful.stream import LazyShardedDataset, PackingProducer, StreamLoader  # noqa: E402
from brimful.verify.models import tiny_media_model  # noqa: E402
from tests.flow.parity import run_ranks  # noqa: E402

TOKEN, NUM_TOKENS, LENGTH = 99, 4, 8
"""The placeholder, the number of it in each plain row, and the tokens of a row."""

KINDS: dict[str, dict[str, Any]] = {
    "Qwen-VL": {"pixel_values": (16, 12), "image_grid_thw": [[1, 4, 4]]},
    "video": {"pixel_values_videos": (16, 12), "video_grid_thw": [[1, 4, 4]], "second_per_grid_ts": [0.5]},
    "LLaVA": {"pixel_values": (1, 3, 4, 4)},
    "audio": {"input_features": (1, 2, 8), "feature_attention_mask": np.ones((1, 8), np.int64)},
}
"""Features of a plain row: numbers are drawn for shapes."""


def row_of(kind, number, form=list):
    """A row as processors make it: LLaVA has neither marks nor positions, and the odd ones of a mixture no medium."""
    ids = np.arange(10, 10 + LENGTH)
    if kind == "LLaVA and text" and number % 2 == 0:
        return {"input_ids": form(ids), "labels": form(ids)}
    name = kind.split(" and ")[0]
    is_medium = (np.arange(LENGTH) > 0) & (np.arange(LENGTH) <= NUM_TOKENS)
    ids = np.where(is_medium, TOKEN, ids)
    rng = np.random.default_rng(number)
    row = {"input_ids": form(ids), "labels": form(np.where(is_medium, IGNORE_INDEX, ids))}
    for key, value in KINDS[name].items():
        row[key] = rng.random(value, np.float32) if isinstance(value, tuple) else np.array(value)
    if name != "LLaVA":
        row["mm_token_type_ids"] = form(is_medium * {"Qwen-VL": 1, "video": 2, "audio": 3}[name])
        row["position_ids"] = np.tile(np.arange(LENGTH), (3, 1))
        row["loss_weights"], row["source_id"] = np.full(LENGTH, 1.0 + number), number % 2
    return row


@pytest.fixture(scope="module")
def home_of(small_qwen, tmp_path_factory):
    """Jobs of chats with a picture and a video each, and of chats with a sound."""
    kinds = pytest.importorskip("tests.flow.test_media_features_kinds", reason="videos and sounds need brimful[media]")

    def rows_of(family):
        for number in range(6):
            text = "?" * (1 + number)
            if family == "qwen2-audio":
                yield {"messages": kinds.turns("<audio>" + text), "audios": [kinds.sound(0.4, number)]}
            else:
                media = {"images": [kinds.png(56, 84, number)], "videos": [clip]}
                yield {"messages": kinds.turns("<image><video>" + text), **media}

    clip = kinds.clip("h264", num_frames=8, rate=4, size=(64, 64))

    @cache
    def home(family):
        made = kinds.Home(family, tmp_path_factory.mktemp("tail"), small_qwen)
        made.rows = list(rows_of(family))
        made.source = open_source(made.rows, media=True)
        made.samples = [made.encoder.encode(made.source[number]) for number in range(len(made.source))]
        made.capacity = 2 * max(map(len, made.samples))
        made.features = MediaFeatures(made.processor, family)
        make, known = made.features._maker.of, {}

        def remembered(medium, item):
            """Features of a medium, which is decoded once."""
            return known[medium.data] if medium.data in known else known.setdefault(medium.data, make(medium, item))

        made.features._maker.of = remembered
        made.tokens = {
            int(one.input_ids[item.start + item.runs[0]]) for one in made.samples for item in one.attachments
        }
        return made

    return home


class Case:
    """Packs, samples and streams of one kind, two samples in each pack, and the tokens that stand for its media."""

    def __init__(self, kind, home_of):
        self.kind, self.tokens, self.capacity, self.home = kind, {TOKEN}, 2 * LENGTH, None
        if kind in CHATS:
            self.home = home_of(CHATS[kind])
            self.tokens, self.capacity = self.home.tokens, self.home.capacity
        self.collator = PackCollator(media=self.home and self.home.features)
        self.packs, self.stream = cache(self._packs), cache(self._stream)

    def rows(self, count):
        """Rows, of chats as files hold them."""
        return (self.home.rows * count)[:count] if self.home else [row_of(self.kind, number) for number in range(count)]

    def samples(self, count):
        return (self.home.samples * count)[:count] if self.home else self.rows(count)

    def _packs(self, count):
        """Packs of rows that are wrapped; of chats in a store that holds features."""
        if not self.home:
            return PackedDataset.wrap(self.rows(2 * count), self.capacity, seed=None)
        self.home.source = open_source(self.rows(2 * count), media=True)
        return self.home.pack(f"{count} packs")

    def _stream(self, count):
        directory = self.home.folder / f"stream of {count}"
        options: Any = {"capacity": self.capacity, "lookahead": 2, "packs_per_shard": 2}
        PackingProducer(self.rows(2 * count), self.home.encoder, directory, **options).close()
        return directory

    def num_placeholders(self, batch):
        """Processors for the tokens of a batch, and for its features."""
        of_features = 0
        for item in batch.attached:
            sizes = [array.prod(axis=1) // 4 for key, array in item.arrays.items() if key.endswith("grid_thw")]
            if self.home and not sizes:
                sizes = [[sound_tokens(columns) for columns in item.arrays["feature_attention_mask"].sum(axis=-1)]]
            of_features += int(np.sum(sizes[0] if sizes else [NUM_TOKENS] * len(item.segments)))
        return int(np.isin(batch.input_ids, list(self.tokens)).sum()), of_features


def of_packs(case, name, collate, count, places, tail):
    """Micro-batches of each rank by the loaders of packs."""
    packs, (ranks, micro_batches, per_batch) = case.packs(count), places
    size = {"packs_per_micro_batch": per_batch, "micro_batches": micro_batches, "tail": tail}
    if name == "PackSampler":
        sampler = PackSampler(packs, dp_world_size=ranks, **size)
        loader = torch.utils.data.DataLoader(ServedPacks(packs), per_batch, sampler=sampler, collate_fn=collate)
        batches = list(loader)
        return [batches[rank::ranks] for rank in range(ranks)]
    loaders = [PackLoader(packs, collate, dp_rank=rank, dp_world_size=ranks, **size) for rank in range(ranks)]
    if name == "WorkerLoader":
        return [list(WorkerLoader(loader, num_workers=0)) for loader in loaders]
    if name == "RequestSampler":
        options = {"batch_size": None, "collate_fn": lambda batch: batch}
        samplers = map(RequestSampler, loaders)
        return [list(torch.utils.data.DataLoader(one.dataset, sampler=one, **options)) for one in samplers]
    return [list(loader) for loader in loaders]


def of_samples(case, name, collate, count, places, tail):
    """Micro-batches of each rank by the loaders that compose them."""
    samples, (ranks, micro_batches, per_batch) = case.samples(2 * count), places
    kind, source = name.split(" of ")
    capacity = case.capacity * per_batch
    batching: Any = {
        "budgets": TokenBudget(capacity, min_buffered=1),
        "counts": SampleCount(2 * per_batch),
        "windows": Window(capacity, size=2 * per_batch),
    }[kind]
    lengths = [len(one.input_ids if case.home else one["input_ids"]) for one in samples]
    options = {"micro_batches": micro_batches, "dp_world_size": ranks, "seed": None, "tail": tail}
    options["lengths"] = lengths if source == "indices" else None
    loader = WindowBatches if kind == "windows" else TokenBudgetBatches
    return [list(loader(samples, batching, collate, dp_rank=rank, **options)) for rank in range(ranks)]


def of_streams(case, name, collate, count, places, tail):
    """Micro-batches of each rank from the directory of a stream."""
    directory, (ranks, micro_batches, per_batch) = case.stream(count), places
    lanes = ranks * micro_batches * per_batch
    name, assign = name.split(" by ")
    if name == "LazyShardedDataset":
        packs = LazyShardedDataset(
            directory, lanes=lanes, assign=assign, num_packs=lanes * (2 * count + 1), beyond="pad"
        )
        batches = [collate([packs[n] for n in range(i, i + per_batch)]) for i in range(0, len(packs), per_batch)]
        return [batches[rank::ranks] for rank in range(ranks)]
    options = {"lanes": lanes, "assign": assign, "packs_per_micro_batch": per_batch, "dp_world_size": ranks}
    return [list(StreamLoader(directory, collate, dp_rank=rank, tail=tail, **options)) for rank in range(ranks)]


LOADERS = {
    **dict.fromkeys(["PackLoader", "PackSampler", "WorkerLoader", "RequestSampler"], of_packs),
    **{f"{kind} of {source}": of_samples for kind in ("budgets", "counts", "windows") for source in ("indices", "rows")},
    **{f"{name} by {assign}": of_streams for name in ("StreamLoader", "LazyShardedDataset") for assign in ("pack", "lane")},
}  # fmt: skip
CHATS = {"chats with films": "qwen2.5-vl", "chats with sounds": "qwen2-audio"}
CASES = [
    (kind, loader)
    for kind in [*KINDS, "LLaVA and text", *CHATS]
    for loader, serve in LOADERS.items()
    if kind in CHATS or serve is not of_streams
]


@pytest.fixture(scope="module")
def case_of(home_of):
    return cache(lambda kind: Case(kind, home_of))


def keys_of(batch):
    """What a model gets in addition to tokens."""
    extras = ("loss_weights", "source_ids", "rope_positions")
    return {
        *(name for item in batch.attached for name in item.arrays),
        *(n for n in extras if getattr(batch, n) is not None),
    }


@settings(max_examples=max(4, settings.default.max_examples // 10))
@given(
    count=st.integers(1, 5),
    places=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    tail=st.sampled_from(["pad", "pad", "drop", "repeat"]),
)
@example(count=3, places=(2, 1, 1), tail="pad")
def test_each_rank_gets_features_at_each_step(case_of, count, places, tail):
    """Whatever serves them: equal steps of equal keys, the features of all placeholders, and each sample once."""
    for kind, name in CASES:
        # A declared length has no tail, and only what is finished is repeated.
        if LOADERS[name] is not of_streams or tail == "pad" or (tail == "drop" and name.startswith("StreamLoader")):
            try:
                check_ranks(case_of(kind), name, count, places, tail)
            except AssertionError as error:
                raise AssertionError(f"{kind}, {name}: {error}") from error


def check_ranks(case, name, count, places, tail):
    try:
        ranks = LOADERS[name](case, name, lambda packs: case.collator.rows(packs)[0], count, places, tail)
    except SettingsError as error:
        if tail == "drop" and "do not fill one step" in error.message:
            return
        raise
    for step in zip(*ranks, strict=True):
        keys = [keys_of(batch) for batch in step]
        assert all(key == keys[0] for key in keys)
        assert keys[0]
        for batch in step:
            of_tokens, of_features = case.num_placeholders(batch)
            assert of_tokens == of_features > 0
            is_filler = np.repeat(batch.sample_ids < 0, np.diff(batch.cu_seqlens)[: batch.num_segments])
            assert (batch.labels[: len(is_filler)][is_filler] == IGNORE_INDEX).all()
            assert batch.num_loss_tokens or is_filler.all()
    served = Counter(sample for one in ranks for batch in one for sample in batch.sample_ids.tolist() if sample >= 0)
    assert tail == "drop" or set(served) == set(range(2 * count))
    assert tail == "repeat" or set(served.values()) <= {1}


def pixels_of(batch):
    return {name: array.tobytes() for item in batch.attached for name, array in item.arrays.items()}


@pytest.mark.parametrize("kind", [*KINDS, *CHATS])
def test_the_fill_pack_is_the_first_of_the_epoch_without_targets(case_of, kind):
    """Its tokens, positions and features bit for bit; in a worker process, and in the words of each dialect too."""
    case = case_of(kind)
    options = {"collate_fn": case.collator.rows, "dp_world_size": 2}
    loaders = [PackLoader(case.packs(3), dp_rank=rank, **options) for rank in range(2)]
    (first, *_), (_, filler) = ([rows for (rows,) in WorkerLoader(one, num_workers=1)] for one in loaders)
    assert (filler.num_loss_tokens, set(filler.sample_ids.tolist())) == (0, {-1})
    assert filler.input_ids.tolist() == first.input_ids.tolist()
    assert np.array_equal(filler.rope_positions, first.rope_positions)
    assert pixels_of(filler) == pixels_of(first) != {}
    for dialect in DIALECTS:
        collator = PackCollator(dialect=dialect, media=case.collator.media)
        said: list[Any] = []
        for pack in (case.packs(3)[0], case.packs(3)[0].without_loss()):
            try:
                said.append(ARRAY_KEYS & collator([pack]).keys())
            except CollateError as error:
                said.append(type(error))
        assert said[0] == said[1], dialect


RANKS, EPOCHS = 2, 2


def new_model():
    torch.manual_seed(0)
    family = open_family("qwen2.5-vl")
    return tiny_media_model(family.settings, {MediaKind.IMAGE: TOKEN}, 1_100).train()


def picture_row(number):
    """A row of Qwen2.5-VL: a picture of 4 x 6 patches in six tokens, and a text."""
    length = 9 + number % 3
    types = ((np.arange(length) > 0) & (np.arange(length) < 7)).astype(np.int64)
    rng = np.random.default_rng(number)
    ids = np.where(types, TOKEN, rng.integers(10, 90, length))
    return {
        "input_ids": ids,
        "labels": np.where(types, IGNORE_INDEX, ids),
        "mm_token_type_ids": types,
        "position_ids": np.tile(np.arange(length), (3, 1)),
        "pixel_values": rng.normal(size=(24, 1_176)).astype(np.float32),
        "image_grid_thw": np.array([[1, 4, 6]]),
    }


def train(rank, ranks, micro_batches):
    """Weights after two epochs of five packs in steps of four, in the order of the ranks that take them."""
    packs = PackedDataset.wrap([picture_row(number) for number in range(10)], 22, seed=None)
    assert len(packs) == 5
    model = new_model()
    collator = collator_for(model, device="cpu", quiet=True)
    forward = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = PackLoader(packs, collator, dp_rank=rank, dp_world_size=ranks, micro_batches=micro_batches)
    for _ in range(EPOCHS):
        batches = iter(loader)
        while step := list(itertools.islice(batches, micro_batches)):
            count = sum(batch_weight(batch) for batch in step)
            denominator = global_sum([count]) if ranks > 1 else float(count)
            for number, batch in enumerate(step):
                if ranks > 1:
                    forward.require_backward_grad_sync = number == len(step) - 1
                total = batch_loss_sum(forward(**{**batch, "labels": None}).logits, batch)
                scale_for_ddp(total, denominator=denominator, dp_world_size=ranks).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


@pytest.mark.long
def test_two_ranks_train_through_the_last_step_as_one_process(tmp_path):
    """Of four packs in a step the last has one: DDP waits for the gradients of the tower on the rank without."""
    run_ranks(__name__, tmp_path, RANKS)
    expected = train(0, 1, 2 * RANKS)
    begin = {name: value.detach().numpy() for name, value in new_model().state_dict().items()}
    moved = {name for name in begin if np.abs(expected[name] - begin[name]).max() > 1e-4}
    assert any("visual" in name for name in moved), "the tower learnt nothing, so nothing is compared"
    for number in range(RANKS):
        trained = np.load(tmp_path / f"{number}.npz")
        assert all(np.abs(trained[name] - expected[name]).max() < 1e-5 for name in expected)


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=rendezvous, timeout=limit)
    np.savez(folder / f"{rank}.npz", **train(rank, RANKS, 2))
    torch.distributed.barrier()
    # Gloo's threads sometimes abort a process that takes its interpreter down while they live.
    os._exit(0)
