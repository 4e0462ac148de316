"""``brimful demo``: the whole pipeline on real text from this machine."""

import contextlib
import shutil
import tempfile
from functools import partial

import click

from brimful.cli.command import GroupedCommand, grouped
from brimful.cli.options import json_option
from brimful.cli.terminal import show_json


@click.command(cls=GroupedCommand)
@grouped(
    "Output",
    click.option("-o", "--output", metavar="DIR", help="Directory for the files; kept (default: a temporary one)."),
    click.option("--keep", is_flag=True, help="Keep the temporary directory."),
)
@json_option
@grouped(
    "What to show",
    click.option(
        "--multimodal",
        is_flag=True,
        help="Generate images and tones, pack chats about them, and train a tiny vision-language model.",
    ),
)
@click.option("--chats", "limit", type=click.IntRange(min=100), hidden=True, help="Most chats, for tests.")
@click.option("--steps", type=click.IntRange(min=1), hidden=True, help="Optimizer steps, for tests.")
def demo(output: str | None, keep: bool, as_json: bool, multimodal: bool, limit: int | None, steps: int | None) -> None:
    """Pack the docstrings of Python's standard library and train a tiny model on them, packed and padded.

    With --multimodal, pack chats about generated images and tones, and train a tiny vision-language model. Run again on
    the same directory, it continues. It takes a minute on two cores, needs no network and no GPU, and writes nothing
    outside its directory.
    """
    from brimful.demo import run_demo, run_multimodal_demo

    # With --json, standard output is only for the result.
    say = partial(click.echo, err=as_json)
    # The stack removes a temporary directory at the end; a named or kept one stays.
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="brimful-demo-") if output is None else output
        is_permanent = keep or output is not None
        if not is_permanent:
            stack.callback(shutil.rmtree, directory)
        if multimodal:
            runs = run_multimodal_demo(directory, say, **_given(num_chats=limit, steps=steps))
        else:
            runs = run_demo(directory, say, limit=limit, **_given(steps=steps))
        if is_permanent:
            say(f"All files stay in {directory}")
        else:
            say(f"{directory} is removed now; keep it with --keep, or name one with -o DIR")
        if as_json:
            show_json({"directory": directory if is_permanent else None, **{run.name: run.as_dict() for run in runs}})


def _given(**options: int | None) -> dict[str, int]:
    """Return the options that are given; the demo has its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}
