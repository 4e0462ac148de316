"""Pages of the site that are made from the code: options, API, examples, notebooks, the README.

MkDocs calls ``on_config``, ``on_files``, ``on_page_markdown`` and ``on_post_build`` (``mkdocs.yml``).
Pages are written for a reader of the repository too, so links lead to files of the repository, and
are turned into links of the site here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from brimful.cli.config import _ALIASES
from brimful.cli.program import COMMANDS, command_named
from brimful.collate.dialects import DIALECTS
from brimful.errors import MissingExtraError

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import markdown_of

ROOT = Path(__file__).parents[1]

PACKAGES = (
    "brimful",
    "brimful.sources",
    "brimful.encode",
    "brimful.measure",
    "brimful.plan",
    "brimful.store",
    "brimful.serve",
    "brimful.report.store_check",
    "brimful.dynamic",
    "brimful.mixtures",
    "brimful.clusters",
    "brimful.stream",
    "brimful.collate",
    "brimful.collate.loss_torch",
    "brimful.media.collate",
    "brimful.integrations.trainers",
    "brimful.integrations.trainers.transformers",
    "brimful.integrations.trainers.trl",
    "brimful.integrations.trainers.lightning",
    "brimful.integrations.export",
    "brimful.rl",
    "brimful.preferences",
    "brimful.verify",
    "brimful.doctor",
    "brimful.testing",
    "brimful.errors",
)
"""Packages whose ``__all__`` is the API, the usual way first."""

PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "examples": "examples/index.md",
}
"""Files of the repository outside of ``docs``, and their pages."""

_DOCSTRING = re.compile(r"<!-- docstring: ([\w.]+) -->.*?<!-- end -->", re.DOTALL)
"""A place for the docstring of a module, with what a reader of the repository sees there."""

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)((?:#[^)]*)?)\)")


# ── links and lists ───────────────────────────────────────────────────────────────────────────────


def place_of(path: str) -> str:
    """Return the page of a file of the repository.

    >>> place_of("docs/trainers/trl.md"), place_of("README.md"), place_of("examples/02_plan_only.py")
    ('trainers/trl.md', 'index.md', 'examples/02_plan_only.md')
    """
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if path.startswith("examples/"):
        return path.replace(".py", ".md")
    return path.removeprefix("benchmarks/")


def file_of(page: str) -> str:
    """Return the file of the repository that a page is made of.

    >>> file_of("index.md"), file_of("adr/README.md"), file_of("results/a.md")
    ('README.md', 'docs/adr/README.md', 'benchmarks/results/a.md')
    """
    for path, place in PLACES.items():
        if page == place:
            return path if path.endswith(".md") else f"{path}/"
    return f"benchmarks/{page}" if page.startswith("results/") else f"docs/{page}"


def for_the_site(text: str, page: str) -> str:
    """Return the text of a page with links of the site, and lists as Python-Markdown reads them.

    >>> for_the_site("[a](../examples/02_plan_only.py), [b](loss.md#by-hand)", "scale.md")
    '[a](examples/02_plan_only.md), [b](loss.md#by-hand)'
    >>> print(for_the_site("Two:\\n- one,\\n  and more\\n- two", "scale.md"))
    Two:
    <BLANKLINE>
    - one,
        and more
    - two
    """
    folder = posixpath.dirname(file_of(page))

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        target = posixpath.relpath(place_of(path), posixpath.dirname(page) or ".")
        return f"]({target}{match[2]})"

    lines: list[str] = []
    in_list = in_code = False
    for line in _LINK.sub(link, text).splitlines():
        starts_item = not in_code and re.match(r"([-*]|\d+\.) ", line) is not None
        if line and not line.startswith(" ") and not starts_item:
            in_list = False
        # A list ends no paragraph here, and what belongs to an item is indented by four.
        if starts_item and not in_list and lines and lines[-1]:
            lines.append("")
        in_list = in_list or starts_item
        in_code ^= line.lstrip().startswith("```")
        indented = line.startswith("  ") and in_list
        lines.append("  " + line if indented else line.replace("```python notest", "```python"))
    return "\n".join(lines)


# ── pages made from the code ──────────────────────────────────────────────────────────────────────


def options_page() -> str:
    """Return the page of options: each once, in its group, with the commands that have it."""
    groups: dict[str, dict[str, list[str]]] = {}
    for command in sorted(COMMANDS, key=lambda command: command != "pack"):
        for parameter in command_named(command).params:
            if not isinstance(parameter, click.Option) or "--help-all" in parameter.opts:
                continue
            if not parameter.hidden:
                flags = ", ".join(f"`{it}`" for it in (*parameter.opts, *parameter.secondary_opts))
                text = (parameter.help or "").replace("|", "/").replace("<", "&lt;")
                row = f"| {flags} | {_value(parameter)} | {text} |"
                rows = groups.setdefault(getattr(parameter, "brimful_group", "Other"), {})
                rows.setdefault(row, []).append(command)
    lines = [
        "# Options and keys",
        "",
        "Every option of every command. In a file of `--config` a key is the flag without its two "
        "hyphens: `max_length: 8192` or `max-length: 8192`. [Mixtures](../mixtures.md) have a file "
        "of their own.",
    ]
    for title, rows in groups.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| option | value | what it does | commands |",
            "|-|-|-|-|",
        ]
        lines += [f"{row} {', '.join(commands)} |" for row, commands in rows.items()]
    lines += ["", "## Words of other trainers", "", "Keys of a file, and nowhere else.", ""]
    lines += ["| key | is |", "|-|-|", *(f"| `{key}` | `{own}` |" for key, own in _ALIASES.items())]
    return "\n".join(lines) + "\n"


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    choices = getattr(option.type, "choices", ())
    form = ", ".join(f"`{choice}`" for choice in choices)
    form = form or (option.metavar or option.type.name).replace("|", "/")
    is_told = isinstance(option.default, (str, int, float)) and option.default not in ("", 0)
    return f"{form} ({option.default})" if is_told else form


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each package: public names that no earlier page has, for mkdocstrings.

    Raises:
        ValueError: a public name has no docstring.
    """
    homes: set[str] = set()
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
        except (ImportError, MissingExtraError):
            continue
        lines = [f"# {package}", "", (inspect.getdoc(module) or "").partition("\n\n")[0], ""]
        for name in sorted(set(module.__all__) - {"__version__"}, key=str.lower):
            home = home_of(module, name)
            if home not in homes:
                lines += [f"## {name} {{#{package}.{name}}}", "", f"::: {home}", ""]
                homes.add(home)
        yield f"reference/{package}.md", "\n".join(lines)


