"""Scripts as trainers ship them: command lines that are built piece by piece are read as the shell would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.doctor.config.command_lines import Word
from brimful.doctor.config.examine import read_settings
from brimful.doctor.config.shell_scripts import Script
from brimful.errors import SettingsError


def read(script: str, folder: Path) -> dict[str, Any]:
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    return {key: given.value for key, given in read_settings(path).values.items()}


def test_a_command_grows_in_a_loop(tmp_path: Path) -> None:
    """Megatron-Bridge tries several layouts; what all have in common is read, their differences stay unknown."""
    values = read(
        """
        RUN="srun --mpi=pmix"
        for LAYOUT in "2,1" "4,1"; do
            TP=$(echo "$LAYOUT" | cut -d, -f1)
            CMD="uv run --no-sync python scripts/training/run_recipe.py"
            CMD="$CMD --recipe gpt_oss_20b_sft_config"
            CMD="$CMD model.tensor_model_parallel_size=$TP dataset.enable_offline_packing=true"
            $RUN bash -c "$CMD"
        done
        """,
        tmp_path,
    )
    assert values["recipe"] == "gpt_oss_20b_sft_config"
    assert values["dataset.enable_offline_packing"] is True
    assert not isinstance(values["model.tensor_model_parallel_size"], int)


def test_a_branch_stays_uncertain(tmp_path: Path) -> None:
    values = read(
        """
        PACKING=false
        for SEED in 1 2; do
            if [ "$MODE" = fast ]; then PACKING=true; fi
            trl sft --packing $PACKING --seed 1
        done
        """,
        tmp_path,
    )
    assert values["packing"] not in (True, False)


def test_echo_joins_lines(tmp_path: Path) -> None:
    values = read(
        r"""
        OVERRIDES="
            train.micro_batch_size=1 \
            dataset.enable_offline_packing=true
        "
        CMD="python run_recipe.py $(echo "$OVERRIDES" | tr '\n' ' ' | sed 's/  \+/ /g')"
        bash -c "$CMD"
        """,
        tmp_path,
    )
    assert values == {"train.micro_batch_size": 1, "dataset.enable_offline_packing": True}


@pytest.mark.parametrize("start", ["read -r -d '' RUN <<'EOF' || true", "RUN=$(cat <<'EOF'"])
def test_a_here_document_is_a_variable(start: str, tmp_path: Path) -> None:
    lines = [start, "torchrun --nproc_per_node=8 train.py --packing ${PACKING}", "EOF"]
    lines += [")"] if "cat" in start else []
    lines += ["export PACKING=true", 'srun bash -lc "${RUN}"']
    assert read("\n".join(lines), tmp_path)["packing"] is True


def test_a_program_of_the_environment(tmp_path: Path) -> None:
    """verl's own tests name the program from outside; its settings are there all the same."""
    assert read("$COMMAND data.use_dynamic_bsz=True", tmp_path) == {"data.use_dynamic_bsz": True}
    with pytest.raises(SettingsError, match="starts no training"):
        read("$CLEANUP", tmp_path)


