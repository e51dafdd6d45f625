from foredraft.engine.kv import KVPool
from foredraft.measure.settings import Settings


def test_model_with_a_long_context_is_measured_as_the_goals_say():
    assert Settings().fitted(32768) == Settings()
    assert Settings().fitted(4160) == Settings()


def test_short_context_makes_everything_shorter():
    fitted = Settings().fitted(512)
    assert fitted.long + max(fitted.rows) <= 512
    assert fitted.filled <= 512
    assert 2 <= fitted.short < fitted.middle < fitted.long
    assert fitted.rows == Settings().rows


def test_there_is_room_for_everything_at_once():
    settings = Settings()
    pool = KVPool(settings.blocks)
    lengths = (settings.short, settings.middle, settings.long, settings.prompt)
    for length in (*lengths, settings.short + settings.generated):
        pool.open().reserve(length + max(settings.rows))
