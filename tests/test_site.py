"""The site: every page has a place, links and public names lead somewhere, options and API are the code's."""

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from brimful.cli.program import COMMANDS, command_named

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hook():
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("hook", ROOT / "docs" / "hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nav():
    """The navigation, without the lines that name Python objects."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["nav"]


def test_examples_in_the_hook(hook):
    assert doctest.testmod(hook).failed == 0
    assert doctest.testmod(sys.modules["docstrings"]).failed == 0


def test_every_page_has_one_place(hook):
    """A page that the navigation leaves out is not found; one that it names twice is read twice."""
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages = docs + [path for path, _ in hook.made_pages()]
    places = re.findall(r"[\w./-]+\.md", str(hook.expanded(nav(), pages)))
    single = [page for page in pages if not re.match(r"(examples|results)/", page) or page == "examples/index.md"]
    assert sorted(places) == sorted(single)


def test_notebooks_are_pages_with_what_they_printed_and_drew(hook):
    """A reader of the site sees a notebook without running it."""
    pages = dict(hook.notebook_pages())
    assert len(pages) == len(list((ROOT / "docs" / "notebooks").glob("*.ipynb")))
    assert all(page.startswith("# ") and "```python\n" in page and "```text\n" in page for page in pages.values())
    assert "](data:image/png;base64," in pages["notebooks/images_and_two_budgets.md"]


def test_the_page_of_options_has_every_flag(hook):
    """Without it the page tells of an option that was renamed, and not of the new one."""
    page = hook.options_page()
    rows = re.findall(r"^\| (`-[^|]*) \|.*\| ([\w, ]+) \|$", page, flags=re.MULTILINE)
    said = [(command, flags) for flags, commands in rows for command in commands.split(", ")]
    assert len(said) == len(set(said)) > 200
    for command in COMMANDS:
        for parameter in command_named(command).params:
            if getattr(parameter, "hidden", True) or "--help-all" in parameter.opts:
                continue
            flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
            assert (command, flags) in said, (command, flags)


def test_a_public_name_without_a_docstring_is_refused(hook):
    module = types.ModuleType("bare")

    def bare(): ...

    vars(module)["bare"] = bare
    with pytest.raises(ValueError, match=r"^bare\.bare is public and has no docstring$"):
        hook.home_of(module, "bare")


def test_a_page_of_the_api_has_the_names_that_no_earlier_one_has(hook):
    pages = dict(hook.api_pages())
    assert "::: brimful.plan.planner.plan_packs" in pages["reference/brimful.md"]
    assert "::: brimful.plan.planner.plan_packs" not in pages["reference/brimful.plan.md"]
    assert "::: brimful.plan.algorithms.ALGORITHMS" in pages["reference/brimful.plan.md"]
    homes = re.findall(r"^::: (.*)$", "\n".join(pages.values()), flags=re.MULTILINE)
    assert len(homes) == len(set(homes)) > 200


MKDOCS = importlib.util.find_spec("mkdocs") is not None
BUILD = [sys.executable, "-m", "mkdocs", "build"]  # with --quiet, strict sees no warning


@pytest.mark.long
@pytest.mark.skipif(not MKDOCS, reason="pip install -e '.[docs]'")
def test_the_site_is_built_without_a_warning(tmp_path):
    """``make check`` builds it too; a dead link or anchor is a warning, and a warning an error."""
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}  # an advertisement, as in the Makefile
    done = subprocess.run([*BUILD, "-d", tmp_path / "site"], cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    text = (tmp_path / "site" / "llms.txt").read_text(encoding="utf-8")
    for name, url in re.findall(r"^- \[(.+)\]\(([^)]*)\)", text, flags=re.MULTILINE):
        assert (tmp_path / "site" / url / "index.html").is_file(), name


@pytest.mark.skipif(not MKDOCS, reason="pip install -e '.[docs]'")
@pytest.mark.parametrize("line", ["[x](scale.md)", "[x](index.md#nothing)", "![x](no.svg)"])
def test_a_dead_link_fails(line, tmp_path):
    """Without ``strict`` and ``validation`` it is an unread line of a log."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    kept = re.search(r"^validation:\n(?: .*\n)+", settings, flags=re.MULTILINE).group()
    assert "\nstrict: true\n" in settings
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\nstrict: true\nplugins: []\n{kept}")
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "index.md"
    for text, code in [("# X\n", 0), (f"# X\n\n{line}\n", 1)]:
        page.write_text(text)
        done = subprocess.run(BUILD, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        shutil.rmtree(tmp_path / "site", ignore_errors=True)
