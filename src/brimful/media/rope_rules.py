"""Position rule of a family, with the numbers of a model's configuration."""

import json
from dataclasses import replace
from pathlib import Path

from brimful.errors import SettingsError
from brimful.media.families import Family
from brimful.media.rope_positions import RULES, RopeRule


def rope_rule(family: Family, directory: str | None, tokens_per_second: float | None = None) -> RopeRule | None:
    """Return the position rule of a family; None for text positions.

    Args:
        family: with its settings.
        directory: of the model's processor, whose ``config.json`` is read if it exists; None without a processor.
        tokens_per_second: overrides the number in the file.
    """
    rule = RULES.get(family.name)
    if rule is None:
        return None
    kinds = ("image", "video")
    merge_size = next((family.settings[kind]["merge_size"] for kind in kinds if kind in family.settings), None)
    if merge_size is not None:
        rule = replace(rule, merge_size=merge_size)
    if rule.tokens_per_second is None:
        return rule
    if tokens_per_second is None:
        published = rule.tokens_per_second
        tokens_per_second = published if directory is None else _of_configuration(directory, published)
    return replace(rule, tokens_per_second=tokens_per_second)


def _of_configuration(directory: str, published: float) -> float:
    """Return the positions per second from ``config.json`` next to the processor, or else the published number."""
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return published
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        return published
    vision = config.get("vision_config")
    rate = vision.get("tokens_per_second") if isinstance(vision, dict) else None
    rate = config.get("position_id_per_seconds") if rate is None else rate
    return published if rate is None else float(rate)
