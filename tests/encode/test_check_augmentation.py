"""A transform that changes a length is named before anything is measured."""

import io
import json
from dataclasses import replace

import pytest

from brimful import pack_dataset
from brimful.encode.encoded_samples import check_augmentation
from brimful.errors import AugmentationError, SettingsError, WrongTypeError
from brimful.media.augmentation import on_pictures
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.families import open_family
from brimful.sources import open_source
from brimful.testing.toys import toy_chat_encoder, toy_media_tokenizer

TEXTS = [{"text": "abc"}, {"text": "de"}, {"text": "fghi"}]


def shout(sample):
    return replace(sample, text=sample.text.upper())


class Stutter:
    """Repeats the first letter of every second text that it is given."""

    calls = 0

    def __call__(self, sample):
        self.calls += 1
        return sample if self.calls % 2 else replace(sample, text=sample.text[0] + sample.text)


def test_transforms_that_keep_lengths_pass():
    """With the number of samples that each changed: a transform that changed none proves nothing."""
    source = open_source(TEXTS)
    found = check_augmentation(source, toy_chat_encoder(), [shout, lambda sample: sample, shout], samples=2)
    assert found == {"shout": 2, "<lambda>": 0, "shout (transform 2)": 2}


def test_the_transform_that_changes_a_length_is_named():
    """It is random: the first draw is right. Only two draws of a sample tell."""
    source = open_source(TEXTS)
    with pytest.raises(
        AugmentationError, match=r"^Stutter changes lengths: .*\(sample 0\) takes 3 tokens as it is, and 4 after"
    ):
        check_augmentation(source, toy_chat_encoder(), [shout, Stutter()])
    assert check_augmentation(source, toy_chat_encoder(), [Stutter()], samples=1, draws=1) == {"Stutter": 0}


def test_what_is_no_sample_is_refused():
    source = open_source(TEXTS)
    with pytest.raises(AugmentationError, match=r"<lambda> applied to .* returns str"):
        check_augmentation(source, toy_chat_encoder(), [lambda sample: sample.text])  # type: ignore[return-value, list-item]
    with pytest.raises(AugmentationError, match=r"cannot be encoded: asks to be refused"):
        check_augmentation(source, toy_chat_encoder(), [lambda sample: replace(sample, text="refuse me")])
    with pytest.raises(WrongTypeError, match=r"transforms\[0\]"):
        check_augmentation(source, toy_chat_encoder(), ["flip"])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match="draws must be a whole number of at least 1 and is 0"):
        check_augmentation(source, toy_chat_encoder(), [shout], draws=0)


def test_pictures_among_texts(tmp_path):
    """One row in ten has a picture: those are probed first. A mirror keeps its size, a crop does not."""
    pytest.importorskip("transformers", reason="a tokenizer of Transformers")
    image_ops = pytest.importorskip("PIL.ImageOps", reason="pictures need the extra brimful[media]")

    file = io.BytesIO()
    picture = image_ops.expand(image_ops.Image.new("RGB", (82, 56)), (2, 0, 0, 0), "white")
    picture.save(file, "PNG")

    def row(number):
        has_picture = number % 10 == 7
        turns = [{"role": "user", "content": "<image>a" if has_picture else "a"}, {"role": "assistant", "content": "b"}]
        return {"messages": turns, **({"images": [file.getvalue()]} if has_picture else {})}

    source = open_source([row(number) for number in range(40)], media=True)
    encoder = MediaChatEncoder(toy_media_tokenizer(), open_family("qwen2-vl"))
    mirror = on_pictures(image_ops.mirror)
    assert check_augmentation(source, encoder, [mirror]) == {"mirror": 4}

    def crop(picture):
        return picture.crop((0, 0, 56, 56))

    with pytest.raises(AugmentationError, match=r"crop changes lengths: .*\(sample 7\) takes \d+ tokens as it is"):
        check_augmentation(source, encoder, [mirror, on_pictures(crop)])


def test_packing_probes_before_it_measures(tmp_path):
    """Packs hold the samples as they are, so the rest stays as it is."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, TEXTS)))
    with pytest.raises(AugmentationError, match="Stutter changes lengths"):
        pack_dataset(
            rows, toy_chat_encoder(), tmp_path / "packs", capacity=8, transforms=[Stutter()], cache_dir=tmp_path
        )
    assert not (tmp_path / "packs" / "lengths.arrow").exists()
    summary = pack_dataset(
        rows, toy_chat_encoder(), tmp_path / "packs", capacity=8, transforms=[shout], cache_dir=tmp_path
    )
    assert summary.plan.ledger.samples_packed == 3
