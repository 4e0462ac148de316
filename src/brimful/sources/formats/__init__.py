"""Formats of rows: one format per file.

A format says by the keys of a row whether it is its own (``matches``) and turns it into a chat, a text or tokens
(``convert``). Its ``fields`` are the keys it reads; a mapping such as ``{"messages": "dialogue"}`` renames them for
data with other keys.

>>> detect([{"question": "1+1?", "answer": "2"}]).name
'question_answer'
"""

from importlib import import_module

from brimful.base.wings import FORMAT_MODULES
from brimful.sources.formats.alpaca import Alpaca
from brimful.sources.formats.caption import Caption
from brimful.sources.formats.detection import Detection
from brimful.sources.formats.messages import Messages
from brimful.sources.formats.plain_text import Text
from brimful.sources.formats.prompt_completion import PromptCompletion
from brimful.sources.formats.question_answer import QuestionAnswer
from brimful.sources.formats.registry import FORMATS, detect, format_named, register, suggested
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.sharegpt import ShareGPT
from brimful.sources.formats.token_rows import Tokens
from brimful.sources.formats.transcript import Transcript

__all__ = ["FORMATS", "RowFormat", "detect", "format_named", "register", "suggested"]

register(Tokens)
# Formats of other rooms read more columns of a row than those below, so they are tried first.
for _module in FORMAT_MODULES:
    import_module(_module)
register(Messages, ShareGPT, Alpaca, PromptCompletion, QuestionAnswer, Caption, Detection, Transcript, Text)
