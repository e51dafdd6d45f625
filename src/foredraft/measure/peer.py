"""llama.cpp's `llama-bench` on the same file with the same number of threads. Each call is a process of its
own: it loads, warms up, measures once and frees its memory.
"""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from foredraft.errors import MeasurementError, UsageError


@dataclass(frozen=True)
class Load:
    """What llama-bench is to time: a prompt, or generation, after `depth` positions."""

    prompt: int = 0
    generated: int = 0
    depth: int = 0


@dataclass(frozen=True)
class PeerRun:
    tok_s: float
    build: str


class LlamaBench:
    """The program at `path`; UsageError unless it is one."""

    def __init__(self, path: Path, model: Path, threads: int) -> None:
        if not path.is_file():
            raise UsageError(f"--peer {path}: no such file; `make peers` builds peers/llama-bench")
        if not os.access(path, os.X_OK):
            raise UsageError(f"--peer {path}: not an executable; the path of a llama-bench is expected")
        self._path = path.absolute()
        self._model = model
        self._threads = threads
        self.build: str | None = None  # known after the first run

    def tok_s(self, load: Load) -> float:
        """Tokens per second, of one run."""
        command = [str(self._path), *self._arguments(load)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except OSError as error:
            raise UsageError(f"--peer {self._path}: cannot be run: {error.strerror or error}") from error
        if done.returncode:
            raise MeasurementError(
                f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
            )
        run = parse(done.stdout, load, self._threads)
        self.build = run.build
        return run.tok_s

    def _arguments(self, load: Load) -> list[str]:
        numbers = {"-t": self._threads, "-p": load.prompt, "-n": load.generated, "-d": load.depth}
        options = [text for name, number in numbers.items() for text in (name, str(number))]
        return ["-m", str(self._model), *options, "-r", "1", "-ngl", "0", "-o", "json"]


def parse(text: str, load: Load, threads: int) -> PeerRun:
    """The one test in llama-bench's JSON, which must be the one that was asked for."""
    expected = {
        "n_prompt": load.prompt,
        "n_gen": load.generated,
        "n_depth": load.depth,
        "n_threads": threads,
    }
    try:
        (test,) = json.loads(text)
        found = {name: test[name] for name in expected}
        (tok_s,) = (float(value) for value in test["samples_ts"])
        build = f"{test['build_number']} ({test['build_commit']})"
    except (ValueError, TypeError, KeyError) as error:
        raise MeasurementError(
            f"the output of llama-bench is not understood ({error!r}): {text.strip()[:200]!r}. Is --peer a "
            "llama-bench of 2025 or later? `make peers` builds one."
        ) from error
    if found != expected or not 0 < tok_s < float("inf"):
        raise MeasurementError(
            f"llama-bench was asked for {expected}, but measured {found} with {tok_s:g} tokens/s"
        )
    return PeerRun(tok_s, build)
