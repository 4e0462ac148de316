"""``brimful demo``: the whole pipeline on real text from this machine. No network, no GPU.

::

    docstrings ─► chats ─► tokenizer ─► brimful pack, report, inspect
"""

import contextlib
import shutil
import tempfile
from functools import partial

import click

from brimful.cli.options import command, grouped, json_option
from brimful.cli.program import show_json


@command()
@grouped(
    "Output",
    click.option(
        "-o",
        "--output",
        metavar="DIR",
        help="Directory for the files; kept (default: a temporary one).",
    ),
    click.option("--keep", is_flag=True, help="Keep the temporary directory."),
)
@json_option
@grouped(
    "What to show",
    click.option(
        "--multimodal",
        is_flag=True,
        help="Draw images and tones, and pack chats about them.",
    ),
)
def demo(output: str | None, keep: bool, as_json: bool, multimodal: bool) -> None:
    """Pack the docstrings of Python's standard library, report, and inspect a pack.

    With --multimodal, pack chats about drawn images and tones. Run again on the same directory, it
    continues. It takes half a minute on two cores, needs no network and no GPU, and writes nothing
    outside its directory.
    """
    from brimful.cli.demo import steps

    # With --json, standard output is only for the result.
    say = partial(click.echo, err=as_json)
    # The stack removes a temporary directory at the end; a named or kept one stays.
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="brimful-demo-") if output is None else output
        is_permanent = keep or output is not None
        if not is_permanent:
            stack.callback(shutil.rmtree, directory)
        summary = (steps.run_multimodal_demo if multimodal else steps.run_demo)(directory, say)
        if is_permanent:
            say(f"All files stay in {directory}")
        else:
            say(f"{directory} is removed now; keep it with --keep, or name one with -o DIR")
        if as_json:
            show_json({"directory": directory if is_permanent else None, **summary})
