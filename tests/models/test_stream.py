from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vocabularies import SMALL, gpt2_metadata, llama_metadata, tokenizer_of

from foredraft.errors import TokenError, UsageError
from foredraft.models.stream import Delta, StopScanner, TextDecoder, TextStream
from foredraft.models.tokenizer import Tokenizer

# Bytes 0 to 255 are the ids 0 to 255; then some longer tokens, one of which breaks characters, and two
# control tokens.
WORDS = [b"ab", b"bab", b"abcab", " é".encode(), "日本".encode()[1:4], "👋".encode(), b"stop", b" and stop"]
TOKENIZER = Tokenizer.from_metadata(gpt2_metadata(WORDS, control=["<|im_end|>", "<|other|>"]))
END, OTHER = 256 + len(WORDS), 257 + len(WORDS)

LETTERS = [
    0x61,
    0x62,
    0x63,
    0xE6,
    0x97,
    0xA5,
    0xF0,
    0xFF,
]  # of a, b, c, 日, and what begins and breaks characters
some_ids = st.sampled_from([*LETTERS, *range(256, 256 + len(WORDS)), OTHER])
any_ids = st.lists(some_ids | st.integers(0, 255), max_size=25)
some_stops = st.lists(st.text("abc日 ", min_size=1, max_size=4), max_size=3)


def groups(ids, cuts):
    """The ids in bursts that end at the given places."""
    places = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:stop] for start, stop in pairwise(places)]


# Characters


@given(any_ids, st.lists(st.integers(0, 30), max_size=6))
def test_the_joined_text_is_that_of_decoding_at_once(ids, cuts):
    decoder = TextDecoder(TOKENIZER)
    text = "".join(decoder.feed(burst) for burst in groups(ids, cuts)) + decoder.flush()
    assert text == TOKENIZER.decode(ids, special=False)


def test_every_split_of_a_text_gives_the_same():
    ids = list("né日👋\u0301!".encode())
    for size in range(4):
        for cuts in combinations(range(1, len(ids)), size):
            decoder = TextDecoder(TOKENIZER)
            parts = [decoder.feed(burst) for burst in groups(ids, cuts)]
            assert "".join(parts) == "né日👋\u0301!" and "\ufffd" not in "".join(parts)
            assert decoder.flush() == ""


