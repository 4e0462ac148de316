"""Scripts as trainers ship them: what is certain is read as the shell would, and the rest is unknown, with its line."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.doctor.config.command_lines import CommandLine, Word, command_settings
from brimful.doctor.config.examine import examine, read_settings
from brimful.doctor.config.settings import Given, Unknown, unveiled
from brimful.doctor.config.shell_scripts import Script
from brimful.errors import SettingsError


def read(script: str, folder: Path) -> dict[str, Any]:
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    return {key: given.value for key, given in read_settings(path).values.items()}


def test_a_command_in_a_loop(tmp_path: Path) -> None:
    """Megatron-Bridge tries several layouts; what all have in common is read, their differences stay unknown."""
    values = read(
        """
        RUN="srun --mpi=pmix"
        for LAYOUT in "2,1" "4,1"; do
            TP=$(echo "$LAYOUT" | cut -d, -f1)
            $RUN bash -c "uv run python run_recipe.py --recipe gpt_oss model.tensor_model_parallel_size=$TP"
        done
        """,
        tmp_path,
    )
    assert values["recipe"] == "gpt_oss"
    assert type(values["recipe"]) is str
    assert isinstance(values["model.tensor_model_parallel_size"], Unknown)


@pytest.mark.parametrize("start", ["ARGS=(--packing true --lr 1", 'ARGS="--packing true --lr 1'])
@pytest.mark.parametrize("branch", ['if [ -n "$X" ]; then {}; fi', '[ -n "$X" ] && {}', "case $X in a) {} ;; esac"])
def test_what_a_branch_adds_is_unknown_and_the_rest_is_known(start: str, branch: str, tmp_path: Path) -> None:
    """Scripts of Megatron-LM and verl add arguments in branches; examined as if none ran, a fault in them is missed."""
    is_array = start.endswith("(--packing true --lr 1")
    more = "ARGS+=(--max_length 8 --lr 2)" if is_array else 'ARGS="$ARGS --max_length 8 --lr 2"'
    script = f"{start}{')' if is_array else chr(34)}\n{branch.format(more)}\n"
    values = read(script + ('trl sft "${ARGS[@]}" --seed 3' if is_array else "trl sft $ARGS --seed 3"), tmp_path)
    assert (values["packing"], values["seed"]) == (True, 3)
    assert isinstance(values["max_length"], Unknown)
    assert isinstance(values["lr"], Unknown)
    assert "line 2 of" in values["lr"]


def test_of_two_trainings_in_branches_only_what_they_share_is_known(tmp_path: Path) -> None:
    """Without it the branch with more arguments is examined, and the other one runs."""
    script = "if [ $1 ]; then\n trl sft --a 1 --b 2 --c 3\nelse\n trl sft --a 1 --b 3\nfi\n"
    (tmp_path / "run.sh").write_text(script)
    run = read_settings(tmp_path / "run.sh")
    lines = [f"line {line} of {tmp_path}/run.sh" for line in (2, 4)]
    assert run.values == {
        "a": Given(1, lines[0]),
        "b": Given("2 or 3", ", ".join(lines)),
        "c": Given("3 or not set", lines[0]),
    }
    assert [type(given.value).__name__ for given in run.values.values()] == ["int", "Unknown", "Unknown"]


def test_a_report_says_what_only_the_run_knows(tmp_path: Path) -> None:
    """Silence about a setting that a branch gives reads as the default of the trainer."""
    path = tmp_path / "run.sh"
    path.write_text(
        "PACK=true\nif [ $FAST ]; then PACK=false; fi\ntrl sft --packing $PACK --attn_implementation sdpa $MORE\n"
    )
    report = examine(path, trainer="trl", version="1.16.0")
    lines = {line.topic: line for line in report.lines}
    assert lines["packing"].evidence.value == "unknown"
    assert "packing: $PACK (set on line 2 of" in lines["packing"].text
    notes = "\n".join(report.notes)
    assert "unknown before the run: packing: $PACK (set on line 2 of" in notes
    assert "unknown before the run: $MORE (line 3 of" in notes
    assert "which may hold any setting" in notes
    path.write_text("trl sft --packing true --attn_implementation sdpa\n")
    assert examine(path, trainer="trl", version="1.16.0").notes == ()


def test_a_program_of_the_environment(tmp_path: Path) -> None:
    """verl's own tests name the program from outside; its settings are there all the same."""
    assert read("$COMMAND data.use_dynamic_bsz=True", tmp_path) == {"data.use_dynamic_bsz": True}
    with pytest.raises(SettingsError, match="starts no training"):
        read("$CLEANUP", tmp_path)


