"""The toy encoder, slowed down, and deadly for some rows: for jobs that are disturbed half-way."""

import os
import time

from brimful.testing.toys import toy_chat_encoder

_Toy = type(toy_chat_encoder())


class Slow(_Toy):  # type: ignore[valid-type]
    """Takes its time for each batch, and ends its process at a row that asks for it. Its lengths are the toy's."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds

    def encode_batch(self, samples):
        time.sleep(self.seconds)
        if any("kill me" in (sample.text or "") for sample in samples):
            os._exit(9)
        return super().encode_batch(samples)
