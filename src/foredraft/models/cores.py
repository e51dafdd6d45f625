"""How many threads a pass should have: one for each physical core that this process may use."""

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(cpus: Path = CPUS, quota: Path = QUOTA) -> int:
    """Cores, not hyper-threads (two of which share the units that passes are made of); fewer where the
    process is bound to some of them, or a control group grants less time.
    """
    allowed = os.sched_getaffinity(0)
    cores = {_core_of(cpus / f"cpu{cpu}/topology", cpu) for cpu in allowed}
    return max(1, min(len(cores), _granted(quota) or len(cores)))


def _core_of(topology: Path, cpu: int) -> tuple[str, str]:
    try:
        return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()
    except OSError:
        return "", str(cpu)


def _granted(path: Path) -> int | None:
    """Whole cores a control group grants, rounded up; None without a limit."""
    try:
        quota, period = path.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
