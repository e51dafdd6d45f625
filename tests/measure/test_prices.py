import pytest
from tiny import write_tiny

from foredraft.engine.kv import KVPool
from foredraft.measure.ceiling import Bandwidth
from foredraft.measure.prices import ROWS, PriceList, Prices
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import LoadOptions, NativeTarget

PRICES = Prices({1: 1.0, 2: 1.0, 4: 2.0, 8: 6.0})


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0), (5, 3.0), (7, 5.0), (8, 6.0), (9, 7.0), (12, 10.0)],
)
def test_sizes_between_measured_ones_lie_on_a_line_and_larger_ones_on_the_last(rows, seconds):
    assert PRICES.seconds(rows) == pytest.approx(seconds)


def test_prices_are_relative_to_one_row():
    assert Prices({1: 2.0, 3: 8.0}).relative(2) == pytest.approx(2.5)


def test_every_size_is_measured_as_often_as_memory_is_swept(tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf", "qwen2")
    file = read_gguf(path)
    target = NativeTarget.load(file, describe(file), LoadOptions(4, threads=1))
    pool = KVPool(4)
    found = PriceList(Bandwidth(1 << 22))
    found.take(target, pool, rounds=2)
    found.take(target, pool, rounds=1)
    assert {rows: len(times) for rows, times in found.seconds.items()} == dict.fromkeys(ROWS, 3)
    assert len(found.bandwidth_gb_s) == 3
    assert found.best_gb_s == max(found.bandwidth_gb_s) > 0
    assert set(found.prices().table) == set(ROWS)
    assert pool.num_free == 4


def test_the_price_is_the_median():
    found = PriceList(Bandwidth(1 << 20))
    found.seconds.update({1: [3.0, 1.0, 2.0], 2: [5.0, 5.0, 50.0]})
    assert found.prices() == Prices({1: 2.0, 2: 5.0})
