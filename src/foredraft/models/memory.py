"""What a model will take and what the machine has left, before anything is loaded."""

from pathlib import Path

from foredraft.errors import OutOfMemoryError

WORKING_BYTES = 128 << 20  # activations of a chunk of rows, logits, the interpreter's own growth
LAYOUT = 1.08  # weights in the kernels' layout against the file's bytes, at most


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be had without swapping: the system's, or the control group's where that is less.
    None if unknown.
    """
    found = [_meminfo(root / "proc/meminfo"), _control_group(root / "sys/fs/cgroup")]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def check_fits(
    name: str, weight_bytes: int, block_bytes: int, blocks: int, block: int, available: int | None
) -> None:
    """Raise OutOfMemoryError where weights and KV cache will not fit, saying what would."""
    weights = int(weight_bytes * LAYOUT) + WORKING_BYTES
    if available is None or weights + block_bytes * blocks <= available:
        return
    room = (available - weights) // block_bytes * block
    cache = f"{_gib(block_bytes * blocks)} for a context of {blocks * block} tokens"
    if room >= block:
        advice = f"A context of {room} tokens would fit (--ctx {room})."
    else:
        advice = "The weights alone leave no room for a context: take a smaller model, or end other programs."
    raise OutOfMemoryError(
        f"{name} needs {_gib(weights)} for its weights and {cache}; {_gib(available)} of memory is free. "
        + advice
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _meminfo(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _control_group(folder: Path) -> int | None:
    """Limit less use, under version 2 or 1; the page cache counts as free since it is given up first."""
    for limit_file, used_file in (
        (folder / "memory.max", folder / "memory.current"),
        (folder / "memory/memory.limit_in_bytes", folder / "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = limit_file.read_text().strip()
            used = int(used_file.read_text())
            statistics = dict(
                line.split() for line in (used_file.parent / "memory.stat").read_text().splitlines()
            )
        except (OSError, ValueError):
            continue
        if limit == "max":
            return None
        cached = statistics.get("inactive_file", "0")
        return max(0, int(limit) - used + int(cached))
    return None