def words_of(script: str, *parameters: str) -> list[list[str]]:
    """The words of each command that may run."""
    given = [Word(text, "line 0") for text in parameters]
    return [[word.text for word in command] for command in Script(script, "folder/run.sh", given).commands()]


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("a b\tc", [["a", "b", "c"]]),
        ("a b # c\nd", [["a", "b"], ["d"]]),
        ("a b#c", [["a", "b#c"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a; b & c && d || e | f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("(a b)\nc", [["a", "b"], ["c"]]),
        ("a 'b c' d", [["a", "b c", "d"]]),
        ("a 'b'c\"d e\"f", [["a", "bcd ef"]]),
        ("a '' \"\" b", [["a", "", "", "b"]]),
        ("a b\\ c \\'d", [["a", "b c", "'d"]]),
        (r'a "b\"c" "d\\e" "f\$g" "h\`i" "j\k"', [["a", 'b"c', "d\\e", "f$g", "h`i", "j\\k"]]),
        ('a "b\\\nc"', [["a", "bc"]]),
        ("a `b c` d", [["a", "`b c`", "d"]]),
        ("a $ b $", [["a", "$", "b", "$"]]),
        ("a > out 2>&1 b < in", [["a", "b"]]),
        ("a >> out b &> all c", [["a", "b", "c"]]),
        ("a < <(b c) d", [["a", "d"]]),
        ("a <<< text b", [["a", "b"]]),
        ("a << EOF b\nx y\nEOF\nc", [["a", "b"], ["c"]]),
        ("a <<- EOF\n\tx\n\tEOF\nc", [["a"], ["c"]]),
        ("a << 'ONE' << TWO\nx\nONE\ny\nTWO\nc", [["a"], ["c"]]),
        ("X=1\na $X ${X} \"$X\" '$X' ${X}2 $X2", [["a", "1", "1", "1", "$X", "12", "$X2"]]),
        ("X='b  c'\na $X \"$X\" d${X}e", [["a", "b", "c", "b  c", "db", "ce"]]),
        ("X=' b '\na c$X d", [["a", "c", "b", "d"]]),
        ("X=b X+=c\na $X", [["a", "bc"]]),
        ("X=(b 'c d')\na ${X[@]} \"${X[*]}\" $X", [["a", "b", "c d", "b", "c d", "b"]]),
        ("X=(b\n  c # no\n)\nX+=(d)\na \"x${X[@]}y\"", [["a", "xb", "c", "dy"]]),
        ("X=()\na \"${X[@]}\" b", [["a", "b"]]),
        ("a ${X:-b} ${X-c d} ${X:=e} $X", [["a", "b", "c", "d", "e", "e"]]),
        ("X=\na ${X:-b} \"${X-c}\" ${X:+d} \"${X+e}\"", [["a", "b", "", "e"]]),
        ("X=1\na ${X:-b} ${X:+d} ${X+e} ${Y:+f}", [["a", "1", "d", "e"]]),
        ("X=1\na ${Y:-${X}2} ${Y:-'b c'} \"${Y:-\"d e\"}\"", [["a", "12", "b", "c", "d e"]]),
        ("X=6\na $((X * 2 + 1)) $((X / 4)) $(($X - 1)) $(expr $X \\* 3)", [["a", "13", "1", "5", "18"]]),
        ("a $((Y + 1)) $(date)", [["a", "$((Y + 1))", "$(date)"]]),
        ("a $(dirname $0)/b \"$(cd \"$(dirname \"$0\")\" && pwd)\"", [["a", "folder/b", "folder"]]),
        ("X=$(cat << EOF\nb c\nEOF\n)\na $X", [["a", "b", "c"]]),
        ("X=\"b\n c\"\na $(echo \"$X\" | tr x y)", [["a", "b", "c"]]),
        ("export X=1; declare -r Y=2\nlocal Z\na $X$Y", [["a", "12"]]),
        ("X=1 a $X", [["X=1", "a", "$X"]]),
        ("! a b\necho c\ntest d", [["a", "b"]]),
        ("if true; then a; else b; fi", [["a"]]),
        ("if false; then a; elif true; then b; else c; fi", [["b"]]),
        ("X=2\nif [ $X = 2 ]; then a; fi\nif [[ $X -gt 3 ]]; then b; else c; fi", [["a"], ["c"]]),
        ("if [ -z \"$X\" ]; then a; fi\nX=\nif [ -n \"$X\" ]; then b; fi\nif [ -z \"$X\" ]; then c; fi", [["a"], ["c"]]),
        ("if [ ! -f x ]; then a; else b; fi", [["a"], ["b"]]),
        ("false && a; true && b; false || c; true || d", [["b"], ["c"]]),
        ("true &&\na\nfalse &&\nb\nc", [["a"], ["c"]]),
        ("X=b\ncase $X in\na|b) c ;;\n*) d ;;\nesac", [["c"]]),
        ("X=e\ncase \"$X\" in\na) c ;;\n[ef]*) g ;;\n*) d ;;\nesac\nh", [["g"], ["h"]]),
        ("case $Y in\na) c ;;\n*) d ;;\nesac", [["c"], ["d"]]),
        ("for X in b; do a $X; done", [["a", "b"]]),
        ("for X in b c; do a $X; done", [["a", "$X"]]),
        ("X=1\nif [ -f x ]; then X=2; fi\na $X", [["a", "$X"]]),
        ("X=1\nif false; then X=2; fi\na $X", [["a", "1"]]),
        ("while a; do b; done", [["a"], ["b"]]),
    ],
)  # fmt: skip
def test_words_are_the_ones_of_the_shell(script: str, commands: list[list[str]]) -> None:
    """A quote, an array or a default that is read otherwise gives the training other settings than it has."""
    assert words_of(script) == commands


def test_parameters_of_a_script_are_its_words() -> None:
    assert words_of('a $1 "$2" $3 $0', "b", "c d") == [["a", "b", "c d", "$3", "$0"]]
    assert words_of('a "$@" x$*y', "b", "c d") == [["a", "b", "c d", "xb", "c dy"]]
    assert words_of("a ${1:-e} ${3:-f}", "b", "c") == [["a", "b", "f"]]


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
