"""Media of a row come to the place of their mark, or the row is refused by name."""

import base64
import os

import pytest

from brimful.errors import BadSampleError
from brimful.media import MediaKind
from brimful.sources import open_source


def read(row, **options):
    (result,) = open_source([row], **{"media": True, **options}).read(0, 1)
    return result


def refused(row, **options):
    error = read(row, **options)
    assert isinstance(error, BadSampleError)
    return str(error).removeprefix("memory[0] (sample 0): ")


def chat(content, **columns):
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}], **columns}


TEXT, IMAGE = {"type": "text", "text": "Who?"}, {"type": "image"}


@pytest.mark.parametrize(
    "row",
    [
        chat("<image>Who?", images=["a.jpg"]),
        chat("<image>Who?", image="a.jpg"),
        chat("<image1>Who?", image_path="a.jpg"),
        chat([IMAGE, TEXT], images=["a.jpg"]),
        chat([{"type": "image", "image": "a.jpg"}, TEXT]),
        chat([{"type": "image_url", "image_url": {"url": "a.jpg"}}, TEXT]),
        chat([{"type": "image_url", "image_url": "a.jpg"}, TEXT]),
        chat([{"type": "image", "path": "a.jpg"}, {"type": "text", "text": "Wh"}, "o?"]),
        {"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>Who?"}, {"from": "gpt", "value": "a"}]},
        {"question": "<image>Who?", "answer": "a", "image": {"path": "a.jpg", "bytes": None}},
    ],
)
def test_all_ways_to_name_a_picture_are_one(row, tmp_path):
    """Without it each data set needs a script of its own."""
    sample = read(row, media_dir=tmp_path)
    assert sample.messages[0]["content"] == [IMAGE, TEXT]
    (medium,) = sample.attachments
    assert (medium.kind, medium.name, medium.path) == (MediaKind.IMAGE, "a.jpg", str(tmp_path / "a.jpg"))
    assert sample.unread == ()


@pytest.mark.parametrize(
    "value",
    [
        b"abc",
        {"bytes": b"abc", "path": None},
        f"data:image/png;base64,{base64.b64encode(b'abc').decode()}",
        [b"abc"],
    ],
)
def test_bytes_in_the_row(value):
    """As Parquet files and ``datasets`` have them."""
    sample = read(chat("<image>Who?", image=value))
    assert [medium.read() for medium in sample.attachments] == [b"abc"]


def test_media_come_in_the_order_of_their_marks():
    """Without it two pictures of a sample are exchanged."""
    row = chat("a<image2>b<image1>c<video>", images=["1.jpg", "2.jpg"], videos=["v.mp4"])
    sample = read(row)
    assert [medium.name for medium in sample.attachments] == ["2.jpg", "1.jpg", "v.mp4"]
    parts = sample.messages[0]["content"]
    assert [part.get("text", part["type"]) for part in parts] == ["a", "image", "b", "image", "c", "video"]


def test_media_of_several_turns():
    """Marks of later turns take the next media of the column."""
    turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "a"}]
    sample = read({"messages": turns * 2, "images": ["1.jpg", "2.jpg"]})
    assert [medium.name for medium in sample.attachments] == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (chat("<image><image>", images=["a.jpg"]), "its text has a mark <image> and the row has 1 image"),
        (chat("<image>"), "its text has a mark <image> and the row has 0 images"),
        (chat("<image2>", images=["a.jpg"]), "its text has a mark <image2> and the row has 1 image"),
        (chat("Who?", images=["a.jpg"]), "it has 1 image and its text marks 0: put <image> where each belongs"),
        (chat("<image>", images=["a.jpg", "b.jpg"]), "it has 2 images and its text marks 1"),
        (chat("<audio>", images=["a.jpg"]), "its text has a mark <audio> and the row has 0 audios"),
        (chat("<image>", images=[3]), "images holds no image: it must be a path or bytes"),
        (chat("<image>", images=["https://a/b.jpg"]), "images names 'https://a/b.jpg', and media are not fetched"),
        (chat("<image>", images=["data:image/png;base64,a"]), "images holds Base64 that cannot be read"),
        (chat("Who?<|image_pad|>"), "its text holds <|image_pad|> where a medium belongs, and it has none"),
        ({"text": "a", "image": "a.jpg"}, "column 'image' holds media, and the text is not a chat"),
    ],
)
def test_marks_are_held_against_media(row, reason):
    """Without it a question is trained with the picture of another, or with none."""
    assert refused(row).startswith(reason)


def test_names_are_data(tmp_path):
    """Any character may stand in the name of a file."""
    name = "a: b\t%20 ü" + "x" * 200 + ".jpg"
    assert read(chat("<image>", images=[name]), media_dir=tmp_path).attachments[0].path == str(tmp_path / name)


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/passwd", "b/../../a.jpg", "link/a.jpg", "file:///etc/passwd"])
def test_a_name_that_leads_out_of_the_directory_is_refused(name, tmp_path):
    """A foreign data set must not read this machine's files."""
    home = tmp_path / "home"
    home.mkdir()
    os.symlink(tmp_path, home / "link")
    row = chat("<image>", images=[name])
    assert "is outside" in refused(row, media_dir=home)
    assert read(row, media_dir=home, media_outside=True).attachments[0].name in name


def test_media_lie_beside_their_file(put):
    """Relative names do not depend on the directory in which a job is started."""
    path = put("rows/a.jsonl", '{"question": "<image>", "answer": "a", "image": "a.jpg"}')
    assert open_source(path, media=True)[0].attachments[0].path == os.path.join(os.path.dirname(path), "a.jpg")


def test_ignored_media_are_left_out():
    """The text alone is packed if its user says so."""
    row = chat("<image>Who?", images=["a.jpg"])
    sample = read(row, ignore=["images", "<image>"])
    assert (sample.messages[0]["content"], sample.attachments) == ("<image>Who?", ())


def test_a_text_among_media_is_the_same_sample_as_ever():
    """Without it the lengths of texts would be measured again."""
    row = chat("Who?")
    assert read(row) == open_source([row])[0]