def words_of(script: str, *parameters: str) -> list[list[str]]:
    """The words of each command that may run."""
    given = [Word(text, "line 0") for text in parameters]
    lines = Script(script, "folder/run.sh").started({}, given)
    return [[unveiled(word.text) for word in command] for command in lines.commands()]


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("a b\tc", "a, b, c"),
        ("a b # c\nd", "a, b; d"),
        ("a b#c", "a, b#c"),
        ("a \\\n  b", "a, b"),
        ("a; b & c && d || e | f", "a; b; c; d; e; f"),
        ("(a b)\nc", "a, b; c"),
        ("a 'b c' d", "a, b c, d"),
        ("a 'b'c\"d e\"f", "a, bcd ef"),
        ("a '' \"\" b", "a, , , b"),
        ("a b\\ c \\'d", "a, b c, 'd"),
        (r'a "b\"c" "d\\e" "f\$g" "h\`i" "j\k"', 'a, b"c, d\\e, f$g, h`i, j\\k'),
        ('a "b\\\nc"', "a, bc"),
        ("a `b c` d", "a, $`b c`, d"),
        ("a $ b $", "a, $, b, $"),
        ("a > out 2>&1 b < in", "a, b"),
        ("a >> out b &> all c", "a, b, c"),
        ("a < <(b c) d", "a, d"),
        ("a <<< text b", "a, b"),
        ("a << EOF b\nx y\nEOF\nc", "a, b; c"),
        ("a <<- EOF\n\tx\n\tEOF\nc", "a; c"),
        ("a << 'ONE' b\nx '\nONE\nc", "a, b; c"),
        ("X=1\na $X ${X} \"$X\" '$X' ${X}2 $X2", "a, 1, 1, 1, $X, 12, $X2"),
        ("X='b  c'\na $X \"$X\" d${X}e", "a, b, c, b  c, db, ce"),
        ("X=' b '\na c$X d", "a, c, b, d"),
        ("X=b X+=c\na $X", "a, bc"),
        ("X=(b 'c d')\na ${X[@]} \"${X[*]}\"", "a, b, c d, b, c d"),
        ("X=(b 'c d')\na $X \"${X[1]}\"", "a, $X, ${X[1]}"),
        ("X=(b\n  c # no\n)\nX+=(d)\na \"x${X[@]}y\"", "a, xb, c, dy"),
        ("X=()\na \"${X[@]}\" b", "a, b"),
        ("a ${X:-b} ${X-c d} ${X:=e} $X", "a, b, c, d, e, e"),
        ("X=\na ${X:-b} \"${X-c}\"", "a, b, "),
        ("X=1\na ${X:-b} ${X-c} ${X:+d} ${Y:+f} ${X%.*} ${X:?g}", "a, 1, 1, ${X:+d}, ${Y:+f}, ${X%.*}, ${X:?g}"),
        ("X=1\na ${Y:-${X}2} ${Y:-'b c'} \"${Y:-\"d e\"}\"", "a, 12, b, c, d e"),
        ("X=6\na $((X * 2 + 1)) $((X / 4)) $(($X - 1)) $(expr $X \\* 3)", "a, 13, 1, 5, 18"),
        ("a $((Y + 1)) $(date) $(( 1 / 0 )) $((08))", "a, $((Y + 1)), $(date), $(( 1 / 0 )), $((08))"),
        ("a $'b' $(basename $(dirname $0))", "a, $'b', $(basename $(dirname $0))"),
        ("a $(dirname $0)/b \"$(cd \"$(dirname \"$0\")\" && pwd)\"", "a, folder/b, folder"),
        ("X=$(cat << EOF\nb c\nEOF\n)\na $X", "a, $(cat << EOF\n\n\n)"),
        ("export X=1; declare -r Y=2\nlocal Z\na $X$Y", "a, 12"),
        ("X=1 a $X", "X=1, a, $X"),
        ("! a b\necho c", "a, b; echo, c"),
        ("if true; then a; elif b; then c; else d; fi", "true; a; b; c; d"),
        ("a && b || c", "a; b; c"),
        ("case $X in\na|b) c ;;\n(d) e ;;\n*) f ;;\nesac\ng", "a; c; d; e; f; g"),
        ("for X in b; do a $X; done", "a, $X (set on line 1 of folder/run.sh)"),
        ("while a; do b; done\nuntil c; do d; done", "a; b; c; d"),
        ("X=1\nif [ -f x ]; then X=2; fi\na $X", "[, -f, x, ]; a, $X (set on line 2 of folder/run.sh)"),
        ("X=1\nif true; then X=1; fi\na $X", "true; a, 1"),
        ("X=1\nfalse && X=2\na $X", "false; a, $X (set on line 2 of folder/run.sh)"),
        ("X=1\nfalse ||\n\n X=2\na $X", "false; a, $X (set on line 4 of folder/run.sh)"),
        ("X=1\nfor Y in 1 2; do\na $X\nX=2\ndone", "a, $X (set on line 2 of folder/run.sh or later)"),
        ("X=1\nfor Y in 1 2; do\na $X\n((X++))\ndone", "a, $X (set on line 2 of folder/run.sh or later)"),
        ("f() {\na $X $1 \"$@\"\n}\nX=2\nf b", "a, $X (set on line 1 of folder/run.sh or later), $1, $@; f, b"),
        ("Y=0\nmain() {\nlocal X=1\na $X $Y ${1:-2}\n}\n\nmain \"$@\"\n", "a, 1, 0, 2"),
        ("function main {\nX=1\nif b; then X=2; fi\na $X\n}\nmain \"$@\"", "b; a, $X (set on line 3 of folder/run.sh)"),
        ("main() {\nX=1\na $X\n}\nf() {\nb\n}\nmain \"$@\"", "a, $X (set on line 2 of folder/run.sh); b; main"),
        ("main() {\nX=1\na $X\n}\nmain \"$@\"\nX=2", "a, $X (set on line 2 of folder/run.sh); main"),
        ("f() { X=2; }\nX=1\nf\na $X", "f; a, $X (set on line 2 of folder/run.sh)"),
        ("X=1\n(X=2)\na $X", "a, $X (set on line 2 of folder/run.sh)"),
        ("X=1\nunset X; read X\na $X", "a, $X (set on line 2 of folder/run.sh)"),
        ("X=1\n(case $Y in\nb) c ;;\nesac\nX=2)\na $X", "c; a, $X (set on line 5 of folder/run.sh)"),
        ("X=(b)\nX[0]=c\nX+=(d)\na \"${X[@]}\"", "a, $X (set on line 3 of folder/run.sh)"),
    ],
)  # fmt: skip
def test_words_are_the_ones_of_the_shell(script: str, commands: str) -> None:
    """A quote, an array or a default that is read otherwise gives the training other settings than it has."""
    assert words_of(script) == [command.split(", ") for command in commands.split("; ")]


