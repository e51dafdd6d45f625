"""The server against its own OpenAPI document, by schemathesis: bodies that the document allows and that
it does not, and whether the replies are what it says.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from serving import serving
from tiny import write_tiny

from foredraft import LLM

# Fields that exclude each other, or must fit the model, are not in any schema: what it allows may be refused.
REFUSALS = "positive_data_acceptance"
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Answers are short, as the context is."""
    path = write_tiny(tmp_path_factory.mktemp("openapi") / "tiny.gguf", "qwen2", seed=5)
    with (
        LLM(path, ctx=48, kv_tokens=400, threads=1) as llm,
        serving(llm, max_running=4, max_waiting=4) as server,
    ):
        yield server


def examine(server, folder, *options):
    """What schemathesis finds, all of it, with the same bodies each time."""
    line = [SCHEMATHESIS, "run", f"{server.url}/openapi.json"]
    line += ["--generation-deterministic", "--seed", "1", "--continue-on-failure", "--no-color"]
    line += ["--exclude-checks", REFUSALS, "--warnings", "off", *options]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, cwd=folder, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_each_field_at_its_limits_and_beyond_is_answered_as_the_document_says(server, tmp_path):
    said = examine(server, tmp_path, "--phases", "examples,coverage")
    assert "Tested: 11" in said


@pytest.mark.nightly
def test_anything_is_answered_as_the_document_says(server, tmp_path):
    examine(server, tmp_path, "--phases", "fuzzing,stateful", "--max-examples", "200")
