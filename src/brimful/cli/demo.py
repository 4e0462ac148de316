"""``brimful demo``: the whole line on real text of this machine."""

from __future__ import annotations

import contextlib
import tempfile

import click

__all__ = ["demo"]


@click.command()
@click.option("-o", "--output", metavar="DIR", help="Directory for its files; kept (default: a temporary one).")
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option("--chats", "limit", type=click.IntRange(min=100), hidden=True, help="Most chats, for tests.")
@click.option("--steps", type=click.IntRange(min=1), default=12, hidden=True, help="Optimizer steps, for tests.")
def demo(output: str | None, keep: bool, limit: int | None, steps: int) -> None:
    """Pack the docstrings of Python's standard library and train a tiny model on them, packed and padded.

    Takes a minute on two cores. Needs no network and no GPU, and writes nothing outside its directory.
    """
    from brimful.demo import run_demo

    with contextlib.ExitStack() as stack:
        directory = output
        if directory is None and keep:
            directory = tempfile.mkdtemp(prefix="brimful-demo-")
        elif directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="brimful-demo-"))
        run_demo(directory, click.echo, limit=limit, steps=steps)
        if output is None and not keep:
            click.echo(f"{directory} is removed now; keep it with --keep, or name one with -o DIR")
        else:
            click.echo(f"All files stay in {directory}")
