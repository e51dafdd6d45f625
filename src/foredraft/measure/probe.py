"""A model loaded in a process of its own, so that load time and peak memory are those of the model alone.

    python -m foredraft.measure.probe MODEL THREADS CONTEXT FILL

prints one JSON object: `load_s` (header, tokenizer, conversion; not the interpreter's start) and `peak_bytes`
(the most memory the process ever held, file pages included). FILL 1 fills the context before.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from foredraft.errors import ForedraftError, MeasurementError

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Probe:
    load_s: float
    peak_bytes: int


def probe(model: Path, threads: int, context: int, fill: bool) -> Probe:
    """Load it in a fresh process."""
    command = [sys.executable, "-m", __name__, str(model), str(threads), str(context), str(int(fill))]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise MeasurementError(
            f"a process that was to load {model} ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return Probe(**json.loads(done.stdout))


def main(arguments: list[str]) -> None:
    """What the fresh process does."""
    from foredraft import LLM, Sampling

    model, threads, context, fill = arguments
    with LLM(Path(model), ctx=int(context), threads=int(threads)) as llm:
        if fill == "1":
            last = min(16, llm.ctx // 2)
            ids = [index % llm.target.vocab for index in range(llm.ctx - last)]
            llm.generate(ids, Sampling(max_tokens=last, ignore_eos=True))
        print(json.dumps({"load_s": llm.load_s, "peak_bytes": peak_bytes(STATUS.read_text())}))


def peak_bytes(status: str) -> int:
    """From the text of /proc/self/status."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise MeasurementError("the system does not say how much memory a process has held (no VmHWM)")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ForedraftError as error:
        sys.exit(str(error))
