"""What the README and the docs show runs as shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory as the README assumes it: chats.jsonl and a tokenizer."""
    pytest.importorskip("transformers")
    from brimful.demo.tokenizer import train_tokenizer

    here = tmp_path_factory.mktemp("readme")
    rows = [
        {"messages": [{"role": "user", "content": f"What is {a} + {b}?"}, {"role": "assistant", "content": str(a + b)}]}
        for a in range(30)
        for b in range(10)
    ]
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_tokenizer([str(row) for row in rows], here / "my-tokenizer")
    return here


def run(command, here, **options):
    environment = {**os.environ, "BRIMFUL_CACHE": str(here / "cache")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command, cwd=here, env={**environment, "PATH": path}, capture_output=True, text=True, timeout=120, **options
    )


def test_there_is_working_code_by_line_twenty():
    """First contact: nobody scrolls."""
    assert "plan_packs(" in "\n".join(README.splitlines()[:20])


def test_the_first_block_prints_what_is_shown():
    """Output that does not match is the first thing a reader finds."""
    result = run([sys.executable, "-c", blocks(README, "python")[0]], ROOT)
    assert result.stdout == blocks(README, "text")[0]


def test_commands_and_code_run_in_order(workplace):
    """Every shown command with our name and every Python block, one after another, in a directory as described."""
    ran = []
    for language, code in re.findall(r"^```(python|bash)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL):
        if language == "python":
            result = run([sys.executable, "-c", code], workplace)
            assert result.returncode == 0, result.stderr
            ran.append("python")
            continue
        for line in code.splitlines():
            if line.startswith("brimful "):
                result = run(line, workplace, shell=True)
                assert result.returncode == 0, (line, result.stderr)
                ran.append(line.split()[1])
    assert ran == ["python", "pack", "report", "inspect", "inspect", "python", "python"]


def test_links_lead_somewhere():
    """A dead link says that nobody looked."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    dead = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    assert not dead


def test_commands_of_the_makefile_exist():
    """The two commands of the README are targets."""
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE), command
