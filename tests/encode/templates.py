"""Chat templates in the styles that models are published with, and tokenizers small enough to make in a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from brimful.encode import ChatEncoder, EncodedSample
from brimful.sources import Sample


def tiny_tokenizer(*special: str, **marks: str) -> Any:
    """One token a byte, and one for each of the special texts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **marks)


def tokenizer_of(style: Style) -> Any:
    return tiny_tokenizer(*style.special, **style.marks)


@dataclass(frozen=True)
class Style:
    template: str
    answer: str
    """What a model has to produce for an answer: ``{}`` is its content."""
    special: tuple[str, ...] = ()
    marks: dict[str, str] = field(default_factory=dict)


_EACH, _END = "{% for m in messages %}", "{% endfor %}"
_ASK = "{% if add_generation_prompt %}"

STYLES = {
    "chatml": Style(
        _EACH
        + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        + _END
        + _ASK
        + "<|im_start|>assistant\n{% endif %}",
        "{}<|im_end|>",
        ("<|im_start|>", "<|im_end|>"),
    ),
    "llama 3": Style(
        "{{ bos_token }}"
        + _EACH
        + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
        + _END
        + _ASK
        + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "{}<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin_of_text|>"},
    ),
    "gemma": Style(
        "{{ bos_token }}"
        + _EACH
        + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
        + _END
        + _ASK
        + "<start_of_turn>model\n{% endif %}",
        "{}<end_of_turn>",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        {"bos_token": "<bos>"},
    ),
    "zephyr": Style(
        _EACH
        + "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n"
        + "{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}"
        + _END,
        "{}</s>",
        ("</s>",),
        {"eos_token": "</s>"},
    ),
    "vicuna": Style(
        _EACH
        + "{% if m.role == 'assistant' %}ASSISTANT: {{ m.content }}</s>{% else %}USER: {{ m.content }} {% endif %}"
        + _END
        + _ASK
        + "ASSISTANT:{% endif %}",
        " {}</s>",
        ("</s>",),
        {"eos_token": "</s>"},
    ),
    # Mistral has no generation prompt: what follows [/INST], the space included, is for the model to produce.
    "mistral": Style(
        "{{ bos_token }}"
        + _EACH
        + "{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}[INST] {{ m.content }} [/INST]{% endif %}"
        + _END,
        " {}</s>",
        ("<s>", "</s>", "[INST]", "[/INST]"),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "no special tokens": Style(
        _EACH + "{{ m.role }}: {{ m.content }}\n" + _END + _ASK + "assistant: {% endif %}",
        "{}",
    ),
}

QWEN3 = (
    "{% set ns = namespace(asked=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set content = m.content %}{% set thought = '' %}{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.asked %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's: thoughts are taken out of earlier answers, and an answer without one gets an empty one."""


def chat(*contents: str) -> Sample:
    """Turns of user and assistant in turn."""
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return Sample(0, messages=turns)


def runs(encoded: EncodedSample) -> list[list[int]]:
    """The runs of consecutive targets."""
    found: list[list[int]] = []
    open_run = False
    for token, target in zip(encoded.input_ids.tolist(), encoded.loss_mask.tolist(), strict=True):
        if target:
            found[-1].append(token) if open_run else found.append([token])
        open_run = target
    return found


def trained(encoder: ChatEncoder, sample: Sample) -> list[str]:
    """What the labels of a sample say, run by run."""
    return [encoder.decode(run) for run in runs(encoder.encode(sample))]
