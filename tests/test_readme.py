"""What the README and the docs show runs as shown. Pages of docs/trainers are run in tests/integrations/trainers/test_pages.py."""

import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import pytest

from brimful import open_source, plan_packs
from brimful.cli import main
from brimful.cli.program import _brimful
from brimful.collate.dialects import DIALECTS
from brimful.measure.pending import _ONE_PROCESS_BYTES
from brimful.testing.toys import toy_chat_encoder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
QUICKSTART = (DOCS / "quickstart.md").read_text(encoding="utf-8")
PAGES = sorted(path.name for path in DOCS.glob("*.md"))

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries that the code shown imports

GOES_ON = "# goes on from"
"""What a block says that takes names of an earlier one; all others run by themselves."""

GIVEN = {
    "dialects.md": lambda: {"plan": plan_packs([3, 3, 5], capacity=8192)},
    "media.md": lambda: {"source": open_source([{"text": "abc"}]), "encoder": toy_chat_encoder(), "model": _model()},
}
"""Names that a page takes from its reader."""


def _model():
    from tests.integrations.trainers import tiny

    return tiny.model()


TAKES_LONG = {"demo", "verify", "doctor"}
"""Commands, and pages of their names, that are run by tests of their own."""


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def shown(text, *languages):
    """Pairs of language and code, in order, those inside of lists too."""
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(code)) for _, language, code in found if language in languages]


@pytest.fixture(scope="module")
def demo_directory(tmp_path_factory):
    """A directory as ``brimful demo`` leaves it: chats.jsonl, tokenizer, packs, model."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from brimful.cli.demo.toy_model import make_model, train_tokenizer

    here = tmp_path_factory.mktemp("readme")
    rows = [
        {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": str(a + b)}]}
        for a in range(30)
        for b in range(10)
    ]
    rows += [
        {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1 2 3 4 5 6 7 " * 400}]}
    ]  # longer than a pack, as some docstrings are
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    vocab_size = train_tokenizer([str(row) for row in rows], here / "tokenizer", vocab_size=900)
    make_model(vocab_size).save_pretrained(here / "model")
    shutil.copytree(here / "tokenizer", here / "model", dirs_exist_ok=True)
    (here / "processor").mkdir()
    (here / "processor" / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor"}')
    with _inside(here):
        run_command("brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop")
    return here


@contextlib.contextmanager
def _inside(path):
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def demo(demo_directory, tmp_path, monkeypatch):
    """A copy of that directory of one's own, in which the test now is."""
    shutil.copytree(demo_directory, tmp_path / "demo")
    monkeypatch.chdir(tmp_path / "demo")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "demo"


def run_command(line):
    """What a line prints that begins with ``brimful``; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_info:
        main(shlex.split(line, comments=True)[1:])
    assert exit_info.value.code == 0, (line, err.getvalue())
    return out.getvalue()


def run_python(code, names):
    """What a block prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "block", "exec"), names)
    return out.getvalue()


def missing(code):
    """A package that a block imports and that is not here."""
    for node in ast.walk(ast.parse(code)):
        named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        named += [node.module] if isinstance(node, ast.ImportFrom) else []  # type: ignore[list-item]
        for name in named:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                return name
    return None


def run_in_order(text, given=()):
    """Run every Python block and every command of a page, one after another; return what was run, in a word each."""
    ran, names = [], {}
    for language, code in shown(text, "python", "bash"):
        if language == "python":
            if GOES_ON not in code:
                names = dict(given)
            if missing(code) is not None:
                continue
            lines = run_python(code, names).splitlines()
            for printed in re.findall(r"^print\(.*\)  # (\[.*\])$", code, flags=re.MULTILINE):
                assert printed in lines
            ran.append("python")
            continue
        for line in code.splitlines():
            if line.startswith("brimful ") and line.split()[1] not in TAKES_LONG:
                run_command(line)
                ran.append(line.split()[1])
    return ran


