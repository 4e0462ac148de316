"""A small tokenizer and a tiny model, so that nothing has to be downloaded."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from brimful.base.optional import optional
from brimful.base.typing import AnyPath

_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""Chat template: turns between ``<|im_start|>role`` and ``<|im_end|>``, the layout that is known as
ChatML.
"""


def train_tokenizer(
    texts: Iterable[str],
    directory: AnyPath,
    *,
    vocab_size: int = 8000,
    special_tokens: Sequence[str] = (),
    chat_template: str = CHAT_TEMPLATE,
) -> int:
    """Train a byte-level BPE with a chat template and save it for
    ``AutoTokenizer.from_pretrained(directory)``.

    Any text can be encoded and comes back unchanged, because its alphabet is all 256 bytes. The
    same texts give the same tokenizer.

    Args:
        texts: text to learn from.
        directory: output directory; made if absent.
        vocab_size: largest number of entries, including the special tokens; at least 259. Few texts
            give fewer.
        special_tokens: further tokens that are never split, such as placeholders of media.
        chat_template: Jinja template of its chats.

    Returns:
        Number of entries of the vocabulary.

    Raises:
        MissingExtraError: ``tokenizers`` or ``transformers`` is not installed.

    Source: byte-level BPE as in GPT-2, Radford et al. (2019).
    """
    with optional("tokenizers", "text", "training a tokenizer"):
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    with optional("transformers", "text", "training a tokenizer"):
        from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Digits one by one, runs of spaces together: docstrings have many indented examples.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), behavior="isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_PAD, _START, _END, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The template needs these marks as single tokens, so they are special and never split.
    wrapper = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        additional_special_tokens=[_START, *special_tokens],
        clean_up_tokenization_spaces=False,
    )
    wrapper.chat_template = chat_template
    wrapper.save_pretrained(Path(directory))
    return int(tokenizer.get_vocab_size())


def make_model(vocab_size: int) -> Any:
    """Make a Qwen2 of 32 dimensions with random weights, the same every time."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,  # the capacity of the demo's packs
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,  # training needs no cache
    )
    return Qwen2ForCausalLM(config).train()
