"""Chats with media to tokens, by the headers of their files, and the processor that they are
compared with.
"""

from brimful.media.encode.media_chat import MediaChatEncoder

__all__ = ["MediaChatEncoder"]
