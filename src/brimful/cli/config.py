"""Options of a command from a YAML file: ``--config train.yaml``. A flag on the command line
overrides the file.
"""

import json
import reprlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import click

from brimful.errors import SettingsError, SourceNotFoundError

_MAX_BYTES = 1 << 20
"""Maximum bytes of a settings file: a larger file is data, named by mistake."""

_SOURCE = "source"
"""Key of the paths that a command takes without a flag."""

_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("sources", "data", "dataset", "datasets"), _SOURCE),
    **dict.fromkeys(
        ("cutoff_len", "sequence_len", "max_seq_len", "max_seq_length", "pack_size"), "max_length"
    ),
    **dict.fromkeys(("packed_sequence_size", "max_len", "seq_len"), "max_length"),
    "pack_frac": "min_fill",
    **dict.fromkeys(("packing_strategy", "strategy"), "algorithm"),
    **dict.fromkeys(("truncation_strategy", "excess_length_strategy", "overlong"), "overflow"),
    **dict.fromkeys(
        ("dataset_num_proc", "packing_num_proc", "preprocessing_num_workers"), "num_proc"
    ),
    **dict.fromkeys(
        ("model", "model_name_or_path", "tokenizer_path", "tokenizer_name_or_path"), "tokenizer"
    ),
    **dict.fromkeys(("output_dir", "out"), "output"),
    **dict.fromkeys(("subset_name", "dataset_config_name"), "subset"),
    "system_prompt": "system",
    "image_min_pixels": "min_pixels",
    "image_max_pixels": "max_pixels",
    "video_fps": "fps",
    "video_maxlen": "max_frames",
    "fps_max_frames": "max_frames",
    "fps_min_frames": "min_frames",
    "nframes": "num_frames",
    "audio_sampling_rate": "sampling_rate",
}
"""Names of options in TRL, ms-swift, LLaMA-Factory, Axolotl and others: accepted in files, and
nowhere else.
"""

_ANSWERS: Mapping[str, str] = {
    "task_type": "rows are recognized by their keys: leave it out, or name one of them by format",
    "max_aspect_ratio": "models of Qwen-VL take images of up to 200 to 1, here too: leave it out",
    "sample_weight": "weights belong to sources: give each its path and weight in a file, and name "
    "that file by mixture",
}
"""Options of AIAK that brimful does without, and why."""

_VALUES: Mapping[str, Mapping[str, str]] = {
    "truncation_strategy": {
        "delete": "drop",
        "raise": "error",
        "left": "truncate_left",
        "right": "truncate",
    },
    "excess_length_strategy": {"raise": "error"},
    "packing_strategy": {"binpack": "auto"},
}
"""Values of an option in ``_ALIASES``, mapped to brimful's values."""

_JSON_OPTIONS = ("template_arg", "augmentation")
"""Options whose values are JSON of any depth."""

_SWITCHES = ("packing", "neat_packing", "sample_packing", "packed", "enable_packing")
"""Options of other programs that turn packing on: true is what this program does anyway."""

_BLOCKS = ("custom", "template", "training")
"""Blocks in files of trainers: known keys in them are read, and the others are reported."""


class FileEntry(NamedTuple):
    """One entry of a file: the key as written, its file and line, and its node."""

    key: str
    where: str
    node: Any

    @property
    def text(self) -> Any:
        """The value with texts as they are written, also in its lists and mappings; None for
        null.
        """
        import yaml

        return (
            None
            if self.node.tag.endswith(":null")
            else yaml.BaseLoader("").construct_object(self.node, deep=True)
        )


class SourceArgument(click.Argument):
    """The paths of a command, which may be in the file of ``--config`` instead."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the paths of the command line or, without any, of the file."""
        is_given = isinstance(value, (tuple, list)) and bool(value)
        return super().process_value(
            ctx, value if is_given else tuple(ctx.meta.get(SOURCES_META, ()))
        )


SOURCES_META = "brimful.config.sources"
"""Key of ``click.Context.meta`` for paths that a file gives instead of the command line."""


