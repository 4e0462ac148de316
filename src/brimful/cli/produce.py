"""``brimful produce``: packs while the data still arrives."""

import time
from typing import Any

import click

from brimful.cli.arguments import _ENCODER_OPTIONS, _template_arguments, pairs, plan_settings, required
from brimful.cli.command import GroupedCommand, choice_option, grouped, value_option
from brimful.cli.config import SourceArgument, config_option
from brimful.cli.options import (
    bad_sample_option,
    capacity_option,
    encoder_options,
    json_option,
    overflow_option,
)
