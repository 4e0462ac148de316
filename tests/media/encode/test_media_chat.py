"""Chats with pictures have the tokens of the model's processor, by the headers of the pictures alone."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from brimful.encode.chat import ChatEncoder
from brimful.encode.choose import encoder_for
from brimful.errors import BadSampleError, SettingsError
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.sources import open_source

MAX_PIXELS = 200_000


@pytest.fixture(scope="module")
def encoder(small_qwen):
    family = open_family("qwen2-vl", small_qwen, max_pixels=MAX_PIXELS)
    return MediaChatEncoder(small_qwen, family, chat_template=small_qwen / "chat_template_vl.jinja")


@pytest.fixture(scope="module")
def processor_ids(small_qwen):
    """Token ids as ``Qwen2VLProcessor`` makes them: the processor itself needs torchvision for its part of videos."""
    from transformers import AutoTokenizer, Qwen2VLImageProcessorPil
    from transformers.image_utils import load_image

    tokenizer = AutoTokenizer.from_pretrained(small_qwen)
    image_processor = Qwen2VLImageProcessorPil.from_pretrained(small_qwen, max_pixels=MAX_PIXELS)
    template = (small_qwen / "chat_template_vl.jinja").read_text()

    def ids(sample):
        text = tokenizer.apply_chat_template(sample.messages, chat_template=template, tokenize=False)
        pictures = [load_image(Image.open(io.BytesIO(medium.read()))) for medium in sample.attachments]
        grids = image_processor(images=pictures, return_tensors="np")["image_grid_thw"] if pictures else []
        for grid in grids:
            text = text.replace("<|image_pad|>", "<|placeholder|>" * int(np.prod(grid) // 4), 1)
        return tokenizer(text.replace("<|placeholder|>", "<|image_pad|>"))["input_ids"]

    return ids


def png(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def chat(*turns, **columns):
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": role, "content": content} for role, content in zip(roles, turns, strict=False)]
    return {"messages": messages, **columns}


def sample_of(row):
    return open_source([row], media=True)[0]


ROWS = [
    chat("<image>What is it?", "A square.", images=[png(100, 100)]),
    chat("What is it?<image>", "A line.", images=[png(2000, 20)]),
    chat("<image><image>", "Two.", images=[png(40, 60), png(700, 500)]),
    chat("a<image>b", "c", "<image2>d<image>", "e", images=[png(40, 60), png(56, 56)]),
    chat("Hi", "Hello."),
    chat("<image>", "Seen <image>.", images=[png(100, 100), png(28, 28)]),
]


@pytest.mark.parametrize("row", ROWS)
def test_tokens_are_those_of_the_processor(encoder, processor_ids, row):
    """Without it a plan counts other tokens than a model is given."""
    sample = sample_of(row)
    assert encoder.encode(sample).input_ids.tolist() == processor_ids(sample)


def test_real_chats_and_their_pictures(encoder, processor_ids, data_dir):
    """Photographs as a camera wrote them, several in a chat, the same one twice."""
    source = open_source(data_dir / "multimodal" / "llama_factory_demo" / "mllm_demo.json", media=True)
    for sample in map(source.__getitem__, range(len(source))):
        assert encoder.encode(sample).input_ids.tolist() == processor_ids(sample)


def test_measured_lengths_are_those_of_the_tokens(encoder):
    """The law of every encoder: lengths are never estimated."""
    samples = [sample_of(row) for row in ROWS]
    lengths, errors = encoder.lengths(samples)
    assert errors == []
    assert lengths.tolist() == [len(encoder.encode(sample)) for sample in samples]


def test_media_know_their_tokens(encoder):
    """The collator finds the tokens of a picture by these numbers."""
    encoded = encoder.encode(sample_of(ROWS[2]))
    pad = 10_268
    for item in encoded.attachments:
        tokens = encoded.input_ids[item.start : item.start + item.length]
        assert (tokens == pad).all()
        assert encoded.input_ids[item.start - 1] != pad
        assert encoded.input_ids[item.start + item.length] != pad
        assert item.num_patches == 4 * item.length == np.prod(item.grid)
    assert np.count_nonzero(encoded.input_ids == pad) == sum(item.length for item in encoded.attachments)


def test_targets_are_the_answers_and_no_picture(encoder):
    """Also of an answer that holds a picture: its tokens stand for features, which are not predicted."""
    encoded = encoder.encode(sample_of(ROWS[5]))
    targets = encoder.decode(encoded.input_ids[encoded.loss_mask].tolist())
    assert targets == "Seen <|vision_start|><|vision_end|>.<|im_end|>"


def test_a_text_has_the_tokens_of_a_chat(encoder, small_qwen):
    """Texts among pictures go the way of all texts."""
    plain = ChatEncoder(small_qwen, chat_template=small_qwen / "chat_template_vl.jinja")
    sample = sample_of(ROWS[4])
    ours, theirs = encoder.encode(sample), plain.encode(sample)
    assert ours.input_ids.tolist() == theirs.input_ids.tolist()
    assert ours.loss_mask.tolist() == theirs.loss_mask.tolist()


def test_budgets_of_media(encoder):
    """Packs are limited by what the vision tower gets, too."""
    assert encoder.budgets == ("patches", "images", "frames", "patch_blocks")
    sizes = encoder.attachment_sizes(encoder.encode(sample_of(ROWS[2])).attachments)
    assert (sizes["images"], sizes["frames"], sizes["audio_frames"]) == (2, 0, 0)
    assert sizes["patches"] == sum(int(np.prod(item.grid)) for item in encoder.encode(sample_of(ROWS[2])).attachments)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (chat("<image>", "a", images=[b""]), "image '': "),
        (chat("<image>", "a", images=["no.png"]), "image 'no.png': does not exist"),
        (chat("<image>", "a", images=[png(1, 300)]), "image '': "),
    ],
)
def test_a_picture_that_cannot_be_measured_is_its_samples_fault(encoder, row, reason):
    """The sample is named with its picture, and the others of its batch are encoded."""
    good, bad = sample_of(ROWS[0]), sample_of(row)
    first, second, third = encoder.encode_batch([good, bad, good])
    assert isinstance(second, BadSampleError)
    assert reason in str(second)
    assert len(first) == len(third) > 0


def test_an_encoder_of_texts_refuses_media(small_qwen):
    """Without it a question would be trained without its picture."""
    encoder = ChatEncoder(small_qwen, chat_template=small_qwen / "chat_template_vl.jinja")
    with pytest.raises(BadSampleError, match="holds media, which takes the processor of a model"):
        encoder.encode(sample_of(ROWS[0]))


def test_a_template_of_texts_is_refused(small_qwen):
    """Before anything is measured, with the way out."""
    encoder = MediaChatEncoder(small_qwen, open_family("qwen2-vl"))
    with pytest.raises(SettingsError, match=r"the chat template cannot write media .* name the template of the model"):
        encoder.encode(sample_of(ROWS[0]))


@pytest.mark.parametrize(
    ("written", "text", "reason"),
    [
        ("", "part['text']", r"does not write <\|image_pad\|> or <\|video_pad\|> for a medium: name the template"),
        ("<|image_pad|><|image_pad|>", "part['text']", r"does not write <\|image_pad\|> or"),
        ("<|image_pad|>", "part['text'] | trim", "changes texts next to media"),
    ],
)
def test_a_template_of_other_media_is_refused(small_qwen, written, text, reason):
    """None, twice, or with other blanks around: a model would see another conversation than is counted."""
    template = (
        "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}WRITTEN{% else %}{{ TEXT }}{% endif %}"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    template = template.replace("WRITTEN", written).replace("TEXT", text)
    encoder = MediaChatEncoder(small_qwen, open_family("qwen2-vl"), chat_template=template, train_on="all")
    with pytest.raises(SettingsError, match=reason):
        encoder.encode(sample_of(chat("<image> What?", "A square.", images=[png(100, 100)])))


def test_limits_of_pixels_belong_to_the_fingerprint(small_qwen):
    """Lengths of one limit are wrong for another."""
    template = small_qwen / "chat_template_vl.jinja"
    families = [open_family("qwen2-vl", small_qwen, max_pixels=limit) for limit in (100_000, 100_001)]
    one, other = (MediaChatEncoder(small_qwen, family, chat_template=template) for family in families)
    assert one.length_fingerprint != other.length_fingerprint
    assert json.dumps(one.length_settings)


def test_the_choice_of_encoders_takes_a_family(small_qwen):
    """As the command line asks for it."""
    source = open_source(ROWS, media=True)
    family = open_family("qwen2-vl", small_qwen)
    assert isinstance(encoder_for(source, small_qwen, media=family), MediaChatEncoder)
    with pytest.raises(SettingsError, match="media are packed with mode"):
        encoder_for(source, small_qwen, media=family, mode="text")
