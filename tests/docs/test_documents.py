"""The documents stay true: the README's commands and program run as they stand, and links lead somewhere."""

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
MAKE_TARGETS = re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command):
    real_model("smollm2-135m")
    script = f'foredraft() {{ "{sys.executable}" -m foredraft "$@"; }}\n{command}'
    done = run("bash", "-c", script, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_readme_runs(program):
    real_model("smollm2-135m")
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_has_commands_programs_and_targets_to_check():
    assert COMMANDS and PROGRAMS and {"demo", "test"} <= set(MAKE_TARGETS)


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
    for name in re.findall(r"`((?:core|models|engine|measure|cli)/[\w./-]+\.py)`", text):
        assert (ROOT / "src/foredraft" / name).exists(), name