def home_of(module: Any, name: str) -> str:
    """Return the full name of the place where a public name is defined and documented.

    Raises:
        ValueError: it has no docstring.
    """
    value = getattr(module, name)
    path = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', name)}"
    if inspect.isclass(value) or inspect.isroutine(value):
        has_text = bool(inspect.getdoc(value))
    else:
        path = next(_assignments(module, name), f"{module.__name__}.{name}")
        has_text = path != f"{module.__name__}.{name}" or path in _assignments(module, name)
    if not has_text:
        raise ValueError(f"{module.__name__}.{name} is public and has no docstring")
    return path


def _assignments(module: Any, name: str) -> Iterator[str]:
    """Yield where a constant with a docstring is assigned: in the module, or where it is from."""
    tree = ast.parse(inspect.getsource(module))
    for statement, text in zip(tree.body, tree.body[1:], strict=False):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(getattr(target, "id", None) == name for target in targets):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if is_text and isinstance(text.value.value, str):  # type: ignore[attr-defined]
                yield f"{module.__name__}.{name}"
    for statement in ast.walk(tree):
        is_import = isinstance(statement, ast.ImportFrom) and statement.module
        if is_import and any((it.asname or it.name) == name for it in statement.names):  # type: ignore[attr-defined]
            yield from _assignments(importlib.import_module(statement.module), name)  # type: ignore[attr-defined]


def example_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each example, and one that lists them."""
    index = ["# Examples", "", "Each is a whole script that runs without a GPU.", ""]
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        text = inspect.cleandoc(ast.get_docstring(ast.parse(code)) or "")
        index.append(f"- [{path.name}]({path.stem}.md): {text.partition(chr(10))[0]}")
        rest = code.partition('"""')[2].partition('"""')[2].lstrip()
        yield f"examples/{path.stem}.md", f"# {path.name}\n\n{text}\n\n```python\n{rest}```\n"
    yield "examples/index.md", "\n".join(index) + "\n"


def notebook_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each notebook: its text, its code, and what each cell printed or drew."""
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        blocks = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            blocks.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
            for output in cell.get("outputs", ()):
                data = output.get("data", {"text/plain": output.get("text", "")})
                printed = "".join(data["text/plain"]).rstrip()
                drawn = "".join(data.get("image/png", "")).replace("\n", "")
                block = f"![{printed}](data:image/png;base64,{drawn})"
                blocks.append(block if drawn else f"```text\n{printed}\n```")
        yield f"notebooks/{path.stem}.md", "\n\n".join(blocks) + "\n"


