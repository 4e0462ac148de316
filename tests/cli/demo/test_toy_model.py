"""The tokenizer of the demo gives back any text, and is the same every time."""

from __future__ import annotations

from brimful.cli.demo.toy_model import train_tokenizer


def test_the_tokenizer_gives_back_any_text_and_is_the_same_every_time(tmp_path, stdlib_chats) -> None:
    from transformers import AutoTokenizer

    texts = [turn["content"] for chat in stdlib_chats[::20] for turn in chat["messages"]]
    sizes = [train_tokenizer(texts, tmp_path / name, vocab_size=2000) for name in ("one", "two")]
    assert sizes == [2000, 2000]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    for text in [*texts[:50], "ünï 漢字 🙂\r\n\t  x = [1,\n     2]  ", "<|im_star"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
    asked = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert rendered.startswith(asked)
    marks = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert marks == [0, 1, 2], "a mark that is cut into pieces would be text to the model"
