"""The words of the package: sentences that open with a verb or a noun, names that are nouns, comments where code is hard.

The rule is in CONTRIBUTING.md, section "Words".
"""

import ast
import functools
import re

from tests.library import modules

MIN_COMMENTS = 20
"""Comments on a line of their own, for each thousand lines of code."""

MAX_SHARE_OF_WORDS = 0.03
"""Share of the parameters and locals of all functions that may be one of ``WORDS``, or a participle."""

RELATIVE = re.compile(
    r"(what|where|which|whether|of|as|so|how|who|whose|whom|when|that|why|whatever|wherever|whichever)\b", re.IGNORECASE
)

WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        above across afresh after again against ahead all alone along already also always anew another any apart
        around as at away back before begun behind below beside besides between beyond both bought brought built
        by caught cut done down drawn each either else enough even ever every felt few for fought found from gone
        got grown heard held here how in instead into it its just kept known laid least led left lent less let lit
        lost made many meant met more most much near neither never new none now of off old on once only onto other
        others out over own paid past put quite rather read ready rest rung said same sat seen sent shown shut
        since slept so sold some spent still such that them then there these they this those through thus till to
        together told too under unfit unknown unread unseen until up useless very what whatever when where whether
        which who whole whose why with within without yet
        """,
    )
)
"""Adverbs, prepositions, quantifiers, pronouns, and participles with no ending of their own."""

PARTICIPLE = re.compile(r"[a-z]{2,}(ed|ing|[^aeiou]en)")

NOUNS = frozenset(
    re.findall(
        r"\w+",
        """
        beginning binding building children embedding encoding ending finding grouping heading labeling listing mapping meaning need
        opening ordering packing padding reading rounding sampling saving scaling seed setting seven sharding sharing
        speed spelling string thing timing token training warning
        """,
    )
)
"""Nouns that end like a participle, and a number."""


@functools.cache
def docstrings(module):
    """Every text that stands alone as a statement: of modules, classes and functions, and below constants and fields."""
    return [
        (statement, statement.value.value.strip())
        for node in module.nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]


def names_of_functions(module):
    """Pairs of name and line: each parameter and each local of each function, once, without locals of functions in it."""
    for function in module.nodes:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        lines = {argument.arg: argument.lineno for argument in every if argument is not None}
        nodes: list[ast.AST] = [*function.body]
        while nodes:
            node = nodes.pop()
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    lines.setdefault(node.id, node.lineno)
                nodes.extend(ast.iter_child_nodes(node))
        yield from ((name, line) for name, line in lines.items() if name not in ("self", "cls"))


def is_no_noun(name):
    name = name.strip("_")
    return name in WORDS or (name not in NOUNS and PARTICIPLE.fullmatch(name) is not None)


def test_docstrings_open_with_a_verb_or_a_noun():
    """A sentence such as "What is left of …" makes a reader wait for its verb."""
    number, wrong = 0, []
    for module in modules():
        for statement, text in docstrings(module):
            number += 1
            if match := RELATIVE.match(text):
                wrong.append(f"{module.file}:{statement.lineno}: {match.group()!r} opens {text.splitlines()[0]!r}")
    assert number > 1500
    assert not wrong, "\n".join(wrong)


def test_names_are_nouns():
    """``found``, ``left``, ``over``: a name without a noun says what happened, and not what it holds."""
    number, wrong = 0, []
    for module in modules():
        for name, line in names_of_functions(module):
            number += 1
            if is_no_noun(name):
                wrong.append(f"{module.file}:{line}: {name}")
    assert number > 5000
    share = len(wrong) / number
    assert share <= MAX_SHARE_OF_WORDS, f"{share:.1%} of {number} names\n" + "\n".join(wrong)


def test_code_has_comments():
    """A docstring says what a function is for; an invariant is read at its code."""
    num_comments = num_code = 0
    missing = []
    for module in modules():
        lines = module.text.splitlines()
        docs = {line for node, _ in docstrings(module) for line in range(node.lineno, node.end_lineno + 1)}
        texts = [node for node in module.nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
        in_texts = {line for node in texts for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)}
        comments = {line for line, content in enumerate(lines, 1) if content.lstrip().startswith("#")} - in_texts
        directives = {line for line in comments if re.match(r"\s*# (ruff|type|noqa|mypy)", lines[line - 1])}
        code = {line for line, content in enumerate(lines, 1) if content.strip()} - docs - comments
        num_comments += len(comments - directives)
        num_code += len(code)
        missing.append((len(code) * MIN_COMMENTS / 1000 - len(comments - directives), len(code), module.file))
    density = 1000 * num_comments / num_code
    worst = "\n".join(
        f"{file}:1: {size} lines of code, {lack:.0f} comments too few" for lack, size, file in sorted(missing)[:-16:-1]
    )
    assert density >= MIN_COMMENTS, f"{density:.1f} comments for a thousand lines of code; fewest in\n{worst}"
