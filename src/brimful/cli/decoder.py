"""Decoding of a store's tokens to text, with the tokenizer that packed them."""

from collections.abc import Callable

import click

from brimful.cli.flags import in_flags
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BrimfulError
from brimful.serve import PackStore
from brimful.typing import TokenIds


def decoder_of(name: str | None, packs: PackStore) -> Callable[[TokenIds], str] | None:
    """Return a function from tokens to text, or None without a tokenizer: boundaries can be shown without text.

    The tokenizer that packed is opened at the path in the notes of the packs, without network access.
    """
    path = name or packs.notes.get("tokenizer")
    if not path:
        return None
    try:
        tokenizer = Tokenizer(path, ask_hub=name is not None)
        hf = tokenizer.hf
        # Another tokenizer would silently give other text for the same ids.
        fingerprint = packs.notes.get("tokenizer_fingerprint")
        if fingerprint is not None and tokenizer.fingerprint != fingerprint:
            click.echo(f"({path} is not the tokenizer that packed: the text may be wrong)", err=True)
    except BrimfulError as error:
        click.echo(f"(no text: {in_flags(error.message)})", err=True)
        return None
    return lambda ids: str(hf.decode(list(map(int, ids)), skip_special_tokens=False))
