"""The fast libraries of an encoder with a tokenizer, and of its chat template if it has one."""

from collections.abc import Callable, Mapping

from brimful.base.preloading import STATE
from brimful.encode.chat_template import ChatTemplate
from brimful.encode.encoder import Encoder, Engine
from brimful.encode.tokenizer import Tokenizer

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Environment variable: directory or hub id of the tokenizer that ``encode.fast.preload`` loads."""


class FastEngine(Engine):
    """The libraries that tokenize, and those that render chats.

    Args:
        make_reference: see ``Engine``.
        tokenizer: the encoder's tokenizer.
        template: returns the encoder's chat template, which is made when needed; None for an encoder without one.
    """

    def __init__(
        self,
        make_reference: Callable[[], Encoder],
        tokenizer: Tokenizer,
        template: Callable[[], ChatTemplate | None],
    ) -> None:
        super().__init__(make_reference)
        self._tokenizer, self._template = tokenizer, template

    @property
    def name(self) -> str:
        template = self._template()
        return f"{self._tokenizer.engine}, templates by {template.engine}" if template else self._tokenizer.engine

    @property
    def id(self) -> str:
        template = self._template()
        return "; ".join(filter(None, [self._tokenizer.engine_id, template.engine_id if template else ""]))

    @property
    def uses_threads(self) -> bool:
        template = self._template()
        return self._tokenizer.is_fast and (template is None or template.fills_plain_chats)

    def trusts(self, engine_id: str) -> bool:
        return not engine_id or all(self._owner(name).trusts(name) for name in engine_id.split("; "))

    def distrust(self, engine_id: str, reason: str) -> None:
        # Any of them may be to blame.
        for name in engine_id.split("; "):
            self._owner(name).distrust(name, reason)

    def _owner(self, name: str) -> Tokenizer | ChatTemplate:
        """Return the part of the encoder that encodes with a library."""
        template = self._template()
        return template if template and name.startswith("templates") else self._tokenizer

    def load(self) -> None:
        self._tokenizer.tokenize(["a"])
        template = self._template()
        if template is not None:
            template.load()

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        place, template = self._tokenizer.place, self._template()
        if place is None:
            return {}
        # In this order: a thread loads the fast library while the server imports the rest, and is joined at the end.
        modules: dict[str, dict[str, str]] = {"brimful.base.preloading": {STATE: self._tokenizer.state_path}}
        modules["brimful.encode.fast.preload_tokenizer"] = {TOKENIZER: place}
        if template is not None and template.needs_transformers:
            modules["transformers.models.auto.tokenization_auto"] = {}
        return modules
