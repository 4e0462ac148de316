"""Wing of fast libraries, each watched by the reference that it replaces.

::

    in    the facts of a tokenizer; a chat template, and the finder of its turns
    out   the reference's tokens and the template's texts, or the reason why it gives none
    seam  encode.tokenizer.FastLibrary, which FastTokenizer is; encode.chat.TextFiller, which Filling
          is; base.wings: FAST_TOKENIZER, FILLING, PRELOAD

    fast_tokenizer                   filling ─► opaque, skeleton          preloading, preload_tokenizer
    ids, once hard texts are equal   texts of chats, shape by shape       before workers are forked

Without it every chat is rendered, and ``tokenizers`` tokenizes.
"""
