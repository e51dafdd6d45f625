"""Mutated files: reading and describing one returns, or raises a `ForedraftError`; nothing else, and soon."""

import contextlib
import random
import resource
import struct
from pathlib import Path

import pytest
from tiny import write_tiny

from foredraft.errors import ForedraftError
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf

ABSURD = (0, 1, 31, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
MEMORY_LIMIT = 64 << 20  # bytes; the files have some 20 thousand


def flip(rng, data):
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] = rng.randrange(256)


def flip_bit(rng, data):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite_number(rng, data):
    at = rng.randrange(len(data) - 8)
    raw = struct.pack("<Q", rng.choice(ABSURD))
    size = rng.choice((4, 8))
    data[at : at + size] = raw[:size]


def nudge_number(rng, data):
    at = rng.randrange(len(data) - 8)
    value = struct.unpack_from("<Q", data, at)[0] + rng.choice((-32, -8, -1, 1, 8, 32))
    struct.pack_into("<Q", data, at, value % 2**64)


def cut_out(rng, data):
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 8, 64))]


def repeat(rng, data):
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.choice((1, 8, 33, 256))]


def truncate(rng, data):
    del data[rng.randrange(1, len(data)) :]


MUTATIONS = (flip, flip_bit, overwrite_number, nudge_number, cut_out, repeat, truncate)


def mutate(rng, whole, header):
    """One to three mutations, nearly all inside the header."""
    head, tail = bytearray(whole[:header]), whole[header:]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(rng, head)
        if len(head) < 64:
            break
    return bytes(head) + (tail if rng.random() < 0.9 else tail[: rng.randrange(len(tail))])


@contextlib.contextmanager
def little_memory():
    """Allocating much more than the process has raises `MemoryError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def survive(path):
    try:
        file = read_gguf(path)
        describe(file)
        for name in file.tensors:
            file.read(name)
    except ForedraftError as error:
        assert str(error)
        return False
    return True


def fuzz(tmp_path, seed, rounds):
    """How many of the mutated files were read to the end."""
    rng = random.Random(seed)
    sources = []
    for family in ("llama", "qwen2", "gemma3"):
        path = write_tiny(tmp_path / family, family, dim=32, layers=1, heads=2, kv_heads=1, ff=32)
        sources.append((path.read_bytes(), min(info.offset for info in read_gguf(path).tensors.values())))
    path, read = tmp_path / "mutated.gguf", 0
    with little_memory():
        for _ in range(rounds):
            path.write_bytes(mutate(rng, *rng.choice(sources)))
            read += survive(path)
    return read


def test_a_thousand_mutated_files_are_read_or_refused(tmp_path):
    read = fuzz(tmp_path, seed=1, rounds=1000)
    assert 50 < read < 950  # mutations that never or always bite would prove nothing


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_thousand_mutated_files_are_read_or_refused(tmp_path, seed):
    fuzz(tmp_path, seed=100 + seed, rounds=10_000)
