"""Rooms of the library: which module is core, which is a wing, and what each may weigh.

    python -m tests.rooms                 tokens, files and arrows of each room
    python -m tests.rooms --arrows        each import from the core into a wing
    python -m tests.rooms --words         each line of the core that says what belongs to a wing
    python -m tests.rooms --names         names of no field in each room, and classes whose name is taken

A token is a name, a number, a string or an operator; docstrings and comments do not count. The core is complete without
the wings: chats and documents, flat packs, every dialect. A wing begins at one seam, and the core imports none.
"""

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.library import ROOT, Import, Module, modules

CORE = ("base", "sources", "encode", "lengths", "measure", "plan", "store", "serve", "collate")

WINGS: dict[str, tuple[str, ...]] = {
    "trees": ("trees/",),
    "planners": ("planners/",),
    "mixtures": ("mixtures/",),
    "dynamic": ("dynamic/",),
    "fast": ("fast/",),
    "clusters": ("clusters/",),
    "media": ("media/",),
    "stream": ("stream/",),
    "rl": ("rl/",),
    "preferences": ("preferences/",),
    "integrations": ("integrations/",),
    "report": ("report/",),
    "cli": ("cli/",),
    "testing": ("testing/",),
    "check": ("verify/", "doctor/"),
    "names": ("__init__", "__main__"),
}
"""Modules of each wing, as beginnings of their files; a module in none is core, and its room is its folder.

``names`` are the modules at the top, which only say where public names are.
"""

WORDS = {
    "trees": r"tree|trees|forest|trunk|trunks|prefix|prefixes|parents|fork|forks|shared_prefix\w*",
    "media": r"media|medium|image|images|video|videos|audio|pixel\w*|mrope",
    "mixtures": r"mixture|mixtures|mixed|proportions|weights_of_sources|temperature",
}
"""Words of three wings, as patterns of a part of an identifier or of a word in a text."""


def room_of(file: str) -> str:
    """Return the room of a file: ``trees`` for ``trees/prefixes.py``, and ``base`` for ``errors.py``."""
    name = file.removesuffix(".py")
    for wing, beginnings in WINGS.items():
        if any(name == one or (one.endswith("/") and name.startswith(one)) for one in beginnings):
            return wing
    room = name.partition("/")[0]
    return room if room in CORE else "base"


def tokens_of(module: Module) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens of a module that count."""
    skip = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENDMARKER, tokenize.ENCODING),
    }
    documentation = {
        (node.value.lineno, node.value.col_offset)
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in skip and token.start not in documentation:
            yield token


@cache
def tokens() -> Counter[str]:
    """Return the tokens of each room."""
    count: Counter[str] = Counter()
    for module in modules():
        count[room_of(module.file)] += sum(1 for _ in tokens_of(module))
    return count


def weight_of_tests() -> float:
    """Return the tokens of all tests, for each token of the library."""
    return sum(1 for path in Path(__file__).parent.rglob("*.py") for _ in tokens_of(Module(path))) / tokens().total()


def files() -> Counter[str]:
    """Return the modules of each room."""
    return Counter(room_of(module.file) for module in modules())


def targets_of(one: Import) -> Iterator[str]:
    """Yield the files that an import reads from, as ``plan/planner.py``."""
    if one.module.partition(".")[0] != "brimful":
        return
    path = one.module.split(".")[1:]
    here = ROOT.joinpath(*path)
    inner = [name for name in one.names if (here / name).is_dir() or (here / f"{name}.py").exists()]
    for name in inner:
        folder = (here / name).is_dir()
        yield "/".join([*path, name, "__init__.py"] if folder else [*path, f"{name}.py"])
    if len(inner) < max(1, len(one.names)):
        yield "/".join([*path, "__init__.py"]) if here.is_dir() else "/".join(path) + ".py"


def arrows() -> list[tuple[str, str]]:
    """Return pairs of files: a module of the core, and one of a wing that it imports, for types too."""
    found = {
        (module.file, target)
        for module in modules()
        if room_of(module.file) in CORE
        for one in module.imports
        for target in targets_of(one)
        if room_of(target) not in CORE
    }
    return sorted(found)


SWITCHBOARD = "base/wings.py"
"""The module of the core that names wings for all others."""

TABLES = {SWITCHBOARD, "base/sharing.py", "plan/algorithms.py", "collate/dialects/__init__.py"}
"""Modules of the core in which a text may be the name of a module of a wing, to be loaded."""


def names_of_wings() -> set[str]:
    """Return the files of the core in which a text, but no sentence, is the name of a module of a wing."""
    name = re.compile(r"brimful((?:\.\w+)+)(?::\w+)?")
    return {
        module.file
        for module in modules()
        if room_of(module.file) in CORE
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in [name.fullmatch(node.value)]
        if found and room_of(found[1][1:].replace(".", "/") + "/") not in CORE
    }


def lines_with(wing: str) -> list[str]:
    """Return ``file:line: text`` for each line of the core's code that says a word of a wing."""
    pattern = re.compile(WORDS[wing])
    found = []
    for module in modules():
        if room_of(module.file) not in CORE or module.file == SWITCHBOARD:
            continue
        lines = {
            token.start[0]
            for token in tokens_of(module)
            if token.type in (tokenize.NAME, tokenize.STRING)
            and any(pattern.fullmatch(part) for part in _parts(token.string))
        }
        text = module.text.splitlines()
        found += [f"{module.file}:{number}: {text[number - 1].strip()}" for number in sorted(lines)]
    return found


