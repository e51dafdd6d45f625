"""The thread pool: many small jobs, changing numbers of threads, and callers that come at the same time. A
job that loses a tile shows as other bits, a stalled one as a test that never ends.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from bare_native import Native
from tiny import write_tiny

from foredraft import _native
from foredraft.core.nouns import Rows

BLOCKS = 16


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("threads") / "tiny.gguf", "qwen2", layers=3, ff=512, vocab=2000)
    return Native(path, blocks=BLOCKS)


def tokens_of(seed, count):
    return np.random.default_rng(seed).integers(0, 2000, count).tolist()


@pytest.fixture(scope="module")
def expected(native):
    """For each sequence, the bits of its rows on one thread."""
    native.model.threads = 1
    return [native.prefill(tokens_of(seed, 20), [seed]) for seed in range(8)]


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 8])
def test_many_small_passes_give_the_same_bits(native, expected, threads):
    """Each pass is dozens of jobs of a few microseconds: helpers wake, steal, and find nothing left."""
    native.model.threads = threads
    for turn in range(40):
        seed = turn % 8
        assert (native.prefill(tokens_of(seed, 20), [seed], chunk=1 + turn % 7) == expected[seed]).all()


def test_number_of_threads_may_change_between_passes(native, expected):
    for turn in range(60):
        native.model.threads = 1 + turn * 5 % 8
        assert native.model.threads == 1 + turn * 5 % 8
        seed = turn % 8
        assert (native.bits(Rows.chain(tokens_of(seed, 20)), [0], [[seed]]) == expected[seed]).all()


def test_callers_take_turns(native, expected):
    """Several Python threads on one model, each with a sequence of its own, while a further one changes the
    number of threads.
    """
    native.model.threads = 2

    def write(seed):
        return all(
            (native.prefill(tokens_of(seed, 20), [seed], chunk=3) == expected[seed]).all() for _ in range(20)
        )

    def change():
        for turn in range(50):
            native.model.threads = 1 + turn % 4
        return True

    with ThreadPoolExecutor(9) as pool:
        written = [pool.submit(write, seed) for seed in range(8)]
        changed = pool.submit(change)
        assert all(one.result() for one in [*written, changed])


def test_models_with_threads_come_and_go(tmp_path):
    path = write_tiny(tmp_path / "a")
    first = Native(path).prefill([1, 2, 3], [0])
    for turn in range(40):
        assert (Native(path, threads=1 + turn % 8).prefill([1, 2, 3], [0]) == first).all()


def test_sweep_reads_beside_passes(native, expected):
    native.model.threads = 4
    sweep = _native.Sweep(3 << 20)
    with ThreadPoolExecutor(2) as pool:
        sweeps = pool.submit(lambda: [sweep.seconds(native.model) for _ in range(30)])
        found = pool.submit(lambda: [native.prefill(tokens_of(2, 20), [2]) for _ in range(20)])
        assert all(seconds > 0 for seconds in sweeps.result())
        assert all((bits == expected[2]).all() for bits in found.result())


THREADS_THAT_DO_NOT_FIT = """
import resource, sys
from bare_native import Native
native = Native(sys.argv[1], threads=2)
before = native.prefill([1, 2, 3], [0]).tobytes()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20),) * 2)
try:
    native.model.threads = 1000
except ValueError as error:
    print(error)
assert native.model.threads == 2
assert native.prefill([1, 2, 3], [0]).tobytes() == before
"""


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer needs address space")
def test_threads_that_the_system_does_not_allow_are_refused(tmp_path):
    path = write_tiny(tmp_path / "a")
    done = subprocess.run(
        [sys.executable, "-c", THREADS_THAT_DO_NOT_FIT, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "the system allows" in done.stdout
    assert "not 1000" in done.stdout
