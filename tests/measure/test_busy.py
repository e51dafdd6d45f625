import os
import time
from pathlib import Path

import pytest

from foredraft.errors import MeasurementError
from foredraft.measure.busy import BusyCore


def cpu_ticks(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def children():
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_core_is_taken_only_inside_the_block_and_the_process_ends():
    before = children()
    with BusyCore() as core:
        (pid,) = children() - before
        with core.taken():
            started = cpu_ticks(pid)
            while cpu_ticks(pid) == started:  # it gets on
                time.sleep(0.01)
            assert os.sched_getaffinity(pid) == {max(os.sched_getaffinity(0))}
        idle = cpu_ticks(pid)
        time.sleep(0.1)
        assert cpu_ticks(pid) <= idle + 1
        with core.taken():
            pass
    assert children() == before


def test_process_that_was_killed_is_told():
    before = children()
    with BusyCore() as core:
        (pid,) = children() - before
        os.kill(pid, 9)
        with pytest.raises(MeasurementError, match="busy"), core.taken():
            pass
