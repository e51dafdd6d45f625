import pytest
from tiny import write_tiny

from foredraft.core.nouns import int32s
from foredraft.engine.kv import KVPool
from foredraft.measure.draft_step import DraftStep, draft_step
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget

VOCAB, DIM = 320, 64
HEAD_BYTES = VOCAB * DIM * 18 // 32  # Q4_0: 18 bytes for 32 weights


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("step") / "tiny.gguf", "qwen2", dim=DIM, vocab=VOCAB)
    file = read_gguf(path)
    return NativeTarget.load(file, describe(file), LoadOptions(4, threads=1))


def test_a_step_reads_the_layers_and_its_part_of_the_head(native):
    whole = native.read_bytes()
    assert native.read_bytes(VOCAB // 16) == whole
    assert native.read_bytes(5) == whole - HEAD_BYTES * 3 // 4
    assert native.read_bytes(0) == whole - HEAD_BYTES


def test_steps_are_timed_and_nothing_is_kept(native):
    pool = KVPool(4)
    step = draft_step("model:tiny", native, pool, int32s([0, 1, 2, 3, 4]))
    assert step.name == "model:tiny"
    assert step.read_bytes == native.read_bytes(5)
    assert step.seconds > 0
    assert pool.num_free == 4


def test_rate_is_bytes_by_time():
    assert DraftStep("model:x", 200_000_000, 0.0125).gb_s == pytest.approx(16.0)
