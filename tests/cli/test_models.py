import json

import pytest

from foredraft.cli import main
from foredraft.models.registry import KNOWN, REGISTRY


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    return tmp_path


def put_sparse(home, name: str, num_bytes: int):
    """A file of the right length that takes no room."""
    path = home / "models" / f"{name}.gguf"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        file.truncate(num_bytes)
    return path


def test_the_list_says_what_is_there_and_how_to_get_the_rest(home, capsys):
    path = put_sparse(home, "smollm2-135m", REGISTRY["smollm2-135m"].num_bytes)
    assert main(["models"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "SIZE", "LICENCE", "WHERE"]
    assert [line.split()[0] for line in lines] == list(REGISTRY)
    assert lines[2].endswith(f"98.4 MB  Apache-2.0          {path}")
    assert lines[0].endswith("not pulled: foredraft pull qwen2.5-coder-1.5b")


def test_json_is_one_object_on_the_last_line(home, capsys):
    path = put_sparse(home, "gemma3-270m", REGISTRY["gemma3-270m"].num_bytes)
    assert main(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["home"] == str(home)
    assert [model["name"] for model in told["models"]] == [entry.name for entry in KNOWN]
    assert {model["name"]: model["path"] for model in told["models"] if model["pulled"]} == {
        "gemma3-270m": str(path)
    }


def test_a_file_of_the_wrong_length_counts_as_not_there(home, capsys):
    put_sparse(home, "gemma3-270m", 5)
    assert main(["models", "--json"]) == 0
    assert not any(model["pulled"] for model in json.loads(capsys.readouterr().out)["models"])
