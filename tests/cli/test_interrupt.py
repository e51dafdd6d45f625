"""Ctrl-C and broken pipes: the program ends as it should, and leaves the terminal as it was."""

import os
import signal
import subprocess
import sys

import pytest
from real import real_model
from terminal import CTRL_C, CTRL_D, Terminal

from foredraft import LLM
from foredraft.cli.progress import CLEAR

LONG = ("--raw", "--ignore-eos", "-n", "1500", "Once upon a time")


@pytest.fixture(scope="module")
def model():
    return real_model("smollm2-135m")


def test_ctrl_c_while_loading_leaves_a_clean_terminal(model):
    with Terminal("run", "-m", model, *LONG) as terminal:
        terminal.wait_for(b"loading")
        terminal.press(CTRL_C)
        code, shown = terminal.end()
        assert code == 130
        assert terminal.is_as_before
        assert "Traceback" not in shown
        assert CLEAR in shown
        assert shown.endswith("\n")


def test_ctrl_c_while_answering_shows_the_figures_of_what_was_made(model):
    with Terminal("run", "-m", model, *LONG) as terminal:
        terminal.wait_for(CLEAR.encode())
        terminal.wait_for(b",")
        terminal.press(CTRL_C)
        code, shown = terminal.end()
        assert code == 130
        assert terminal.is_as_before
        assert "Traceback" not in shown
        assert shown.rstrip().splitlines()[-1].startswith("[")
        assert "interrupted]" in shown


def test_ctrl_c_ends_an_answer_that_a_model_drafts_for(model):
    with Terminal("run", "-m", model, "-d", f"model:{model}", "-k", "8", *LONG) as terminal:
        terminal.wait_for(b"drafting: model:")
        terminal.wait_for(b",")
        terminal.press(CTRL_C)
        code, shown = terminal.end()
        assert code == 130
        assert "Traceback" not in shown
        assert "of drafts accepted" in shown
        assert "interrupted]" in shown


def test_ctrl_c_ends_a_comparison(model):
    with Terminal("run", "-m", model, "--compare", "-d", "ngram", *LONG) as terminal:
        terminal.wait_for(b"drafting off")
        terminal.wait_for(b",")
        terminal.press(CTRL_C)
        code, shown = terminal.end()
        assert code == 130
        assert "Traceback" not in shown
        assert "drafting on" not in shown
        assert "identical" not in shown


def test_signal_during_a_load_ends_it(model):
    calls = []

    def interrupt(done, total):
        calls.append(done)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        LLM(model, ctx=64, progress=interrupt)
    assert len(calls) == 3


def test_reader_that_goes_away_ends_the_answer_quietly(model):
    command = [sys.executable, "-m", "foredraft", "run", "-m", str(model), *LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait() == 1
    assert "Traceback" not in errors
    assert "Exception" not in errors


def test_ctrl_c_in_a_chat_stops_the_answer_and_keeps_the_session(model):
    with Terminal("chat", "-m", model, "--ignore-eos", "-n", "1500") as terminal:
        terminal.wait_for(b"> ")
        terminal.press(b"Tell me a long story.\n")
        terminal.wait_for(b",")
        terminal.press(CTRL_C)
        terminal.wait_for(b"interrupted]")
        terminal.wait_for(b"> ")
        terminal.press(b"/reset\n")
        terminal.wait_for(b"a new conversation")
        terminal.wait_for(b"> ")
        terminal.press_until(CTRL_C, b"> ")
        terminal.press(CTRL_D)
        code, shown = terminal.end()
        assert code == 0
        assert terminal.is_as_before
        assert "Traceback" not in shown
