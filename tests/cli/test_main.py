import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import foredraft
from foredraft.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foredraft", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"foredraft {foredraft.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == foredraft.__version__


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["--nonsense"], ["models", "--nonsense"], ["models", "x"]]
)
def test_wrong_use_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: foredraft" in capsys.readouterr().err


def test_the_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for name, summary in COMMANDS:
        assert name in text
        assert summary in " ".join(text.split())


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS])
def test_every_command_has_its_own_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: foredraft {name}" in capsys.readouterr().out


def test_an_error_goes_to_standard_error_and_exits_with_1(capsys):
    assert main(["pull", "no-such-model"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("foredraft: error: unknown model 'no-such-model': ")


def test_a_usage_error_exits_with_2(capsys):
    assert main(["pull"]) == 2
    assert capsys.readouterr().err.startswith("foredraft: error: pull takes")


def test_the_module_runs_as_a_program(tmp_path):
    done = run_cli("models", FOREDRAFT_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert run_cli("pull", "nothing").returncode == 1


def test_only_the_command_that_is_asked_for_is_imported():
    program = (
        "import sys; from foredraft.cli import main; main(['models']);"
        "ours = sorted(name for name in sys.modules if name.startswith('foredraft.cli.'));"
        "print(ours, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['foredraft.cli.models', 'foredraft.cli.progress'] False"


def test_a_reader_that_goes_away_is_no_error_message():
    program = (
        "import sys; from foredraft.cli import main; sys.stdin.read(); sys.exit(main(['models', '--json']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()  # now it goes on, and nobody reads
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_commands_add_exactly_themselves():
    for name, _ in COMMANDS:
        parser = argparse.ArgumentParser()
        subparsers = parser.add_subparsers()
        __import__(f"foredraft.cli.{name}")
        sys.modules[f"foredraft.cli.{name}"].add(subparsers)
        assert list(subparsers.choices) == [name]