# ── the README ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_there_is_working_code_by_line_twenty():
    """First contact: readers do not scroll."""
    assert "$ make demo" in "\n".join(README.splitlines()[:20])


def test_the_readme_is_a_screen_and_a_half():
    """What a newcomer needs next is one click away; a page of everything is read by none."""
    assert len(README.split()) < 600
    assert len(README.splitlines()) < 75


def test_the_picture_shows_a_plan():
    """A picture that was drawn by eye promises packs that no planner makes."""
    drawing = (DOCS / "packed.svg").read_text(encoding="utf-8")
    boxes = re.findall(r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)".*?>(\d+)</text>', drawing)
    padded = {int(name): round((float(width) + 1) / 3.3) for x, _, width, name in boxes if x == "10.0"}
    rows = {}
    for x, y, _, name in boxes:
        if x != "10.0":
            rows.setdefault(y, []).append(int(name))
    lengths = [padded[name] for name in sorted(padded)]
    assert sorted(name for row in rows.values() for name in row) == list(range(len(lengths)))
    assert [sum(lengths[name] for name in row) for row in rows.values()] == [max(lengths)] * len(rows)
    assert plan_packs(lengths, capacity=max(lengths)).bound == len(rows)
    fill = round(100 * sum(lengths) / len(lengths) / max(lengths))
    assert f"padded: {len(lengths)} rows, {fill} % full" in drawing
    assert f"{len(lengths)} rows that are {fill} % full; packed, {len(rows)} rows that are full" in README


