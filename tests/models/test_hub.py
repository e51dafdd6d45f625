import socket

import pytest
from sources import BODY, HUB_FILE, Heard, entry, hub_server

from foredraft.errors import DownloadError
from foredraft.models.hub import fetch_from_hub, file_url
from foredraft.models.partial import Partial
from foredraft.models.registry import HubFile


@pytest.fixture
def partial(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return Partial(entry(), tmp_path / "partial")


def test_names_are_quoted_in_the_address(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost:1/mirror/")
    assert file_url(HUB_FILE) == "http://localhost:1/mirror/owner/some%20model/resolve/main/a%20file.gguf"


def test_a_server_that_accepts_and_never_answers_is_given_up(partial, monkeypatch):
    """TLS needs an answer before a connection stands, so the limit on connecting must cover it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(DownloadError, match="cannot be reached"):
            fetch_from_hub(HUB_FILE, partial, Heard(), connect_s=0.2)


def test_a_name_that_does_not_resolve_is_a_clear_error(partial, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://nowhere.invalid")
    with pytest.raises(DownloadError, match="is this machine offline"):
        fetch_from_hub(HUB_FILE, partial, Heard())


def test_a_missing_file_is_a_clear_error(partial, monkeypatch):
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        with pytest.raises(DownloadError, match="answers 404"):
            fetch_from_hub(HubFile("owner/other", "file.gguf"), partial, Heard())


def test_the_user_is_told_of_a_lost_connection(partial, monkeypatch):
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.cuts = [1000]
        heard = Heard()
        fetch_from_hub(HUB_FILE, partial, heard)
    assert partial.path.read_bytes() == BODY
    assert heard.notes == [f"the connection was closed after 1000 of {len(BODY)} bytes, going on from there"]


def test_a_whole_file_is_not_asked_for(partial):
    partial.append(iter([BODY]), Heard().advance)
    fetch_from_hub(HUB_FILE, partial, Heard())
