"""Whole real sets of pictures, clips and sounds by the command: each sample once, as long as measured, its media byte for byte."""

import gzip
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("av")

from brimful import open_packs
from brimful.encode.tokenizer import Tokenizer
from brimful.measure import LengthTable
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.plan import Plan
from brimful.report.store_check import check_store
from brimful.sources import open_source
from tests.cli.tools import outcome, run
from tests.flow.test_media_audio import AUDIO_TOKENS, TEMPLATE
from tests.verify.media_packs import turns

pytestmark = pytest.mark.filterwarnings("ignore")

DEMO = "multimodal/llama_factory_demo"
QWEN_VIDEO = {
    "do_sample_frames": True,
    "fps": 2,
    "min_frames": 4,
    "max_frames": 16,
    "size": {"shortest_edge": 12_544, "longest_edge": 50_176},
}


def exams(data_dir, folder):
    """Questions about one picture with options and long answers; those whose picture is shipped."""
    with gzip.open(data_dir / "multimodal/mathvision/mathvision.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["image_shipped"]]
    with open(folder / "exams.jsonl", "w", encoding="utf-8") as file:
        for row in rows:
            question = "<image>" + row["question"].replace("<", "(") + "\n" + "\n".join(row["options"])
            chat = {"messages": turns(question, row["response_qwen_vl_max"] or row["answer"]), "images": [row["image"]]}
            file.write(json.dumps(chat) + "\n")
    return [folder / "exams.jsonl"]


def at(place, *names):
    """Files as they are shipped."""
    return lambda data_dir, folder: [data_dir / place / name for name in names]


def vision(folder, tokenizer):
    """A processor of Qwen with the published sizes, and clips of a few frames."""
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((tokenizer / name).read_bytes())
    (folder / "video_preprocessor_config.json").write_text(json.dumps(QWEN_VIDEO))
    return tokenizer / "chat_template_vl.jinja"


def hearing(folder, tokenizer):
    """A processor of Qwen2-Audio as it is published: 30 seconds, 128 bands."""
    import transformers

    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
    loaded.add_tokens(AUDIO_TOKENS, special_tokens=True)
    loaded.save_pretrained(folder)
    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "chunk_length": 30}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "processor_class": "Qwen2AudioProcessor"}))
    (folder / "template.jinja").write_text(TEMPLATE)
    return folder / "template.jinja"


COCO = "multimodal/coco"

SETS = {
    "exams": (exams, "multimodal/mathvision", vision, "qwen2-vl", 16_384, (), 321, 321),
    "captions": (at(COCO, "coco.jsonl"), COCO, vision, "qwen2.5-vl", 2_048, (), 43, 43),
    "boxes": (at(COCO, "coco.jsonl"), COCO, vision, "qwen2-vl", 4_096, ("--format", "detection"), 43, 43),
    "pictures and clips": (at(DEMO, "mllm_demo.json", "mllm_video_demo.json"), DEMO, vision, "qwen2.5-vl", 4_096, (), 9, 11),
    "sounds": (at(DEMO, "mllm_audio_demo.json"), DEMO, hearing, "qwen2-audio", 2_048, (), 3, 3),
    "speech": (at("audio", "audio.jsonl"), "audio", hearing, "qwen2-audio", 2_048, ("--on-bad-sample", "skip"), 29, 27),
}  # fmt: skip
"""Rows, place of their media, processor, family, capacity, options, rows in all, and media of those that are packed."""

REJECTED = {"speech": {21: "'text' is empty", 27: "'text' is empty"}}
"""Rows that say nothing, by their index."""

SHORT = [
    ("exams", 4, "references"),
    ("captions", 3, "bytes"),
    ("pictures and clips", 2, "references"),
    ("speech", 2, "bytes"),
]
"""What `make test` looks at; `make test-all` looks at all rows, in both forms."""

WHOLE = [pytest.param(name, None, form, marks=pytest.mark.long) for name in SETS for form in ("references", "bytes")]


@pytest.fixture(scope="module")
def processors(small_qwen, tmp_path_factory):
    """Directories of processors and their templates, made once."""
    made = {}
    for maker in (vision, hearing):
        folder = tmp_path_factory.mktemp("processor")
        made[maker] = folder, maker(folder, small_qwen)
    return made