def apply_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Use the settings of a file as the defaults of a command."""
    if path is None:
        return
    by_name = _options(ctx.command)
    values: dict[str, Any] = {}
    locations: dict[str, str] = {}
    unread_keys: list[str] = []
    for block, entry in _in_blocks(path):
        name = _ALIASES.get(_name_of(entry.key), _name_of(entry.key))
        if block and name not in _SWITCHES and (name not in by_name or name == "output"):
            # The output of a training run is its checkpoints.
            unread_keys.append(f"{block}.{entry.key}")
            continue
        if name in _SWITCHES:
            if not _value(entry, click.BOOL, ctx):
                raise SettingsError(
                    f"{entry.where}: {entry.key} is {entry.node.value}, and brimful only packs: "
                    "leave the line out, or train on the data as they are"
                )
            continue
        if entry.text is None:  # null leaves the option open
            continue
        if name == _SOURCE:
            target, value = SOURCES_META, texts_of(entry)
        elif name in by_name:
            option = by_name[name]
            target = str(option.name)
            value = texts_of(entry) if option.multiple else _value(entry, option.type, ctx)
        else:
            # An alias of an option that this command does not have would be its own match.
            own = [*by_name, _SOURCE]
            names = [
                *own,
                *(alias for alias, option in _ALIASES.items() if option in own),
                *_SWITCHES,
            ]
            matches = get_close_matches(_name_of(entry.key), names, n=1, cutoff=0.6)
            hint = _ANSWERS.get(_name_of(entry.key)) or (
                f"did you mean {matches[0]}?"
                if matches
                else f"`brimful {ctx.info_name} --help` lists the options"
            )
            raise SettingsError(
                f"{entry.where}: {ctx.info_name} has no option {entry.key!r}: {hint}"
            )
        if target in locations:
            raise SettingsError(f"{entry.where}: {entry.key} repeats {locations[target]}: keep one")
        locations[target] = f"{entry.key if target == SOURCES_META else name} in {entry.where}"
        values[target] = value
    if unread_keys:
        click.echo(
            f"{path}: {', '.join(unread_keys)}: not options of {ctx.info_name}, left out", err=True
        )
    paths = values.pop(SOURCES_META, ())
    if paths:  # a mixture that was read earlier may have named some
        ctx.meta[SOURCES_META] = paths
    ctx.default_map = values


def _in_blocks(path: str) -> Iterator[tuple[str, FileEntry]]:
    """Yield the keys of a file, with the name of their block in a trainer's block, or with "" at
    the top level.
    """
    for entry in file_entries(path, "--config"):
        if entry.key not in _BLOCKS or entry.node.id != "mapping":
            yield "", entry
            continue
        for inner in node_entries(path, entry.node):
            yield entry.key, inner


def file_entries(path: str, flag: str) -> list[FileEntry]:
    """Return the keys of a file in order; the file is data, so its tags never create objects.

    Args:
        path: the file.
        flag: the flag that names it, for messages.

    Raises:
        SourceNotFoundError: no such file.
        SettingsError: not YAML, not a mapping, or a repeated key.
    """
    import yaml

    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{flag} {path}: no such file") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(
            f"{flag} {path} has more than {_MAX_BYTES:,} bytes: it is data, not a file of settings"
        )
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        location = path if mark is None else f"{path}:{mark.line + 1}"
        raise SettingsError(
            f"{location}: not YAML: {getattr(error, 'problem', None) or 'it is not text'}"
        ) from error
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(
            f"{path}: a file of settings has lines such as `max_length: 8192`, and this one has "
            "none"
        )
    return node_entries(path, root)


def node_entries(path: str, node: Any) -> list[FileEntry]:
    """Return the keys of a block of a file in order.

    Raises:
        SettingsError: a key that is not a name, or a repeated key.
    """
    entries: list[FileEntry] = []
    for key, value in node.value:
        where = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key.value, str):
            raise SettingsError(f"{where}: a key must be a name")
        if any(entry.key == key.value for entry in entries):
            raise SettingsError(f"{where}: {key.value} is repeated: keep one")
        entries.append(FileEntry(key.value, where, value))
    return entries


def _name_of(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command that have a value, by each of their names."""
    options = [
        option
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
    ]
    return {
        _name_of(flag): option
        for option in options
        for flag in option.opts
        if flag.startswith("--")
    }


def _value(entry: FileEntry, param_type: "click.ParamType[Any]", ctx: click.Context) -> Any:
    """Return one value in the type of its option."""
    text = entry.text
    if not isinstance(text, str):
        raise wrong_value(entry, f"one {param_type.name}")
    try:
        # The text as written: 8_192 and 1e-3 are numbers, and 1:30, which YAML takes for 90, is
        # not.
        return param_type.convert(_VALUES.get(_name_of(entry.key), {}).get(text, text), None, ctx)
    except click.BadParameter as error:
        raise SettingsError(f"{entry.where}: {entry.key}: {error.message.rstrip('.')}") from error


def texts_of(entry: FileEntry) -> tuple[str, ...]:
    """Return one text or a list of texts; a mapping gives texts ``name=value``, as for flags."""
    value = entry.text
    if isinstance(value, dict) and entry.key != _SOURCE:
        if _name_of(entry.key) in _JSON_OPTIONS:  # `no` in YAML is false, and `"no"` is text
            return tuple(
                f"{name}={json.dumps(item, default=str)}"
                for name, item in plain_value(entry).items()
            )
        value = [
            f"{name}={item}" if isinstance(item, str) else item for name, item in value.items()
        ]
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        more = "" if entry.key == _SOURCE else ", or a mapping of texts"
        raise wrong_value(entry, f"a text, a list of texts{more}")
    return tuple(texts)


def plain_value(entry: FileEntry) -> Any:
    """Return the value of an entry as Python's numbers, texts, lists and mappings.

    Raises:
        SettingsError: a tag that would create an object.
    """
    import yaml

    try:
        return yaml.SafeLoader("").construct_object(entry.node, deep=True)
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(
            f"{entry.where}: {entry.key} has a value that cannot be read"
        ) from error


def wrong_value(entry: FileEntry, expected: str) -> SettingsError:
    """Return the error for an entry whose value is not what it must be."""
    shapes = {"sequence": "a list", "mapping": "a block"}
    shown = shapes.get(entry.node.id) or (
        "null" if entry.text is None else reprlib.repr(entry.text)
    )
    return SettingsError(f"{entry.where}: {entry.key} must be {expected} and is {shown}")
