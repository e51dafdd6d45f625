"""The documents stay true: commands and programs run as they stand, numbers are those of the code, links lead
somewhere.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import real_model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (foredraft .*)$", README, re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DRAFTER = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-drafter.md").read_text(), re.DOTALL)
# Commands that need no model, with what is printed, if that is shown.
SHOWN = re.findall(
    r"^    \$ (foredraft .*)\n((?:    .*\n)*)", (ROOT / "docs/theory.md").read_text(), re.MULTILINE
)
# `NAME` = value in the text, with the files that its section names.
CONSTANTS = [
    (name, tuple(float(number) for number in numbers.split(", ")), places)
    for section in re.split(r"^## ", (ROOT / "docs/controller.md").read_text(), flags=re.MULTILINE)
    for places in [re.findall(r"`((?:core|drafters|engine)/\w+)\.py`", section)]
    for name, numbers in re.findall(r"`([A-Z_]+)`\s+=\s+([\d.]*\d(?:,\s[\d.]*\d)*)", section)
]
UNEXPLAINED = {"SHORTEST", "LONGEST"}  # times that only a broken clock can say
MAKE_TARGETS = re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


def printed(command: str) -> str:
    script = f'foredraft() {{ "{sys.executable}" -m foredraft "$@"; }}\n{command}'
    done = run("bash", "-c", script, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command):
    real_model("smollm2-135m")
    assert printed(command)


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_of_the_theory_prints_what_is_shown(command, shown):
    output = printed(command)
    assert output
    assert not shown or output == re.sub("^    ", "", shown, flags=re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_readme_runs(program):
    real_model("smollm2-135m")
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_drafter_that_is_shown_runs_and_changes_nothing():
    """That the text is the same the program asserts itself; here, that something was accepted."""
    real_model("smollm2-135m")
    done = run(sys.executable, "-c", "\n".join(DRAFTER))
    assert done.returncode == 0, done.stderr
    off, on = re.findall(r"rounds=(\d+), drafted=\d+, accepted=(\d+)", done.stdout)
    assert off[1] == "0" and int(on[1]) > 0
    assert int(on[0]) < int(off[0])


def test_there_are_commands_programs_and_targets_to_check():
    assert COMMANDS and PROGRAMS and {"demo", "test"} <= set(MAKE_TARGETS)
    assert len(DRAFTER) == 2 and len(SHOWN) == 2 and any(output for _, output in SHOWN)
    assert len(CONSTANTS) > 20


@pytest.mark.parametrize(("name", "numbers", "places"), CONSTANTS, ids=[name for name, *_ in CONSTANTS])
def test_a_constant_of_the_controller_is_that_of_the_code(name, numbers, places):
    """Of one of the files that its section names."""
    modules = [importlib.import_module("foredraft." + place.replace("/", ".")) for place in places]
    values = [getattr(module, name) for module in modules if hasattr(module, name)]
    assert numbers in [value if isinstance(value, tuple) else (value,) for value in values]


def test_the_controllers_document_has_every_constant_of_its_code():
    documented = {name for name, *_ in CONSTANTS}
    for place in ("controller", "cost", "worth", "acceptance"):
        code = (ROOT / f"src/foredraft/engine/{place}.py").read_text()
        for names in re.findall(r"^([A-Z_, ]+) = [\d.]", code, re.MULTILINE):
            assert set(names.split(", ")) - UNEXPLAINED <= documented, place


@pytest.mark.parametrize("target", MAKE_TARGETS)
def test_a_make_target_of_the_readme_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_is_short_and_shows_the_demo_early():
    assert len(README.split()) <= 600
    assert "make demo" in "\n".join(README.splitlines()[:25])


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for name in re.findall(r"`((?:native|tests|docs|scripts|benchmarks)/[\w./-]+\.\w+)`", text):
        assert "NAME" in name or (ROOT / name).exists(), name
    for name in re.findall(r"`((?:core|drafters|models|engine|measure|cli)/[\w./-]+\.py)`", text):
        assert "NAME" in name or (ROOT / "src/foredraft" / name).exists(), name
