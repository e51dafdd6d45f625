import time

import pytest
from tiny import write_tiny

from foredraft.core.history import History
from foredraft.core.nouns import Draft
from foredraft.core.round import Turn, play
from foredraft.core.sampling import Sampling
from foredraft.engine.kv import KVPool
from foredraft.measure.native_clock import ClockedTarget, NativeClock
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget


@pytest.fixture
def target(tmp_path):
    file = read_gguf(write_tiny(tmp_path / "tiny.gguf", "qwen2"))
    return NativeTarget.load(file, describe(file), LoadOptions(4, threads=1))


def test_a_clocked_model_gives_the_same_and_its_time_is_counted(target):
    clock = NativeClock()
    verdicts, seconds = [], []
    for one in (target, ClockedTarget(target, clock)):
        with KVPool(4).open() as cache:
            before, started = clock.seconds, time.perf_counter()
            turn = Turn(cache, [1, 2, 3], History(), Sampling(), Draft.chain([4, 5]))
            (outcome,) = play(one, [turn])
            seconds.append((clock.seconds - before, time.perf_counter() - started))
            verdicts.append((outcome.verdict, outcome.picks, outcome.logits.tolist()))
    assert verdicts[0] == verdicts[1]
    assert seconds[0][0] == 0.0
    assert 0.0 < seconds[1][0] < seconds[1][1]


def test_passes_and_picks_are_both_counted(target):
    clock = NativeClock()
    clocked = ClockedTarget(target, clock)
    clocked.model.forward  # noqa: B018 - looking a method up takes no native time
    assert clock.seconds == 0.0
    assert clocked.model.weight_bytes == target.model.weight_bytes
    assert clocked.vocab == target.vocab


def test_a_call_that_fails_is_counted_and_fails():
    clock = NativeClock()
    with pytest.raises(ZeroDivisionError):
        clock.around(lambda: 1 // 0)()
    assert clock.seconds > 0.0
