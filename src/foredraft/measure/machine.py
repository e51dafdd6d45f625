"""What a measurement was taken on and with: kept beside the figures, since they mean little without."""

import os
import platform
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from foredraft import __version__
from foredraft.models.cores import physical_cores

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
STAT = Path("/proc/stat")
LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
SOURCE = "src/foredraft/measure/machine.py"  # where this file lies in a checkout


@dataclass(frozen=True)
class Machine:
    """What is not known is None."""

    cpu: str | None
    cores: int  # physical ones that this process may use
    last_level_cache: str | None
    memory_bytes: int | None
    kernel: str


def this_machine() -> Machine:
    memory_kib = field(_text(MEMINFO), "MemTotal")
    return Machine(
        cpu=field(_text(CPUINFO), "model name"),
        cores=physical_cores(),
        last_level_cache=_text(LAST_CACHE).strip() or None,
        memory_bytes=None if memory_kib is None else int(memory_kib.split()[0]) * 1024,
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def versions() -> dict[str, str]:
    return {"foredraft": __version__, "python": platform.python_version(), "numpy": version("numpy")}


def commit() -> str | None:
    """Of the checkout this code was run from or installed in; None where there is none."""
    folder = Path(__file__).parent
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top or not (Path(top) / SOURCE).is_file():
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or None


def load_average() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return os.getloadavg()[0]


class Others:
    """How much of the machine something else has used since this object was made: other programs, and other
    machines on the same host. Our own processes count from when they have ended.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._before = self._foreign_s()

    def cores(self) -> float:
        """On average."""
        return max(0.0, self._foreign_s() - self._before) / (time.monotonic() - self._started)

    def _foreign_s(self) -> float:
        return busy_s(_text(STAT), os.sysconf("SC_CLK_TCK")) - sum(os.times()[:4])


def busy_s(stat: str, ticks: int) -> float:
    """Seconds that all cores together were not idle, from the text of /proc/stat."""
    if not stat:
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, steal, *_ = map(int, stat.split("\n")[0].split()[1:])
    return (user + nice + system + irq + soft + steal) / ticks


def field(text: str, name: str) -> str | None:
    """The first value of `name` in lines of the form `name : value`."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _git(folder: Path, *arguments: str) -> str:
    """What git answers; nothing where it is missing or refuses."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
