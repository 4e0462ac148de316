"""The page of options, made from the commands: ``python -m tests.cli.options_page`` writes ``docs/options.md``."""

from pathlib import Path

import click

from brimful.cli.program import COMMANDS, command_named

PATH = Path(__file__).parents[2] / "docs" / "options.md"


def page() -> str:
    """The text of the page: every option once, in its group, with the commands that have it."""
    groups: dict[str, dict[str, list[str]]] = {}
    for command in COMMANDS:
        for parameter in command_named(command).params:
            if isinstance(parameter, click.Option) and not parameter.hidden and "--help-all" not in parameter.opts:
                flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
                row = f"| {flags} | {_value(parameter)} | {(parameter.help or '').replace('|', '/')} |"
                rows = groups.setdefault(getattr(parameter, "brimful_group", "Other"), {})
                rows.setdefault(row, []).append(command)
    lines = [
        "# Options",
        "",
        "Every option, made from the settings of the library (`python -m tests.cli.options_page` writes this page).",
        "`brimful COMMAND --help` shows the common ones, `--help-all` all of them. In a file of `--config` a key is its",
        "flag without the two hyphens in front: `max_length: 8192` or `max-length: 8192`.",
    ]
    for title, rows in groups.items():
        lines += ["", f"## {title}", "", "| option | value | what it does | commands |", "|---|---|---|---|"]
        lines += [f"{row} {', '.join(commands)} |" for row, commands in rows.items()]
    return "\n".join(lines) + "\n"


def _value(option: click.Option) -> str:
    choices = getattr(option.type, "choices", ())
    form = ", ".join(f"`{choice}`" for choice in choices) or ("" if option.is_flag else f"{option.metavar or ''}")
    form = form or ("" if option.is_flag else option.type.name)
    has_default = not option.is_flag and isinstance(option.default, (str, int, float)) and option.default not in ("", 0)
    return f"{form} ({option.default})" if has_default and form else form.replace("|", "/")


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
