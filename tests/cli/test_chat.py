import subprocess
import sys

import pytest
from real import real_model
from tiny import write_tiny

from foredraft import LLM, Sampling
from foredraft.cli import main


def chat(model, text, *options):
    command = [sys.executable, "-m", "foredraft", "chat", "-m", str(model), *options]
    return subprocess.run(command, input=text, capture_output=True)


def test_conversation_from_a_pipe_equals_the_one_from_python():
    model = real_model("smollm2-135m")
    with LLM(model) as llm, llm.chat("be brief") as session:
        expected = [session.send(text, Sampling(max_tokens=12)).text for text in ("Hi!", "Name a fruit.")]
    ended = chat(model, b"Hi!\n\nName a fruit.\n", "-n", "12", "--system", "be brief")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.decode() == "".join(text + "\n" * (not text.endswith("\n")) for text in expected)
    assert ended.stderr.decode().count("prompt ") == 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("chat") / "tiny.gguf", "llama", seed=5)


def test_exit_leaves_and_reset_begins_anew(model):
    ended = chat(model, b"one\n/reset\none\n/exit\nnever said\n", "-n", "6")
    assert ended.returncode == 0
    answers = ended.stderr.decode().split("a new conversation\n")
    assert [part.count("prompt ") for part in answers] == [1, 1]
    assert answers[0].split("prompt ")[1].split(" ")[0] == answers[1].split("prompt ")[1].split(" ")[0]


def test_unknown_command_is_told_and_not_said(model):
    ended = chat(model, b"/quit\n")
    assert ended.returncode == 0
    assert b"unknown command '/quit'" in ended.stderr
    assert ended.stdout == b""


def test_too_long_a_turn_does_not_end_the_conversation(model):
    ended = chat(model, b"x" * 300 + b"\nhello\n", "--ctx", "128", "-n", "4")
    assert ended.returncode == 0
    assert b"error: the prompt has" in ended.stderr
    assert ended.stderr.count(b"[4 tokens") + ended.stderr.count(b"stop]") >= 1


def test_line_that_is_not_utf8_is_told(model):
    ended = chat(model, b"caf\xe9\nhello\n", "-n", "4")
    assert ended.returncode == 0
    assert b"not valid UTF-8" in ended.stderr
    assert ended.stderr.count(b"prompt ") == 1
    assert b"Traceback" not in ended.stderr


def test_drafting_changes_nothing_but_the_figures(model):
    said = b"the fox\nthe fox again\n"
    plain = chat(model, said, "-d", "off", "-n", "30", "--ignore-eos")
    drafted = chat(model, said, "-d", "ngram+suffix", "-k", "3", "-n", "30", "--ignore-eos")
    assert drafted.returncode == plain.returncode == 0
    assert drafted.stdout == plain.stdout
    assert b"drafting" not in plain.stderr
    assert drafted.stderr.startswith(b"drafting: ngram + suffix\n")
    assert drafted.stderr.count(b"of drafts accepted") == 2


@pytest.mark.parametrize("options", [("-d", "nonsense"), ("-k", "99"), ("-d", "model:missing.gguf")])
def test_wrong_drafters_are_told_before_anybody_talks(model, capsys, options):
    assert main(["chat", "-m", str(model), *options]) in (1, 2)
    captured = capsys.readouterr()
    assert options[1].removeprefix("model:") in captured.err
    assert captured.out == ""
