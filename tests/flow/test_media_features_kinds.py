"""Ready features of videos and sounds: bit for bit as made when a batch is read, whatever stopped the job."""

import json
import multiprocessing
import os
import pickle
import re
import signal
from typing import Any

import pytest

pytest.importorskip("av", reason="videos need the extra brimful[media]")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("soundfile")

from brimful import open_packs, pack_dataset  # noqa: E402
from brimful.base.progress import Progress  # noqa: E402
from brimful.encode.tokenizer import Tokenizer  # noqa: E402
from brimful.errors import SettingsError, StoreFullError  # noqa: E402
from brimful.media import BadMediumError, MediaKind, Medium  # noqa: E402
from brimful.media.collate import MediaFeatures  # noqa: E402
from brimful.media.encode.media_chat import MediaChatEncoder  # noqa: E402
from brimful.media.families import open_family  # noqa: E402
from brimful.media.feature_block import from_block, restored  # noqa: E402
from brimful.media.feature_maker import FeatureMaker  # noqa: E402
from brimful.plan import PlanSettings  # noqa: E402
from brimful.report.store_check import check_store  # noqa: E402
from brimful.sources import open_source  # noqa: E402
from tests.faults.planted import die_at, full_disk  # noqa: E402
from tests.flow.parity import names_of_equal_extras  # noqa: E402
from tests.flow.test_media import png  # noqa: E402
from tests.flow.test_media_families import sound  # noqa: E402
from tests.marks import long_but  # noqa: E402
from tests.media.clips import clip  # noqa: E402
from tests.store.stores import tree  # noqa: E402
from tests.verify.media_packs import turns  # noqa: E402

VIDEOS = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]

SOUNDS = ["qwen2-audio", "qwen2.5-omni"]

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)

ADDED = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|vision_bos|>", "<|vision_eos|>"]


def processor_of(family, folder):
    """Directory of a processor: of videos with few pixels, of sounds of at most four seconds."""
    folder.mkdir(parents=True)
    pictures = {"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 20_000, "merge_size": 2}
    pictures |= {"patch_size": 16 if family == "qwen3-vl" else 14, "temporal_patch_size": 2}
    sounds = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 4}
    names = {"qwen2-audio": "Qwen2AudioProcessor", "qwen2.5-omni": "Qwen2_5OmniProcessor"}
    settings = {**pictures, **(sounds if family in SOUNDS else {})}
    if family in names:
        settings["processor_class"] = names[family]
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    limit = 60_000 if family == "qwen3-vl" else 8_000
    video = {"do_sample_frames": True, "fps": 3, "size": {"shortest_edge": 3_000, "longest_edge": limit}}
    if family in VIDEOS:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return folder


def rows_of(family):
    """A text, each medium twice, two in one turn; pictures where the family has some. All in rows."""
    picture = {"images": [png(90, 60, 1)]}
    if family in VIDEOS:
        slow, fast = clip("h264", num_frames=40, rate=20, size=(64, 96)), clip(num_frames=25, rate=10, size=(112, 64))
        return [
            {"messages": turns("Hello.")},
            {"messages": turns("<video>What happens?"), "videos": [slow]},
            {"messages": turns("<video>And <image> and <video>?"), "videos": [fast, slow], **picture},
            {"messages": turns("<video>Again?"), "videos": [fast]},
        ]
    # Of the last the spectrogram is full to its end.
    short, longer, full = sound(0.7, 0), sound(2.5, 1), sound(4, 2)
    rows = [
        {"messages": turns("Hello.")},
        {"messages": turns("<audio>What is said?"), "audios": [short]},
        {"messages": turns("<audio>Or this?<audio>"), "audios": [longer, short]},
        {"messages": turns("<audio>Again?"), "audios": [full]},
    ]
    return (
        [*rows, {"messages": turns("<image>and<audio>?"), "audios": [full], **picture}]
        if family == "qwen2.5-omni"
        else rows
    )