@pytest.mark.parametrize(("name", "count", "storage"), [*SHORT, *WHOLE])
def test_each_sample_once_with_the_bytes_of_its_media(name, count, storage, data_dir, processors, tmp_path):
    """Tokens are the encoder's on the row alone and of the processor on decoded media; the packs hold no more."""
    rows, place, maker, family, capacity, options, num_samples, num_media = SETS[name]
    processor, template = processors[maker]
    files, media_dir = rows(data_dir, tmp_path), data_dir / place
    out = tmp_path / "packs"
    # Of a tokenizer with tokens of its own, the fast form would be compared first: for seconds, and elsewhere.
    fast = ("--no-fast",) if count is not None and maker is hearing else ()
    limits = () if count is None else ("--max-samples", count)
    line = ["pack", *files, "-o", out, "--processor", processor, "--encoder", family, "--chat-template", template]
    run(
        *line,
        "--media-dir",
        media_dir,
        "--max-length",
        capacity,
        "--media",
        storage,
        *limits,
        *options,
        *fast,
        "--quiet",
    )

    store, table, plan = open_packs(out), LengthTable.open(out / "lengths.arrow"), Plan.open(out / "plan.arrow")
    row_format = "detection" if "detection" in options else None
    source = open_source(files, media_dir=media_dir, max_samples=count, format=row_format)
    assert len(source) == (num_samples if count is None else count)
    encoder = MediaChatEncoder(Tokenizer(processor, fast=False), open_family(family, processor), chat_template=template)
    assert encoder.family.settings == store.attachment_settings
    reference = encoder.attachment_reference
    assert reference.obstacle == ""
    seen, contents, media = [], set(), 0
    for pack in store:
        for segment, sample_id in enumerate(pack.sample_ids.tolist()):
            seen.append(sample_id)
            sample, (begin, end) = source[sample_id], pack.cu_seqlens[segment : segment + 2].tolist()
            alone = encoder.encode(sample)
            assert table.tokens[sample_id] == len(alone) == end - begin
            assert pack.input_ids[begin:end].tolist() == alone.input_ids.tolist()
            assert pack.loss_mask[begin + 1 : end].tolist() == alone.loss_mask[1:].tolist()
            if storage == "references":  # the same tokens, whatever is stored
                assert reference.difference(sample, int(table.tokens[sample_id])) == ""
            items = [item for item in pack.attachments if item.segment == segment]
            assert [item.start - begin for item in items] == [item.start for item in alone.attachments]
            assert [item.medium.name for item in items] == [medium.name for medium in sample.attachments]
            for item in items:
                content = (media_dir / item.medium.name).read_bytes()
                assert item.read() == content
                contents.add(content)
            media += len(items)
    rejected = REJECTED.get(name, {}) if count is None else {}
    assert sorted(seen) == [index for index in range(len(source)) if index not in rejected]
    if rejected:
        lines = [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]
        assert {line["sample_id"]: line["reason"] for line in lines} == rejected
    checked = check_store(out, plan=plan)
    assert (checked.samples, checked.media) == (len(seen), media)
    if count is None:
        assert media == num_media
    if storage == "bytes":  # complete by itself, each content once
        assert store.census.num_stored == len(contents)
        moved = open_packs(out.rename(tmp_path / "moved"), media_root=tmp_path / "nowhere")
        assert {item.read() for pack in moved for item in pack.attachments} == contents
        out = tmp_path / "moved"
    if count is None:
        result = outcome("verify", out, "--processor", processor, "--attention", "sdpa", "--json")[1]
        findings = {finding["check"]: finding["status"] for finding in json.loads(result)["findings"]}
        # Qwen2-Audio of Transformers ignores num_items_in_batch: found here, and no fault of the packs.
        right = {check for check, value in findings.items() if value == "PASS"}
        assert findings.keys() - right == ({"weights"} if family == "qwen2-audio" else set()), result
        assert {"media", "isolation", "logits", "loss", "gradients"} <= right