def test_parameters_of_a_script_are_its_words() -> None:
    assert words_of('a "$@" x$*y', "b", "c d") == [["a", "b", "c d", "xb", "c dy"]]
    assert words_of("a ${1:-e}") == [["a", "e"]]
    # The words of one parameter are not told from those of another: one may be several, or none.
    assert words_of("a $1 ${1:-e} $0", "b") == [["a", "$1", "${1:-e}", "$0"]]
    assert words_of('shift\na "$@"', "b") == [["a", "$@ (set on line 1 of folder/run.sh)"]]
    assert words_of('set -- c\na "$@"', "b") == [["a", "$@ (set on line 1 of folder/run.sh)"]]


def test_each_word_has_its_line() -> None:
    """The report names the line to change, also of a word in the value of a variable or an array."""
    script = "X=(b\n  c)\nY=d\n\na \\\n  \"${X[@]}\" $Y \\\n  'e\nf' g\nh"
    places = {
        word.text: int(word.where.split()[1]) for command in Script(script, "run.sh").commands() for word in command
    }
    assert places == {"a": 5, "b": 1, "c": 2, "d": 6, "e\nf": 7, "g": 8, "h": 9}


@pytest.mark.parametrize("script", ["a\nb 'c", 'a\nb "c', "a\nb $(c", "a\nb `c", "a\nb ${c"])
def test_what_is_not_closed_is_told_with_its_line(script: str) -> None:
    with pytest.raises(SettingsError, match=r"line 2 of folder/run.sh: a (quote|bracket) is not closed"):
        words_of(script)


