"""Tokenizers and chat templates that are missing or do not serve: the flag and the path are named."""

from pathlib import Path

from tests.cli.bad_input.tools import refused


def test_a_chat_template_that_is_no_text_is_refused(tmp_path: Path, chats: Path, tokenizer: Path) -> None:
    """Without it the wrong file after --chat-template is a UnicodeDecodeError."""
    template = tmp_path / "template.jinja"
    template.write_bytes(b"\xff\xfe\x00")
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet", "--chat-template", template)
    assert str(template) in line


def test_a_chat_template_that_refuses_a_conversation_names_the_sample(
    tmp_path: Path, chats: Path, tokenizer: Path
) -> None:
    """Without it a template's own complaint (roles must alternate) does not say about which row."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    line = refused("measure", chats, "--tokenizer", tokenizer, "--quiet", "--chat-template", template)
    assert f"{chats}:1 (sample 0): the chat template refuses it: " in line
    assert "roles must alternate" in line


def test_no_tokenizer_is_said(chats: Path, tmp_path: Path) -> None:
    """Without it a forgotten --tokenizer is an AttributeError of None."""
    for command in (["measure"], ["plan", "--max-length", "64"], ["pack", "--max-length", "64", "-o", tmp_path / "p"]):
        assert "--tokenizer is missing" in refused(command[0], chats, *command[1:], "--quiet")
    assert "--tokenizer" in refused("measure", chats, "--tokenizer", "", "--quiet")


def test_a_tokenizer_directory_that_does_not_serve_is_named(chats: Path, tmp_path: Path) -> None:
    """Without it a wrong --tokenizer is a page of transformers, or a request to the hub."""
    empty, garbage, file = tmp_path / "empty", tmp_path / "garbage", tmp_path / "file"
    empty.mkdir()
    garbage.mkdir()
    (garbage / "tokenizer.json").write_text('{"version": "1.0"}')
    (garbage / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    file.write_text("no directory")
    for path in (tmp_path / "nowhere", empty, garbage, file):
        assert f"--tokenizer {path}: no " in refused("measure", chats, "--tokenizer", path, "--quiet")


def test_a_tokenizer_without_chat_template_says_what_to_do(chats: Path, plain_tokenizer: Path) -> None:
    """Without it a base model's tokenizer fails in the middle of rendering."""
    line = refused("measure", chats, "--tokenizer", plain_tokenizer, "--quiet")
    assert "has no chat template" in line
    assert str(plain_tokenizer) in line
    assert "--chat-template" in line
    assert "--mode completion" in line