def keys_of_dialects() -> str:
    """Return a section for each dialect: its table, and the docstring of its function."""
    sections = []
    for name, dialect in DIALECTS.items():
        text = markdown_of(inspect.getdoc(dialect.load()) or "")
        sections += [
            f"\n## `{name}`\n",
            re.sub(r"^(Args|Raises):$", r"**\1**\n", text, flags=re.MULTILINE),
            "\n| key | type, shape | holds | |\n|---|---|---|---|",
            *(
                f"| `{key.name}` | `{key.form}` | {key.holds} | {key.note} |"
                for key in dialect.keys
            ),
            "",
        ]
    return "\n".join(sections)


def made_pages() -> Iterator[tuple[str, str]]:
    """Yield every page that is no file of ``docs``: its path, its text."""
    for path in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        yield PLACES[path], (ROOT / path).read_text(encoding="utf-8")
    for result in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        yield f"results/{result.name}", result.read_text(encoding="utf-8")
    yield "reference/options.md", options_page()
    yield from api_pages()
    yield from example_pages()
    yield from notebook_pages()


# ── what MkDocs calls ─────────────────────────────────────────────────────────────────────────────

_lines: dict[str, tuple[str, str, str]] = {}
"""Of each page: title, address, first sentence; for ``llms.txt``."""


def expanded(nav: Sequence[Any], pages: Sequence[str]) -> list[Any]:
    """Return a navigation with its patterns replaced by the pages that no other line names.

    >>> expanded(["a.md", {"Rest": ["*.md"]}], ["b.md", "a.md"])
    ['a.md', {'Rest': ['b.md']}]
    """
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))

    def lines(entries: Sequence[Any]) -> Iterator[Any]:
        for entry in entries:
            if isinstance(entry, dict):
                yield {
                    title: list(lines(below)) if isinstance(below, list) else below
                    for title, below in entry.items()
                }
            elif "*" in entry:
                depth = entry.count("/")
                found = (page for page in pages if fnmatch(page, entry))
                yield from (it for it in found if it.count("/") == depth and it not in named)
            else:
                yield entry

    return list(lines(nav))


def on_config(config: Any) -> Any:
    """Put every page in its place of the navigation."""
    docs = Path(config.docs_dir)
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    pages += [f"reference/{package}.md" for package in PACKAGES]
    pages += [path for path, _ in notebook_pages()]
    config.nav = expanded(config.nav, pages)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    try:
        for path, text in made_pages():
            files.append(File.generated(config, path, content=text))
    except ValueError as error:
        raise PluginError(str(error)) from error
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn a page of the repository into a page of the site."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    paragraphs = re.findall(r"^(?![#|!\s>*:-]).+(?:\n(?!\n).+)*", text, flags=re.MULTILINE)
    first = " ".join(paragraphs[0].split()) if paragraphs else ""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
    title = re.search(r"^# (.*)$", markdown, flags=re.MULTILINE)
    sentence = re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
    _lines[page.file.src_uri] = (title[1] if title else page.file.src_uri, page.url, sentence)
    if page.file.src_uri == "dialects.md":
        markdown += keys_of_dialects()
    markdown = _DOCSTRING.sub(
        lambda it: markdown_of(inspect.getdoc(importlib.import_module(it[1])) or ""), markdown
    )
    return for_the_site(markdown, page.file.src_uri)


def llms_txt(nav: Sequence[Any], lines: dict[str, tuple[str, str, str]]) -> str:
    """Return the list of pages for language models (the form of llmstxt.org).

    >>> print(llms_txt([{"Start": ["a.md"]}], {"a.md": ("A", "a/", "First.")}), end="")
    # brimful
    <BLANKLINE>
    > Pack training samples of any length into full sequences: plan once, prove it is right, use it
    > in any trainer.
    <BLANKLINE>
    ## Start
    <BLANKLINE>
    - [A](a/): First.
    """
    out = [
        "# brimful",
        "",
        "> Pack training samples of any length into full sequences: plan once, prove it is right, use it",
        "> in any trainer.",
    ]
    for section in nav:
        ((title, _),) = section.items()
        out += ["", f"## {title}", ""]
        for path in re.findall(r"'([\w./-]+\.md)'", str(section)):
            name, url, sentence = lines[path]
            out.append(f"- [{name}]({url}): {sentence}" if sentence else f"- [{name}]({url})")
    return "\n".join(out) + "\n"


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``."""
    (Path(config.site_dir) / "llms.txt").write_text(llms_txt(config.nav, _lines), encoding="utf-8")