class Home:
    """Everything that jobs of one family share."""

    def __init__(self, family, folder, tokenizer_folder):
        self.family, self.folder = family, folder
        self.processor = processor_of(family, folder / "processor")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
        template = tokenizer_folder / "chat_template_vl.jinja"
        if family in SOUNDS:
            tokenizer.add_tokens(ADDED, special_tokens=True)
            template = TEMPLATE
        slow = Tokenizer(tokenizer, fast=False)  # its fast form is compared elsewhere, for seconds
        self.encoder = MediaChatEncoder(slow, open_family(family, self.processor), chat_template=template)
        self.source = open_source(rows_of(family), media=True)
        # As long as the longest sample, so that there are several packs, and with them shards.
        self.capacity = max(
            len(self.encoder.encode(sample)) for sample in map(self.source.__getitem__, range(len(self.source)))
        )

    def pack(self, name, storage="features", **options):
        options = {"num_proc": 1, "cache_dir": self.folder / "cache", "shard_bytes": 1, **options}
        settings = PlanSettings(capacity=self.capacity)
        pack_dataset(self.source, self.encoder, self.folder / name, settings, media_storage=storage, **options)
        return open_packs(self.folder / name)


@pytest.fixture(scope="module")
def home_of(small_qwen, tmp_path_factory):
    """Homes by family, made once."""
    homes = {}

    def home(family):
        if family not in homes:
            homes[family] = Home(family, tmp_path_factory.mktemp("kinds"), small_qwen)
        return homes[family]

    return home


@pytest.mark.parametrize("family", VIDEOS + SOUNDS)
def test_features_are_those_that_are_made_when_read(home_of, family):
    """Without the processor and the bytes: the same names, dtypes and bits of arrays, and the same positions."""
    home = home_of(family)
    made, stored = home.pack("bytes", "bytes"), home.pack("features")
    read, make = MediaFeatures.of_packs(stored), MediaFeatures.of_packs(made, home.processor)
    seen = set()
    for one, other in zip(made, stored, strict=True):
        extras = read(other)
        assert (extras.rope_positions is None) == (family == "qwen2-audio")
        seen |= names_of_equal_extras(extras, make(one))
    names = (
        {"pixel_values_videos", "video_grid_thw"} if family in VIDEOS else {"input_features", "feature_attention_mask"}
    )
    assert names | ({"second_per_grid_ts"} if family == "qwen2.5-vl" else set()) <= seen
    assert check_store(stored.directory).media == sum(len(pack.attachments) for pack in made)
    with pytest.raises(BadMediumError, match=r"as features.*media_storage"):
        next(item for pack in stored for item in pack.attachments).read()


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen2-audio"])
def test_the_size_on_disk_is_said_before_anything_is_written(home_of, family):
    """To the byte, from headers alone."""
    home, said = home_of(family), []

    class Listening(Progress):
        def say(self, text):
            said.append((text, (home.folder / "said" / "shards").exists()))

    packs = home.pack("said", progress=Listening())
    ((line, is_begun),) = [(text, is_begun) for text, is_begun in said if text.startswith("media:")]
    assert not is_begun
    match = re.search(r"(\d) distinct ones stored as features, ([\d.]+) (k|M)B on disk \([\d.,]+ × their bytes\)", line)
    assert match is not None, line
    files = [path.stat().st_size for path in (home.folder / "said" / "media").iterdir()]
    size = sum(files) - 1024 * len(files)  # the end of each tar
    assert f"{size / {'k': 1e3, 'M': 1e6}[match[3]]:.3g}" == f"{float(match[2]):.3g}"
    assert packs.census.num_stored == int(match[1]) == 3


