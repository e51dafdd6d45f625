from pathlib import Path

import pytest

from foredraft.errors import ModelNotFoundError, UnsupportedModelError
from foredraft.models.cache import cache_home, find_model, model_path


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def test_the_home_is_where_the_environment_says(home):
    assert cache_home() == home
    assert model_path("a") == home / "models" / "a.gguf"


def test_the_home_may_be_written_with_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FOREDRAFT_HOME", "~/models of mine")
    assert cache_home() == tmp_path / "models of mine"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_choice_the_home_is_in_the_users_cache(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FOREDRAFT_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("FOREDRAFT_HOME", value)
    assert cache_home() == tmp_path / ".cache" / "foredraft"


def test_a_pulled_name_is_its_file(home):
    path = put(home / "models" / "smollm2-135m.gguf")
    assert find_model("smollm2-135m") == path


def test_a_path_is_itself(home, tmp_path, monkeypatch):
    path = put(tmp_path / "with space.gguf")
    assert find_model(path) == path
    assert find_model(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert find_model("with space.gguf") == Path("with space.gguf")


def test_a_file_needs_no_ending(home, tmp_path, monkeypatch):
    put(tmp_path / "blob")
    monkeypatch.chdir(tmp_path)
    assert find_model("blob") == Path("blob")


def test_a_known_name_that_is_not_there_says_how_to_get_it(home):
    with pytest.raises(ModelNotFoundError, match="fetch it with: foredraft pull gemma3-270m"):
        find_model("gemma3-270m")


def test_an_unknown_name_lists_the_known_ones(home):
    with pytest.raises(ModelNotFoundError, match="did you mean 'smollm2-135m'"):
        find_model("smollm2")


@pytest.mark.parametrize("text", ["folder/model.gguf", "model.gguf", "~/model", "MODEL.GGUF"])
def test_a_path_without_a_file_is_named(home, text):
    with pytest.raises(ModelNotFoundError, match="no file at"):
        find_model(text)


def test_a_folder_and_a_name_of_the_hub_are_refused(home, tmp_path):
    with pytest.raises(UnsupportedModelError, match="is a folder"):
        find_model(tmp_path)
    with pytest.raises(UnsupportedModelError, match="download the GGUF file"):
        find_model("hf:owner/repo")
