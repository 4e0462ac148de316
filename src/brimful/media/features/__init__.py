"""Features of media for the towers of models: made by their processors, and as blocks of bytes in a pack store."""

from brimful.media.features.block import Features
from brimful.media.features.maker import FeatureMaker
from brimful.media.features.stored import read_features, shortened

__all__ = ["FeatureMaker", "Features", "read_features", "shortened"]