def test_padding_of_spectrograms_takes_no_room(home_of):
    """A sound of 0.7 seconds has 70 columns of 400; the 300 seconds that Qwen2.5-Omni pads to would be 15 MB."""
    home = home_of("qwen2-audio")
    maker = FeatureMaker(home.processor, home.encoder.family)
    item = home.encoder.encode(home.source[1]).attachments[0]
    medium = Medium(MediaKind.AUDIO, "a", data=sound(0.7, 0))
    block = maker.block(medium, item, "0" * 32)
    stored, _ = from_block(block)
    assert item.num_mel_frames == 70
    assert stored["input_features"].shape == (1, 128, 72)
    assert restored(stored, item)["input_features"].tobytes() == maker.of(medium, item)["input_features"].tobytes()
    assert len(block) < 128 * 72 * 4 + 1000


def test_a_spectrogram_that_is_made_anew_each_time_is_refused(home_of, monkeypatch):
    """A feature extractor that adds noise gives other columns after the end too: what is restored would not be what was made."""
    home = home_of("qwen2-audio")
    maker = FeatureMaker(home.processor, home.encoder.family)
    sounds: Any = maker._makers[MediaKind.AUDIO]
    monkeypatch.setattr(sounds.processor, "dither", 1e-3)
    monkeypatch.setattr(FeatureMaker, "_makers", maker._makers)
    with pytest.raises(SettingsError, match=r"sample \d.*adds noise \(dither\): choose media_storage=.bytes.$"):
        home.pack("dither")


def killed_job(home, name, point, occurrence):
    torch.set_num_threads(1)  # threads of the parent are not in this process
    die_at(point, occurrence)
    home.pack(name)
    os._exit(0)


@pytest.mark.parametrize("family", long_but({"qwen2.5-vl"}, ["qwen2.5-vl", "qwen2-audio"]))
def test_killed_while_features_are_written_the_same_call_finishes(home_of, family):
    """SIGKILL within a container, after it, and on the way of the recovery: the same bytes as without."""
    home = home_of(family)
    home.pack("whole")
    # Memory of MKL, which transforms sounds, may be of use to no forked process: that waits in it for ever.
    context: Any = multiprocessing.get_context("spawn" if family in SOUNDS else "fork")
    for point, occurrence in (("after-media", 2), ("mid-write", 3), ("after-media", 1)):
        process = context.Process(target=killed_job, args=(home, "killed", point, occurrence))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the fault was not hit: the test proves nothing"
    home.pack("killed")
    assert tree(home.folder / "killed") == tree(home.folder / "whole")
    assert not (home.folder / "killed" / "tmp").exists()


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen2-audio"])
def test_shards_are_written_in_any_order_anywhere(home_of, family, monkeypatch):
    """The last first, by makers that were sent to another process: every byte the same."""
    home = home_of(family)
    home.pack("whole")

    def backwards(function, tasks, *, context, **_options):
        for task in reversed(tasks):
            yield task, function(*pickle.loads(pickle.dumps((context, task))))

    monkeypatch.setattr("brimful.store.writing.run_tasks", backwards)
    home.pack("backwards")
    assert tree(home.folder / "backwards") == tree(home.folder / "whole")


@pytest.mark.long  # two processes that load Transformers and PyTorch
@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen2-audio"])
def test_processes_write_the_bytes_of_one(home_of, family):
    """Each has its own decoders, threads and processors."""
    home = home_of(family)
    home.pack("whole")
    home.pack("processes", num_proc=2, cache_dir=home.folder / "other_cache")
    assert tree(home.folder / "processes") == tree(home.folder / "whole")


def test_a_full_disk_names_the_file_and_loses_nothing(home_of):
    """Wherever in a container the disk is full; the same call goes on, and ends with the same bytes."""
    home = home_of("qwen2.5-vl")
    home.pack("whole")
    media = sorted((home.folder / "whole" / "media").iterdir())
    assert len(media) > 1
    # Below the size of each, for shards are written side by side, in any order.
    smallest = min(path.stat().st_size for path in media)
    message = r"no space left while writing .*full/media/0000000\d.* nothing that was committed is lost"
    for room in (smallest // 4, smallest // 3, smallest // 2):
        with full_disk(after_bytes=room), pytest.raises(StoreFullError, match=message):
            home.pack("full")
    home.pack("full")
    assert tree(home.folder / "full") == tree(home.folder / "whole")
