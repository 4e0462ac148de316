"""What docs/architecture.md, docs/extending.md and CONTRIBUTING.md say of the code is so: packages, paths, names, arrows."""

import ast
import keyword
import re
from functools import cache
from pathlib import Path

import pytest

from brimful.plan import ALGORITHMS
from brimful.testing import contracts
from tests.contract import CONTRACT
from tests.library import ROOT as SOURCE
from tests.library import modules
from tests.test_layering import ANYTHING, BASE, PLAN_MAY_IMPORT

ROOT = Path(__file__).parents[1]
PAGES = ("docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md")
FORMATS = (ROOT / "docs/formats.md").read_text(encoding="utf-8")

PLACED_NAMES = re.compile(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, | and )?)+)")
"""A file and the names that are said to be in it, as in ``sources/opening.py``: ``open_source``."""


def page(name="docs/architecture.md"):
    """The text of a page without its drawings."""
    return re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def section(title):
    return page().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def quoted(text):
    return re.findall(r"`([^`\n]+)`", text)


def table(title, first_cell):
    """Rows of the table whose first heading is ``first_cell``, each as the texts of its cells."""
    (lines,) = re.findall(
        rf"^\| *{re.escape(first_cell)} *\|.*\n\|[-| ]+\|\n((?:\|.*\n?)+)", section(title), re.MULTILINE
    )
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]


def members(body, prefix=""):
    """Names that statements define, and those inside of their classes with and without the name of the class."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from members(node.body, f"{node.name}.")
                yield from members(node.body)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@cache
def names_in(path):
    return set(members(tree(path).body))


@cache
def trees():
    return {str(module.path): module.tree for module in modules()}


def tree(path):
    return trees()[str(path)]


@cache
def all_names():
    """Everything that has a name in the package: modules, definitions, parameters, algorithms."""
    names = {"brimful", *BASE, *ANYTHING, *ALGORITHMS}
    for module in modules():
        parts = module.path.relative_to(SOURCE).with_suffix("").parts
        names |= {".".join(parts[first:]) for first in range(len(parts))} | set(parts)
        names |= {f"{parts[-1]}.{name}" for name in names_in(module.path)} | names_in(module.path)
        names |= {node.arg for node in module.nodes if isinstance(node, ast.arg)}
    return names


def is_there(path):
    """A path of the package, of the repository, or of what brimful writes."""
    folder = path.partition("<")[0].rpartition("/")[0] if "<" in path else path
    return (
        (SOURCE / folder).exists() or (SOURCE / f"{folder}.py").exists() or (ROOT / folder).exists() or path in FORMATS
    )


def files_that_import(module, name=""):
    """Files of the package, the base without the module itself left out, that import a name of a module."""
    return {
        one.file
        for one in modules()
        for statement in one.imports
        if statement.module == module and (not name or name in statement.names)
    }


@pytest.mark.parametrize("name", PAGES)
def test_every_path_and_name_exists(name):
    """A map that names a street which was renamed is worse than none."""
    tokens = quoted(page(name))
    paths = [
        token for token in tokens if "/" in token or token.endswith((".py", ".arrow", ".json", ".jsonl", ".md", ".cff"))
    ]
    paths = [token for token in paths if " " not in token]
    assert len(paths) > 10
    assert [path for path in paths if not is_there(path)] == []
    names = [
        token.removeprefix("brimful.")
        for token in tokens
        if re.fullmatch(r"[A-Za-z_][\w.]*\w", token) and token not in paths
    ]
    assert len(names) > 20
    assert sorted({name for name in names if name not in all_names() and not keyword.iskeyword(name)}) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_name_is_in_the_file_that_is_named(name):
    """A reader who opens the file looks for the function in vain."""
    pairs = [(file, token) for file, names in PLACED_NAMES.findall(page(name)) for token in quoted(names)]
    assert pairs
    assert [
        f"{file}: {token}"
        for file, token in pairs
        if not (SOURCE / file).exists() or token not in names_in(SOURCE / file)
    ] == []


def test_every_package_and_room_is_on_the_page():
    """What the map leaves out is not found."""
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")} - {"."}
    rooms = {f"plan/{room}" for room in rooms_of_the_plan()}
    said = {token.rstrip("/") for token in quoted(page())} | rooms
    assert sorted(folders - said) == []


def rooms_of_the_plan():
    """In the order of the page."""
    return quoted(section("The plan").partition("The rooms,")[2].partition("Each docstring")[0])


def test_the_page_has_the_rooms_of_the_plan():
    """In the order of their arrows, which the tests of imports have."""
    assert rooms_of_the_plan() == list(PLAN_MAY_IMPORT)


def test_one_module_draws_and_one_compiles():
    """Each is looked for first when two machines differ."""
    assert files_that_import("numba") == {"base/compiling.py"}
    makers = {
        one.file
        for one in modules()
        for node in one.nodes
        if isinstance(node, ast.Attribute)
        and re.match(r"np\.random\.(default_rng|Philox|PCG64|RandomState)", ast.unparse(node))
    }
    assert makers == {"base/rng.py", "testing/toys.py"}


def test_the_wall_clock_is_read_where_the_page_says():
    """It jumps back an hour and forward a day: a wait that it measured would end at once, or a day later."""
    readers = {
        one.file
        for one in modules()
        for node in one.nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns", "time.localtime")
    }
    sentence = section("What is pure").partition("read the wall clock: ")[2]
    assert readers == {name for name in quoted(sentence) if name.endswith(".py")}


def test_contracts_that_contributors_derive_from_are_published():
    """CONTRIBUTING sends everyone who adds a source, a blob store or a dialect to one of them."""
    assert {name for name in quoted(page("docs/extending.md")) if name.endswith("Contract")} == {
        name for name in vars(contracts) if name.endswith("Contract")
    }


def test_the_page_on_choosing_knows_every_algorithm():
    """Help and settings read the table of algorithms by themselves; a page is forgotten."""
    said = set(quoted(page("docs/choosing.md")))
    assert sorted({name for entry in ALGORITHMS.values() for name in (entry.name, *entry.aliases)} - said) == []


def test_every_test_of_the_contract_exists():
    """A name that was changed would leave the list in silence."""
    tests = ROOT / "tests"
    names = {
        node.name
        for path in tests.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    listed = [name for group in CONTRACT.values() for name in group]
    assert len(listed) == len(set(listed)) > 110
    assert sorted(set(listed) - names) == []
