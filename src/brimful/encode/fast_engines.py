"""Engines of encoders with a tokenizer, and of encoders with a chat template too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from brimful.encode.chat_template import ChatTemplate
from brimful.encode.engine import Engine
from brimful.encode.tokenizer import Tokenizer
from brimful.preloading import TOKENIZER, TRANSFORMERS

if TYPE_CHECKING:
    from brimful.encode.encoder import Encoder


class TokenizerEngine(Engine):
    """The libraries that tokenize.

    Args:
        make_reference, make_light: see ``Engine``.
        tokenizer: the encoder's tokenizer.
    """

    def __init__(
        self, make_reference: Callable[[], Encoder], make_light: Callable[[], Encoder], tokenizer: Tokenizer
    ) -> None:
        super().__init__(make_reference, make_light)
        self._tokenizer = tokenizer

    @property
    def name(self) -> str:
        return self._tokenizer.engine

    @property
    def id(self) -> str:
        return self._tokenizer.engine_id

    @property
    def uses_threads(self) -> bool:
        return self._tokenizer.is_fast

    def trusts(self, engine_id: str) -> bool:
        return not engine_id or self._tokenizer.trusts(engine_id)

    def distrust(self, engine_id: str, reason: str) -> None:
        self._tokenizer.distrust(engine_id, reason)

    def load(self) -> None:
        self._tokenizer.tokenize(["a"])

    def warm_up(self) -> None:
        self._tokenizer.warm_up()

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        place = self._tokenizer.place
        return {} if place is None else {"brimful.encode.preload": {TOKENIZER: place}}


class ChatEngine(TokenizerEngine):
    """The libraries that render chats and tokenize them.

    Args:
        make_reference, make_light, tokenizer: see ``TokenizerEngine``.
        template: returns the encoder's template, which is made when needed.
    """

    def __init__(
        self,
        make_reference: Callable[[], Encoder],
        make_light: Callable[[], Encoder],
        tokenizer: Tokenizer,
        template: Callable[[], ChatTemplate],
    ) -> None:
        super().__init__(make_reference, make_light, tokenizer)
        self._template = template

    @property
    def name(self) -> str:
        return f"{super().name}, templates by {self._template().engine}"

    @property
    def uses_threads(self) -> bool:
        return super().uses_threads and self._template().fills_plain_chats

    @property
    def id(self) -> str:
        names = [super().id, self._template().engine_id]
        return "; ".join(name for name in names if name)

    def trusts(self, engine_id: str) -> bool:
        return all(
            self._template().trusts(name) if _is_of_templates(name) else super(ChatEngine, self).trusts(name)
            for name in engine_id.split("; ")
        )

    def distrust(self, engine_id: str, reason: str) -> None:
        # Either of them may be to blame.
        for name in engine_id.split("; "):
            if _is_of_templates(name):
                self._template().distrust(name, reason)
            else:
                super().distrust(name, reason)

    def load(self) -> None:
        super().load()
        self._template().load()

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        modules = super().preload
        if self._template().needs_transformers:
            modules = {name: {**variables, TRANSFORMERS: "1"} for name, variables in modules.items()}
        return modules


def _is_of_templates(name: str) -> bool:
    return name.startswith("templates")
