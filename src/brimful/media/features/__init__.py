"""Features of media for the towers of models: made by their processors, and as blocks of bytes in a pack store."""

from brimful.media.features.feature_block import Features, read_features, shortened
from brimful.media.features.maker import FeatureMaker

__all__ = ["FeatureMaker", "Features", "read_features", "shortened"]