VAGUE = re.compile(r"(place|part|number|kind|word|begin)s?")
"""Parts of an identifier for which the field has a name: index, position, offset, count, type, start."""


@cache
def identifiers() -> Counter[tuple[str, str]]:
    """Return how often each room says each identifier."""
    return Counter(
        (room_of(module.file), token.string)
        for module in modules()
        for token in tokens_of(module)
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    )


def vague_names(room: str = "") -> tuple[float, list[str]]:
    """Return the density of such parts in ten thousand identifiers of a room, or of all, and the most frequent ones."""
    names = {pair: count for pair, count in identifiers().items() if room in ("", pair[0])}
    vague = Counter({pair: n for pair, n in names.items() if any(map(VAGUE.fullmatch, _parts(pair[1])))})
    return 10_000 * vague.total() / sum(names.values()), [f"{name} {n}" for (_, name), n in vague.most_common(8)]


def classes_twice() -> dict[str, list[str]]:
    """Return the files of each class whose name another class has, too."""
    files: dict[str, list[str]] = {}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(module.file)
    return {name: where for name, where in sorted(files.items()) if len(where) > 1}


def _parts(text: str) -> Iterator[str]:
    for word in re.findall(r"[A-Za-z_]+", text):
        yield word
        yield from (part.lower() for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", word) if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", action="store_true")
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--names", action="store_true")
    arguments = parser.parse_args()
    if arguments.arrows:
        print(*(f"{source} -> {target} ({room_of(target)})" for source, target in arrows()), sep="\n")
    elif arguments.words:
        print(*(f"{wing}: {line}" for wing in WORDS for line in lines_with(wing)), sep="\n")
    elif arguments.names:
        for room in (*CORE, *WINGS, ""):
            density, names = vague_names(room)
            print(f"{room or 'all':14}{density:6.0f}  {', '.join(names)}")
        print(*(f"{name} twice: {', '.join(where)}" for name, where in classes_twice().items()), sep="\n")
    else:
        count, number = tokens(), files()
        for room in (*CORE, *WINGS):
            print(f"{room:14}{count[room]:9,}{number[room]:6}")
        core = sum(count[room] for room in CORE)
        print(
            f"{'core':14}{core:9,}{sum(number[room] for room in CORE):6}\n{'all':14}{count.total():9,}{number.total():6}"
        )
        print(f"{weight_of_tests():.3f} tokens of tests for each token of the source")
        ends = Counter(room_of(target) for _, target in arrows())
        print(f"{len(arrows())} arrows from the core: {', '.join(f'{end} {n}' for end, n in ends.most_common())}")
        print("lines of the core:", ", ".join(f"{wing} {len(lines_with(wing))}" for wing in WORDS))


if __name__ == "__main__":
    main()
