import io

import pytest

from foredraft.cli.progress import CLEAR, Bar, bar_line, human_bytes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.12 GB")],
)
def test_bytes_are_written_in_decimal_units(count, text):
    assert human_bytes(count) == text


def test_elsewhere_than_on_a_terminal_every_tenth_is_one_plain_line():
    stream = io.StringIO()
    with Bar("model", stream) as bar:
        for done in range(1001):
            bar.advance(done, 1000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "model:  10 % of 1 kB"
    assert lines[-1] == "model: 100 % of 1 kB"
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_the_bar_is_gone_at_the_end_even_after_an_interrupt():
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Bar("model", stream) as bar:
        bar.advance(500, 1000)
        bar.note("a line of its own")
        raise KeyboardInterrupt
    text = stream.getvalue()
    assert "50 % of 1 kB" in text
    assert f"{CLEAR}model: a line of its own\n" in text
    assert text.endswith(CLEAR)


@pytest.mark.parametrize("columns", [0, 1, 10, 30, 40, 80, 300])
def test_the_bar_never_fills_the_terminals_line(columns):
    for done in (0, 1, 999, 1000):
        assert len(bar_line("qwen2.5-coder-1.5b", done, 1000, columns)) <= max(columns - 1, 0)


def test_an_empty_total_is_complete():
    assert "100 %" in bar_line("m", 0, 0, 80)
