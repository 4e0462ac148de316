"""From tokens of a store back to text, by the tokenizer that packed."""

from collections.abc import Callable

import click

from brimful.cli.flags import in_flags
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BrimfulError
from brimful.serve import PackStore
from brimful.typing import TokenIds


def decoder_of(name: str | None, packs: PackStore) -> Callable[[TokenIds], str] | None:
    """Return a function from tokens to text, or None without a tokenizer: boundaries can be shown all the same.

    The tokenizer that packed is opened at the path that the packs note, and no network is asked for it.
    """
    path = name or packs.notes.get("tokenizer")
    if not path:
        return None
    try:
        tokenizer = Tokenizer(path, ask_hub=name is not None)
        hf = tokenizer.hf
        # Another tokenizer gives other words for the same ids, silently.
        fingerprint = packs.notes.get("tokenizer_fingerprint")
        if fingerprint is not None and tokenizer.fingerprint != fingerprint:
            click.echo(f"({path} is another tokenizer than the one that packed: the text may be wrong)", err=True)
    except BrimfulError as error:
        click.echo(f"(no text: {in_flags(error.message)})", err=True)
        return None
    return lambda ids: str(hf.decode(list(map(int, ids)), skip_special_tokens=False))