def test_the_first_block_prints_what_is_shown():
    """Output that does not match is the first thing a reader finds."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    code, output = blocks(QUICKSTART, "python")[0], blocks(QUICKSTART, "text")[1]
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.stdout == output, result.stderr


def test_commands_and_code_run_in_order(demo):
    """Every command with our name and every Python block, one after another, in the directory that the README says."""
    pytest.importorskip("accelerate")
    assert run_in_order(README) == ["pack", "python"]


def test_the_summary_shown_has_the_lines_of_a_summary(demo):
    """A newcomer compares the first output with the one in the quickstart, line by line."""
    (line,) = re.findall(r"^brimful pack .*$", QUICKSTART, flags=re.MULTILINE)
    names = [line[:15].strip() for line in run_command(line).splitlines()]
    shown = [line[:15].strip() for line in blocks(QUICKSTART, "text")[2].splitlines()]
    assert shown == list(dict.fromkeys(names))


def test_the_way_from_a_checkout_leaves_nothing_to_guess():
    """From ``git clone`` to packs: an environment, the extras that the next line needs, and files that are there then."""
    first = blocks(README, "bash")[0].splitlines()
    said = [line.split("#")[0].strip() for line in first]
    assert said[:3] == [
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        "pip install -e '.[text,torch,fast,optimal]' accelerate",
    ]
    assert said[3:5] == ["brimful demo -o demo", "cd demo"]
    arguments = shlex.split(said[5])
    assert (arguments[2], arguments[arguments.index("--tokenizer") + 1]) == ("chats.jsonl", "tokenizer")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"\[([\w,]+)\]'", README + QUICKSTART):
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", project, flags=re.MULTILINE), name


def test_commands_of_the_makefile_exist():
    """The commands of the README are targets."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"(?:`|\$ )make ([\w-]+)", README)
    assert {"demo", "test", "docs"} <= set(commands)
    for command in commands:
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command


# ── the docs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def with_code(page):
    return page.removesuffix(".md") not in TAKES_LONG and shown((DOCS / page).read_text("utf-8"), "python", "bash")


@pytest.mark.parametrize("page", list(filter(with_code, PAGES)))
def test_blocks_of_a_page_stand_alone(page, demo):
    """A block that needs a name from nowhere cannot be tried."""
    given = GIVEN[page]() if page in GIVEN else {}
    if page == "media.md":  # packs that say how media were encoded, though these hold none
        shutil.rmtree("packs")
        pack = "brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop"
        run_command(f"{pack} --processor processor --encoder qwen2-vl")
    if page == "preferences.md":
        shutil.rmtree("packs")
        sides = [{"prompt": f"What is {n}?", "chosen": str(n), "rejected": str(n + 1)} for n in range(8)]
        Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sides))
        answers = [
            {"prompt": row["prompt"], "completion": row["chosen"], "label": n % 2 == 0} for n, row in enumerate(sides)
        ]
        Path("kto.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
        settings = "--tokenizer tokenizer --max-length 128 --overflow drop"
        run_command(f"brimful pack pairs.jsonl -o packs {settings}")
        run_command(f"brimful pack kto.jsonl -o kto-packs --format kto {settings}")
    assert run_in_order((DOCS / page).read_text(encoding="utf-8"), given)


def _scripts():
    """Blocks that measure the chats, as long tests of the page that shows each."""
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        codes = [code for _, code in shown(path.read_text(encoding="utf-8"), "python")]
        for code in (code for code in codes if re.search(r"(measure_lengths|pack_dataset)\(", code)):
            if '"chats.jsonl"' in code:
                yield pytest.param(code, id=path.name, marks=pytest.mark.long)


@pytest.mark.parametrize("code", list(_scripts()))
def test_a_block_is_a_script_for_rows_of_any_number(code, demo):
    """Without it what works on a few rows ends in tracebacks of workers, which run the script again and again."""
    turns = [{"role": role, "content": "What is 3 + 4? " * 25} for role in ("user", "assistant")]
    line = json.dumps({"messages": turns}) + "\n"
    (demo / "chats.jsonl").write_text(line * (_ONE_PROCESS_BYTES // len(line) + 1000))
    (demo / "script.py").write_text(f"print('begins', flush=True)\n{code}")
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, "script.py"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout.count("begins"), "Traceback" in result.stderr) == (0, 1, False), result


OF_THE_DEMO = re.compile(r'"(packs|my-packs|tokenizer|model|processor|chats\.jsonl)[/"]')
"""Files that code takes from the directory of the demo."""


def test_a_page_says_where_its_code_runs():
    """A block that opens ``packs`` from nowhere cannot be tried."""
    silent, seen = [], 0
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if any(OF_THE_DEMO.search(code) for _, code in shown(text, "python")):
            seen += 1
            words = " ".join(text.split())
            silent += [path.name] * ("brimful demo" not in words and "examples/drawn_chats.py" not in words)
    assert seen > 15
    assert not silent


def test_output_that_is_shown_below_code_is_its_output():
    """The recipe's report is what readers hold their own against."""
    pairs = 0
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for code, output in re.findall(
            r"^```python\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)```$", text, re.MULTILINE
        ):
            assert run_python(code, {}) == output, page
            pairs += 1
    assert pairs


def test_every_command_that_is_shown_is_one():
    """Commands that take long are not run here, but a flag that does not exist is seen at once."""
    context = click.Context(_brimful)
    seen = 0
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for _, code in shown(path.read_text(encoding="utf-8"), "bash", "console"):
            for line in re.findall(r"^(?:\$ )?brimful (.*)$", code, flags=re.MULTILINE):
                name, *words = shlex.split(line, comments=True)
                command = _brimful.get_command(context, name)
                assert command is not None, (path.name, line)
                known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
                if "--" in words:  # another program's command line
                    words = words[: words.index("--")]
                flags = {word.split("=")[0] for word in words if word.startswith("-")}
                assert flags <= known, (path.name, line, flags - known)
                seen += 1
    assert seen > 20


def test_links_lead_somewhere():
    """A dead link shows neglect; so does one to a heading that is gone."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    dead = []
    for page in pages:
        for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            path = page.parent / target if target else page
            if not path.exists() or (heading and heading not in headings(path)):
                dead.append(f"{page.name}: {target}#{heading}")
    assert not dead


def headings(path):
    """The names of the headings of a page, as links have them; the site adds a section for each dialect."""
    lines = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines += DIALECTS if path.name == "dialects.md" else ()
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