def test_variables_that_double_are_unknown_from_some_length_on() -> None:
    """A script of thirty lines would fill the memory."""
    script = "X=aaaaaaaaaa\n" + 'X="$X$X"\n' * 30 + "a $X b"
    (words,) = words_of(script)
    assert (words[0], words[-1]) == ("a", "b")
    assert len(words[1]) < 200_000


COMMAND = 'trl sft --a "$A" --k 1 "${L[@]}" --b "$B"'
ATOMS = (
    *("A=1", "A=2", "B=3", "A+=4", 'B="$A-5"', "A=${B:-6}", ": ${B:=7}", "export A=8", "unset A", "A=$((2 + 1))", "A="),
    *("L=(--x 1)", "L=(--x 2 --y 3)", 'L+=(--y "$A")', "L+=(--z)", "L=()", "unset L", "L[0]=--w", "((A++))", "shift"),
    *(
        'A="$B"',
        "B=$(echo 7)",
        "read A <<< 6",
        "declare B=2",
        'eval "A=5"',
        "A=5 true",
        'B="$A" A=3',
        'L+=("$@")',
        "f 1 2",
    ),
)
BLOCKS = (
    *('if [ "$C" = 1 ]; then\n{}\n{}\nelse\n{}\nfi', 'if [ "$C" = 1 ]; then {}\nfi', '[ "$D" = 1 ] && {}'),
    *('[ "$D" = 1 ] || {}', "for A in 1 2; do\n{}\n{}\ndone", "for I in 1 2; do\n{}\n{}\n{}\ndone", "(\n{}\n{}\n)"),
    *('case "$D" in\n1) {} ;;\n*) {}\n{} ;;\nesac', "f() {{\n{}\n{}\n}}", "f() {{\n{}\n}}\nf 9", "{{ {}\n{}\n}}"),
    'while [ -z "$W" ]; do\n{}\n{}\nW=1\ndone',
)


def statement(draw: random.Random, depth: int = 0) -> str:
    if depth > 2 or draw.random() < 0.6:
        return draw.choice(ATOMS)
    block = draw.choice(BLOCKS)
    return block.format(*(statement(draw, depth + 1) for _ in range(block.count("{}"))))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 40))
def test_what_is_known_is_what_bash_passes(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The law of this reader: in no branch does a training get another value than one that is known.

    Without it a wrong value is examined, which is worse than none.
    """
    draw = random.Random(seed)
    lines = [statement(draw) for _ in range(draw.randint(1, 6))]
    around = draw.choice(
        ["{}", "{}", "f() {{\n{}\n}}\nA=9\nf 3", 'if [ "$C" = 1 ]; then\n{}\nfi', "for I in 1 2; do\n{}\nA=9\ndone"]
    )
    script = "\n".join([*lines, around.format(COMMAND), statement(draw), ""])
    if draw.random() < 0.2:
        script = f'B=8\nmain() {{\n{script}\n}}\nmain "$@"\n'
    folder = tmp_path_factory.mktemp("law")
    try:
        found = read(script, folder)
    except SettingsError:
        return  # a refusal says nothing wrong
    known = {key: value for key, value in found.items() if not isinstance(value, Unknown)}
    if any(key.startswith("$") for key in found):
        return  # words that may hold any setting, and the report says so
    driver = "f() { :; }; trl() { printf 'run\\0'; printf '%s\\0' \"$@\"; }; source ./run.sh"
    for number in range(4):
        bits = {"C": str(number % 2), "D": str(number // 2), "FUNCNEST": "4", "PATH": os.environ["PATH"]}
        output = subprocess.run(
            ["bash", "-c", driver],
            cwd=folder,
            env=bits,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=20,
        ).stdout
        for run in output.split("run\0")[1:]:
            words = [Word(text, "") for text in ["trl", *run.split("\0")[:-1]]]
            passed = {key: one.value for key, one in command_settings(CommandLine.of(words), "").values.items()}
            assert {key: passed.get(key) for key in known if not key.startswith("environ.")} == {
                key: value for key, value in known.items() if not key.startswith("environ.")
            }, script
            assert set(passed) <= set(found), script
