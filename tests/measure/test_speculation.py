import pytest
from tiny import write_tiny

from foredraft.errors import UsageError
from foredraft.measure.prices import ROUNDS, ROWS
from foredraft.measure.prompts import Prompt
from foredraft.measure.speculation import Progress, SpeculationOrder, speculate

PROMPTS = (
    Prompt("code", "dog", "the quick brown fox jumps over the lazy dog and then the quick brown fox"),
    Prompt("chat", "tree", "what is drafted here is checked there; what is drafted"),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("speculation") / "tiny.gguf", "qwen2", seed=5)
    order = SpeculationOrder(
        path, PROMPTS, ("ngram", "ngram+suffix"), tokens=24, repeat=3, threads=1, sweep_bytes=1 << 22
    )
    said = []
    return speculate(order, said.append), said


def test_every_prompt_is_answered_with_each_configuration_in_every_round(measured):
    found, _ = measured
    assert [answer.prompt for answer in found.answers] == list(PROMPTS)
    for answer in found.answers:
        assert {name: len(runs) for name, runs in answer.runs.items()} == {
            "off": 3,
            "ngram": 3,
            "ngram+suffix": 3,
        }


def test_drafting_gives_the_recorded_answer(measured):
    for answer in measured[0].answers:
        assert 1 <= len(answer.recording.output) <= 24
        assert len(answer.recording.prompt) > 10
        assert all(run.identical for runs in answer.runs.values() for run in runs)
        assert all(
            run.tokens == len(answer.recording.output) for runs in answer.runs.values() for run in runs
        )


def test_runs_without_drafting_draft_nothing(measured):
    for answer in measured[0].answers:
        assert all((run.drafted, run.by_drafter) == (0, {}) for run in answer.runs["off"])
        assert all(set(run.by_drafter) <= {"ngram"} for run in answer.runs["ngram"])


def test_host_time_is_that_of_the_rounds_after_the_first(measured):
    for answer in measured[0].answers:
        for run in answer.runs["ngram"]:
            assert run.host_s > 0
            assert run.host_ms == pytest.approx(1e3 * run.host_s / (run.rounds - 1))


def test_prices_are_taken_before_amid_and_after(measured):
    found, said = measured
    assert {rows: len(times) for rows, times in found.prices.seconds.items()} == dict.fromkeys(
        ROWS, 3 * ROUNDS
    )
    assert len(found.prices.bandwidth_gb_s) == 3 * ROUNDS
    assert found.step is None
    places = [index for index, text in enumerate(said) if text == "measuring what passes cost"]
    runs = [index for index, text in enumerate(said) if text.startswith("round ")]
    assert len(runs) == 2 * 3 * 3
    assert places[0] < runs[0] < places[1] < runs[-1] < places[2]


def test_the_order_moves_on_from_round_to_round():
    order = SpeculationOrder("m", PROMPTS, ("ngram", "auto"), threads=1)
    assert [order.turns(number) for number in range(4)] == [
        ("off", "ngram", "auto"),
        ("ngram", "auto", "off"),
        ("auto", "off", "ngram"),
        ("off", "ngram", "auto"),
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"repeat": 0}, "repeat is 0"),
        ({"tokens": 1}, "tokens is 1"),
        ({"prompts": ()}, "no prompts"),
        ({"drafters": ()}, "-d"),
        ({"drafters": ("off",)}, "off is measured beside them anyway"),
        ({"drafters": ("ngram", "ngram")}, "different configurations"),
        ({"drafters": ("ngrm",)}, "there is no drafter 'ngrm'"),
    ],
)
def test_senseless_orders_are_refused(change, complaint):
    with pytest.raises(UsageError, match=complaint):
        SpeculationOrder(**({"model": "m", "prompts": PROMPTS, "threads": 1} | change))


def test_progress_tells_what_is_left_once_something_is_done():
    said = []
    progress = Progress(4, said.append)
    for what in ("a", "b"):
        progress.begin(what)
    assert said == ["a", "b (about 0 minutes left)"]
