"""Formats of rows: chats, questions with answers, attachments with texts, and documents.

A format says by the keys of a row whether it is its own (``matches``) and turns it into a chat, a
text or tokens (``convert``). Its ``fields`` are the keys it reads; a mapping such as
``{"messages": "dialogue"}`` renames them for data with other keys.

>>> detect([{"question": "1+1?", "answer": "2"}]).name
'question_answer'
"""

from importlib import import_module

from brimful.base.wings import FORMAT_MODULES, LATE_FORMATS
from brimful.sources.formats.messages import Messages, ShareGPT
from brimful.sources.formats.row_format import (
    FORMATS,
    RowFormat,
    detect,
    format_class,
    format_named,
    register,
    suggested,
)
from brimful.sources.formats.texts import (
    Alpaca,
    PromptCompletion,
    QuestionAnswer,
    Text,
    Tokens,
)

__all__ = [
    "FORMATS",
    "RowFormat",
    "detect",
    "format_class",
    "format_named",
    "register",
    "suggested",
]

register(Tokens)
# Formats of other rooms read more columns of a row than those below, so they are tried first.
for _module in FORMAT_MODULES:
    import_module(_module)
register(Messages, ShareGPT, Alpaca, PromptCompletion, QuestionAnswer)
FORMATS.update(LATE_FORMATS)
# Text matches rows of attachments with their text too, so it is tried last.
register(Text)