def test_an_incomplete_character_is_held_and_at_the_end_replaced():
    decoder = TextDecoder(TOKENIZER)
    assert [decoder.feed([byte]) for byte in "👋".encode()] == ["", "", "", "👋"]
    assert decoder.feed("日".encode()[:2]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_control_tokens_have_no_text_unless_asked_for():
    assert TextDecoder(TOKENIZER).feed([97, OTHER, 98]) == "ab"
    assert TextDecoder(TOKENIZER, special=True).feed([97, OTHER, 98]) == "a<|other|>b"


def test_a_completion_keeps_its_leading_space():
    tokenizer = Tokenizer.from_metadata(llama_metadata({"\u2581": -1.0, "a": -2.0, "\u2581a": -3.0}))
    assert TextStream(tokenizer).feed([261, 260]).text == " aa"


# Stop strings


def by_definition(ids, stops, ends, most):
    """One token after the other, each time looking at everything so far: text, tokens taken, reason, what
    stopped it.
    """
    for count in range(1, len(ids) + 1):
        if ids[count - 1] in ends:
            return TOKENIZER.decode(ids[: count - 1], special=False), count, "stop", ids[count - 1]
        certain = TextDecoder(TOKENIZER).feed(ids[:count])
        ended = [(certain.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in certain]
        if ended:
            end, _, stop = min(ended)
            return certain[: end - len(stop)], count, "stop", stop
        if count == most:
            return TOKENIZER.decode(ids[:count], special=False), count, "length", None
    return TOKENIZER.decode(ids, special=False), len(ids), None, None


@given(
    st.lists(some_ids | st.just(END), max_size=25),
    some_stops,
    st.none() | st.integers(1, 20),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=6),
)
@example([0x61, 0x62, END], ["ab"], 2, True, [])
@example([257, 257], ["abb", "b"], None, True, [1])
def test_the_grouping_of_tokens_changes_nothing(ids, stops, most, model_ends, cuts):
    ends = {END} if model_ends else set()
    stream = TextStream(TOKENIZER, stops=stops, end_ids=None if model_ends else (), max_tokens=most)
    deltas = [stream.feed(burst) for burst in groups(ids, cuts)]
    text = "".join(delta.text for delta in deltas) + stream.flush()
    taken = sum(delta.taken for delta in deltas)
    stopped_by = next((delta.stopped_by for delta in deltas if delta.stopped_by is not None), None)
    assert (text, taken, stream.finish, stopped_by) == by_definition(ids, stops, ends, most)
    assert [delta.finish for delta in deltas if delta.finish] == ([stream.finish] if stream.finish else [])


@given(st.lists(st.text("abc", max_size=4), max_size=8), some_stops)
def test_only_what_could_become_a_stop_string_is_held(pieces, stops):
    scanner, given_out, fed = StopScanner(stops), "", ""
    for piece in pieces:
        given_out += scanner.feed(piece)
        fed += piece
        if scanner.found is not None:
            break
        assert given_out + scanner.held == fed
        could_begin = [size for size in range(len(fed) + 1) if any(s.startswith(fed[size:]) for s in stops)]
        assert scanner.held == fed[min(could_begin, default=len(fed)) :]


@pytest.mark.parametrize("bursts", [[[97, 98, 99, 97]], [[97], [98], [99], [97]], [[97, 98], [99, 97]]])
def test_a_stop_string_across_tokens_ends_the_text_before_it(bursts):
    stream = TextStream(TOKENIZER, stops=["bc"])
    deltas = [stream.feed(burst) for burst in bursts]
    assert "".join(delta.text for delta in deltas) == "a"
    assert sum(delta.taken for delta in deltas) == 3
    assert stream.finish == "stop"


def test_a_stop_string_inside_a_token_ends_the_text_inside_it():
    stream = TextStream(TOKENIZER, stops=["stop"])
    assert stream.feed([97, 256 + 7, 97]) == Delta("a and ", 2, "stop", "stop")


def test_the_stop_string_that_is_complete_first_wins():
    assert TextStream(TOKENIZER, stops=["abcab", "ca"]).feed([258]).text == "ab"
    assert TextStream(TOKENIZER, stops=["ca", "abca"]).feed([258]).stopped_by == "abca"


def test_a_false_start_is_given_out_as_soon_as_it_is_one():
    stream = TextStream(TOKENIZER, stops=["abcd"])
    assert [stream.feed([byte]).text for byte in b"ababce"] == ["", "", "ab", "", "", "abce"]


def test_a_stop_string_may_span_a_character_in_pieces():
    stream = TextStream(TOKENIZER, stops=["日b"])
    texts = [stream.feed([byte]).text for byte in "a日b".encode()]
    assert texts == ["a", "", "", "", ""]
    assert stream.finish == "stop"


# The order of endings


def test_an_end_token_has_no_text_counts_and_gives_out_what_was_held():
    stream = TextStream(TOKENIZER, stops=["abc"])
    assert stream.feed([97, 98]) == Delta("", 2)
    assert stream.feed([END, 97]) == Delta("ab", 1, "stop", END)
    assert stream.tokens == 3


def test_on_the_last_token_an_end_or_a_stop_string_goes_before_the_limit():
    assert TextStream(TOKENIZER, max_tokens=2).feed([97, END]).finish == "stop"
    assert TextStream(TOKENIZER, stops=["ab"], max_tokens=2).feed([97, 98]).finish == "stop"
    assert TextStream(TOKENIZER, max_tokens=2).feed([97, 98, END]) == Delta("ab", 2, "length")


def test_at_the_limit_held_text_and_a_broken_character_are_given_out():
    stream = TextStream(TOKENIZER, stops=["abc"], max_tokens=3)
    assert stream.feed([97, 98, 0xE6]) == Delta("ab\ufffd", 3, "length")


def test_a_finished_stream_takes_nothing():
    stream = TextStream(TOKENIZER, max_tokens=1)
    stream.feed([97])
    assert stream.feed([98, 98]) == Delta("", 0)
    assert stream.flush() == ""
    assert stream.tokens == 1


def test_end_tokens_can_be_ignored():
    stream = TextStream(TOKENIZER, end_ids=())
    assert stream.feed([97, END, 98]) == Delta("ab", 3)


def test_an_empty_burst_changes_nothing():
    stream = TextStream(TOKENIZER, stops=["ab"])
    stream.feed([97])
    assert stream.feed([]) == Delta("", 0)
    assert stream.feed([98]).finish == "stop"


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_a_real_vocabulary_streams_what_it_decodes(text, cuts):
    tokenizer = tokenizer_of(SMALL)
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    streamed = "".join(stream.feed(burst).text for burst in groups(ids, cuts)) + stream.flush()
    assert streamed == tokenizer.decode(ids, special=False)


# Wrong input


@pytest.mark.parametrize("stops", [[""], ["a", ""], [5], [None]])
def test_a_stop_string_must_be_a_text_with_something_in_it(stops):
    with pytest.raises(UsageError, match="stop string"):
        TextStream(TOKENIZER, stops=stops)


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_below_one_is_refused(most):
    with pytest.raises(UsageError, match="max_tokens"):
        TextStream(TOKENIZER, max_tokens=most)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(TokenError):
        TextStream(TOKENIZER).feed([97, 10_000])


# The least length


def with_least(ids, stops, least, most):
    """One token after the other: a stop string counts if all of it lies behind the first `least` - 1 tokens,
    and is complete.
    """
    exempt = max(0, least - 1)
    for count in range(1, len(ids) + 1):
        before = TextDecoder(TOKENIZER).feed(ids[: min(exempt, count)])
        certain = TextDecoder(TOKENIZER).feed(ids[:count])[len(before) :]
        ended = [(certain.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in certain]
        if ended:
            end, _, stop = min(ended)
            return before + certain[: end - len(stop)], count, "stop", stop
        if count == most:
            return TOKENIZER.decode(ids[:count], special=False), count, "length", None
    return TOKENIZER.decode(ids, special=False), len(ids), None, None


@settings(deadline=None)
@given(
    st.lists(some_ids, max_size=25),
    some_stops,
    st.integers(0, 20),
    st.none() | st.integers(1, 20),
    st.lists(st.integers(0, 30), max_size=6),
)
@example([97, 98, 97, 98], ["ab"], 2, None, [])
def test_stop_strings_are_looked_for_from_the_least_length_on(ids, stops, least, most, cuts):
    stream = TextStream(TOKENIZER, stops=stops, end_ids=(), max_tokens=most, min_tokens=least)
    deltas = [stream.feed(burst) for burst in groups(ids, cuts)]
    text = "".join(delta.text for delta in deltas) + stream.flush()
    taken = sum(delta.taken for delta in deltas)
    stopped_by = next((delta.stopped_by for delta in deltas if delta.stopped_by is not None), None)
    assert (text, taken, stream.finish, stopped_by) == with_least(ids, stops, least, most)


def test_before_the_least_length_the_limit_ends_all_the_same():
    stream = TextStream(TOKENIZER, stops=["a"], max_tokens=2, min_tokens=9)
    assert stream.feed([97, 97, 97]) == Delta("aa", 2, "length")


def test_the_token_of_the_least_length_may_complete_a_stop_string():
    stream = TextStream(TOKENIZER, stops=["b"], min_tokens=3)
    assert stream.feed([98, 98]) == Delta("bb", 2)
    assert stream.feed([98]) == Delta("", 1, "stop", "b")
