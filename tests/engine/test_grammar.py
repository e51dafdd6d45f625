"""Grammars over tokens: against another's matcher, one token at a time, and against fresh ones."""

import json
import random
import sys
import threading

import numpy as np
import pytest
from grammar_oracle import (
    BYTES,
    COMPILER,
    ENDS,
    OTHER,
    PLAIN,
    TOKENIZER,
    VOCAB,
    Language,
    grammar,
    left,
    small_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from vocabularies import LARGER, SMALL, gpt2_metadata, llama_metadata, tokenizer_of

from foredraft.core.constraint import Both, LeastLength
from foredraft.engine.grammar import GrammarCompiler, GrammarSpec
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^a{1,3}$"},
        "na": {"type": "integer", "maximum": 20, "minimum": 0},
    },
    "required": ["name"],
    "additionalProperties": False,
}
CALL = {
    "type": "object",
    "properties": {"na": {"enum": [12]}},
    "required": ["na"],
    "additionalProperties": False,
}
CALLS = 'start: "ab\\n" call ("}\\nab" call)* "\\nbc"\ncall: %json ' + json.dumps(
    CALL | {"x-guidance": {"whitespace_pattern": " {1,3}|\n"}}
)
WS = "(?: {0,3}|\n)"
# Kind, source, the same as a pattern, characters of it that are not ASCII.
GRAMMARS = {
    "letters": ("regex", "(ab|abc)*c?", "(ab|abc)*c?", ""),
    "counted": ("regex", "a{3}(b|c)", "a{3}(b|c)", ""),
    "characters": ("regex", "[é€]{1,3}a?", "[é€]{1,3}a?", "é€"),
    "forced": ("regex", "name(abc)?", "name(abc)?", ""),
    "choice": (
        "choice",
        '["name", "nab", "", "é\\u20ac", "a\\n  ", "{\\"", "\\\\x\\"/"]',
        r'name|nab||é€|a\n  |\{"|\\x"/',
        "é€",
    ),
    "object": (
        "json",
        json.dumps(PERSON),
        r'\{"name": "a{1,3}"(, "na": (1?[0-9]|20))?\}',
        "",
    ),
    "list": (
        "json",
        '{"type": "array", "items": {"enum": ["ab", "abc", null]}, "maxItems": 3}',
        r'\[(("abc?"|null)(, ("abc?"|null)){0,2})?\]',
        "",
    ),
    "any of": (
        "json",
        '{"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^[a-b]?$"}]}',
        'true|false|"[ab]?"',
        "",
    ),
    "calls": ("grammar", CALLS, rf'ab\n(?P<c>\{{{WS}"na"{WS}:{WS}12{WS}\}})(\}}\nab(?&c))*\nbc', ""),
    "recursion": ("grammar", 'start: "(" start ")" | "a"', r"(?P<s>\((?&s)\)|a)", ""),
    "gbnf of itself": ("grammar", 'root ::= "(" root ")" | [ab]', r"(?P<s>\((?&s)\)|[ab])", ""),
    "gbnf repeated": ("grammar", 'root ::= ("a"? "b"{2}){1,2} (("c"*)*)?', "(a?b{2}){1,2}c*", ""),
    "gbnf": (
        "grammar",
        'root ::= a "x" # all of it\na ::= [a-z]+ | "\\u00e9" [\\x41\\u20AC]\n',
        "([a-z]+|é[A€])x",
        "é€",
    ),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_may_follow_is_what_the_language_has(name):
    kind, source, pattern, chars = GRAMMARS[name]
    language = Language(pattern, chars)
    for seed in range(4):
        choose = random.Random(seed)
        here, data = grammar(kind, source), b""
        for _ in range(16):
            follow = left(here)
            if forced := here.forced():
                assert follow == {forced[0]}
                assert language.forces(data, b"".join(BYTES[token] for token in forced))
            else:
                assert follow == language.follow(data), data
            token = choose.choice(sorted(follow))
            here.advance([token])
            if token in ENDS:
                break
            data += BYTES[token]


@pytest.mark.parametrize("name", GRAMMARS)
def test_allows_exactly_what_it_does_not_forbid(name):
    here, choose = grammar(*GRAMMARS[name][:2]), random.Random(1)
    for _ in range(6):
        follow = left(here)
        for token in range(VOCAB):
            assert here.allowed([token]) == (token in follow)
        assert not follow & {OTHER, *range(TOKENIZER.vocab_size, VOCAB)}  # control tokens and padding
        here.advance([choose.choice(sorted(follow))])


def test_forced_tokens_are_the_usual_ones_and_forced_one_by_one():
    here = grammar("regex", "(?:name|x)abc{2}b")
    assert here.forced() == []
    here.advance(TOKENIZER.encode("x"))
    forced = here.forced()
    assert forced == TOKENIZER.encode("abccb")[: len(forced)] != []
    while forced:
        assert left(here) == {forced[0]}
        here.advance(forced[:1])
        assert here.forced()[: len(forced) - 1] == forced[1:]
        forced = here.forced()


def test_other_tokens_of_a_forced_text_are_not_allowed():
    here = grammar("regex", "nameab")
    assert here.forced()[0] == TOKENIZER.encode("name")[0]
    assert here.allowed(TOKENIZER.encode("n")) == 0
    assert here.allowed(TOKENIZER.encode("nameab")) == len(TOKENIZER.encode("nameab"))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), name=st.sampled_from(sorted(GRAMMARS)))
def test_a_drafted_path_is_as_if_it_were_text_and_leaves_no_trace(data, name):
    kind, source = GRAMMARS[name][:2]
    here, text = grammar(kind, source), []
    choices = st.randoms(use_true_random=False)
    for _ in range(data.draw(st.integers(1, 4))):
        choose = data.draw(choices)
        tree = [()]
        for _ in range(data.draw(st.integers(0, 6))):
            path = choose.choice(tree)
            twin = grammar(kind, source)
            twin.advance([*text, *path])
            follow = left(twin)
            assert left(here, path) == follow
            assert here.allowed(path) == len(path)
            tree.append((*path, choose.choice(sorted(follow))))
            wrong = choose.choice(PLAIN)
            assert here.allowed((*path, wrong, wrong)) >= len(path) + (wrong in follow)
            assert (here.allowed((*path, wrong)) == len(path) + 1) == (wrong in follow)
        twin = grammar(kind, source)
        twin.advance(text)
        assert here.forced() == twin.forced()
        step = choose.choice(tree)
        here.advance(step)
        text += step


def test_a_path_that_is_not_allowed_leads_nowhere():
    here = grammar("regex", "abc")
    assert left(here, [OTHER]) == left(here, [min(PLAIN), min(PLAIN)]) == ENDS
    assert left(here) == set(TOKENIZER.encode("abc"))


def test_ends_where_it_is_complete_and_stays_ended():
    here = grammar("regex", "ab{0,1}")
    assert left(here) & ENDS == set()
    end = min(ENDS)
    a, b = TOKENIZER.encode("a") + TOKENIZER.encode("b")
    assert left(here, [a]) == {b} | ENDS
    assert left(here, [a, b]) == ENDS
    assert left(here, [a, end]) == ENDS
    assert here.allowed([a, end, max(ENDS), b]) == 3
    assert here.allowed([end]) == 0
    here.advance([a, end])
    assert left(here) == ENDS == left(here, [end, end])
    assert (here.allowed([end, a]), here.allowed([a])) == (1, 0)
    assert here.forced() == []
    here.advance([max(ENDS)])  # with ignore_eos


def test_ends_before_the_least_length_where_nothing_else_can_follow():
    here = Both(LeastLength(9, ENDS), grammar("regex", "ab?"))
    a, b = TOKENIZER.encode("a") + TOKENIZER.encode("b")
    assert left(here, [a]) == {b}
    here.advance([a, b])
    assert left(here) == ENDS


def test_an_end_token_that_the_grammar_names_ends_the_text():
    here = grammar("grammar", f'start: "a" <[{min(ENDS)}]> "b"')
    here.advance(TOKENIZER.encode("a"))
    assert left(here) == {min(ENDS)}
    here.advance([min(ENDS)])
    assert left(here) == ENDS


def test_a_grammar_may_have_control_tokens():
    here = grammar("grammar", f'start: <[{OTHER}]> "a"')
    assert here.forced() == [OTHER, *TOKENIZER.encode("a")]
    assert left(here) == {OTHER}
    assert left(here, [OTHER]) == set(TOKENIZER.encode("a"))


def test_logits_of_what_may_follow_stay():
    row = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    before = row.copy()
    here = grammar("regex", "[ab]c?")
    here.forbid(row, TOKENIZER.encode("a"))
    stays = sorted(ENDS | set(TOKENIZER.encode("c")))
    assert (row[stays] == before[stays]).all()
    assert np.isneginf(np.delete(row, stays)).all()


# Failures

CROWDED = "start: /[ab]/ /[ab]/ many\nmany: " + " | ".join(f'"{number}"' for number in range(2100))


def test_a_grammar_that_fails_on_the_way_fails_alone_and_says_so():
    here, other = grammar("grammar", CROWDED), grammar("grammar", 'start: /[ab]/ many\nmany: "a"+')
    a, b = TOKENIZER.encode("a") + TOKENIZER.encode("b")
    assert left(here, [a, a]) == ENDS  # it was only drafted
    assert here.allowed([a, a, a]) == here.allowed([a, a]) == 0
    assert left(here) >= {a, b}  # and leaves no trace
    here.advance([b])
    assert left(here, [b]) == ENDS
    with pytest.raises(ForedraftError, match=r"can't go on as its grammar wants .*2101 items"):
        here.advance([b, min(ENDS)])
    assert a in left(other, [a])


def test_a_lexer_that_is_used_up_is_begun_anew():
    here, twin = grammar("regex", "b*(?:a?){1000}a{1000}"), Language("b*a{1000,2000}")
    data = b""
    for _ in range(8):
        token = max(left(here) & set(PLAIN), key=lambda token: len(BYTES[token]))
        data += BYTES[token]
        assert twin.begins(data)
        here.advance([token])


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "a" * 9000, "'aaaaaaaaaaaaaaaaaaaa'… has 9000 characters; 8192 at most"),
        ("regex", "\ud800", "surrogates not allowed"),
        ("regex", "(?:a?){1000}a{1000}", "too many expressions"),
        ("json", "{", "it is not JSON"),
        ("json", "3", "an object is expected"),
        ("json", '{"maximum": NaN}', "NaN is not a JSON number"),
        ("json", '{"type": "strin"}', "Invalid type: strin"),
        ("json", '{"not": {}, "uniqueItems": true}', 'Unimplemented keys: ["not", "uniqueItems"]'),
        ("json", '{"format": "secret"}', "Unknown format: secret"),
        ("json", '{"oneOf": [{"type": "integer"}, {"minimum": 2}]}', "oneOf constraints are not supported"),
        ("json", '{"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented"),
        ("json", '{"$ref": "file:///etc/passwd"}', "not present in a registry"),
        ("json", '{"$ref": "#"}', "no text of this model's tokens follows it"),
        ("json", "[" * 60_000, "it is nested more than 100 deep"),
        ("json", '{"items": ' * 101 + "{}" + "}" * 101, "it is nested more than 100 deep"),
        ("json", json.dumps({"description": "x" * 140_000}), "131072 at most"),
        ("json", json.dumps({"const": "x" * 5000}), "4096 at most"),
        ("json", json.dumps({"anyOf": [{"enum": [1, "x" * 5000]}]}), "4096 at most"),
        ("json", json.dumps({"properties": {"x" * 5000: {}}}), "4096 at most"),
        ("grammar", 'a: "a"\nstart: ' + "a " * 61_000, "Too many items"),
        ("json", json.dumps({"allOf": [{"pattern": f"a{n}"} for n in range(40)]}), "40 parts are joined"),
        ("json", '{"multipleOf": 99991}', "multipleOf takes too long to follow beyond 10000"),
        ("json", '{"allOf": [{"multipleOf": 8.3}, {"multipleOf": 9700}, {"multipleOf": 89}]}', "multipleOf"),
        ("json", json.dumps({"patternProperties": {f"x{n}$": {} for n in range(65)}}), "has 65 patterns"),
        ("choice", "[]", "a list of at least one text"),
        ("choice", '["a", 1]', "a list of at least one text"),
        ("choice", json.dumps(["a" * 5000]), "4096 at most"),
        ("grammar", "start: a", 'unknown name: "a"'),
        ("grammar", "start: " + "(" * 500 + '"a"' + ")" * 500, "nested"),
        ("grammar", 'start: a\na[max_tokens=3]: /[a-z]+/', "max_tokens, stop or temperature"),
        ("grammar", "start: A\nA: " + " & ".join(f"/(?s:.*)a{n}(?s:.*)/" for n in range(30)), "uses & and ~"),
        ("grammar", "start: %json {", "what follows %json is not JSON"),
        ("grammar", "start: %json " + '{"items": ' * 101 + "{}" + "}" * 101, "nested more than 100 deep"),
        ("grammar", 'root ::= "a" | b', "as GBNF it cannot be read (Rule 'b' not found)"),
        ("grammar", "root ::= " + "(" * 60_000, "its parentheses are nested too deep"),
        ("grammar", "a ::= b\n" * 1001, "it has 1001 rules"),
        ("grammar", 'root ::= "\\uD800"', "is not a character"),
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_had_is_refused_with_the_reason(kind, source, reason):
    with pytest.raises(UsageError) as caught:
        COMPILER.compile(GrammarSpec(kind, source, "response_format.json_schema.schema"))
    message = str(caught.value)
    assert message.startswith("response_format.json_schema.schema cannot be used as a grammar: ")
    assert reason in message
    assert len(message) < 700


def test_a_large_schema_is_within_the_limits():
    properties = {f"field_{n}": {"type": ["string", "integer", "null"][n % 3]} for n in range(300)}
    here = grammar("json", json.dumps({"type": "object", "properties": properties}))
    start = TOKENIZER.encode('{"field_')[0]
    assert here.allowed([start]) == 1


def references(count, link):
    links = {f"a{n}": {"items": {"$ref": link(n + 1)}, "$anchor": f"a{n}"} for n in range(count)}
    return json.dumps({"$defs": links | {f"a{count}": {"$anchor": f"a{count}"}}, "$ref": link(0)})


@pytest.mark.parametrize("link", [lambda n: f"#/$defs/a{n}", lambda n: f"#/%24defs/a{n}", lambda n: f"#a{n}"])
def test_a_chain_of_references_is_refused_before_it_fills_the_stack(link):
    assert COMPILER.compile(GrammarSpec("json", references(50, link)))
    with pytest.raises(UsageError, match="followed through its references"):
        COMPILER.compile(GrammarSpec("json", references(900, link)))


def test_a_chain_of_rules_is_refused_before_it_fills_the_stack():
    def rules(count):
        links = [f"r{n}: ((r{n + 1}))" for n in range(count)]
        return GrammarSpec("grammar", "\n".join(["start: r0", *links, f'r{count}: "::(" // ((((']))

    assert COMPILER.compile(rules(300))
    with pytest.raises(UsageError, match="402 rules, and parentheses nested 2 deep"):
        COMPILER.compile(rules(400))
    with pytest.raises(UsageError, match="3002 rules"):
        COMPILER.compile(rules(3000))


def test_the_package_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        UsageError, match=r"llguidance, which is not installed: pip install 'foredraft\[serve\]'"
    ):
        GrammarCompiler(TOKENIZER, VOCAB).compile(GrammarSpec("regex", "a"))


def test_a_model_without_end_tokens_has_no_grammars():
    tokenizer = Tokenizer.from_metadata(gpt2_metadata())
    with pytest.raises(UsageError, match="has no end token"):
        GrammarCompiler(tokenizer, 300).compile(GrammarSpec("regex", "a"))


# Vocabularies


def test_many_threads_read_the_vocabulary_once():
    compiler = GrammarCompiler(small_tokenizer(), VOCAB)
    made, built = [], []

    def work(number):
        made.append(compiler.compile(GrammarSpec("regex", f"a{{{number + 1}}}"))())
        built.append(compiler.build_s)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(built)) == 1
    assert built[0] > 0.0


def test_sentencepiece_forces_the_usual_tokens_of_what_stands_in_the_midst_of_a_text():
    words = ["bc", "bcd", "\u2581ab", "ab", "\u2581", "a", "b", "c", "d"]
    scores = {word: -float(number) for number, word in enumerate(words)}
    tokenizer = Tokenizer.from_metadata(llama_metadata(scores))
    assert tokenizer.space_prefix
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    cases = {
        "[cd]abcda": ["a", "bcd", "a"],  # neither with a space nor with the longer "ab"
        "[cd] abd": ["\u2581ab", "d"],
        "[cd]\u2581é\x02d": [*(f"<0x{byte:02X}>" for byte in "\u2581é\x02".encode()), "d"],
    }
    for pattern, forced in cases.items():
        here = compiler.compile(GrammarSpec("regex", pattern))()
        here.advance([259 + words.index("d")])
        assert [tokenizer.vocabulary.tokens[token] for token in here.forced()] == forced


def test_two_tokens_of_the_same_bytes_are_both_allowed():
    tokenizer = Tokenizer.from_metadata(llama_metadata({"a": -1.0, "b": -2.0}))
    here = GrammarCompiler(tokenizer, tokenizer.vocab_size).compile(GrammarSpec("regex", "[ab]+"))()
    assert {tokenizer.token_bytes(token) for token in left(here, vocab=tokenizer.vocab_size)} == {b"a", b"b"}
    assert len(left(here, vocab=tokenizer.vocab_size)) == 4


MODELS = [SMALL, *(pytest.param(name, marks=pytest.mark.models) for name in LARGER[:2])]
FORM = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "minLength": 1, "maxLength": 12},
        "date_of_birth": {"type": "string", "format": "date"},
        "favourite_colours": {"type": "array", "items": {"enum": ["dark red", "hellgrün"]}, "maxItems": 3},
        "height": {"type": ["number", "null"], "minimum": 0, "maximum": 3},
    },
    "required": ["first_name", "date_of_birth", "favourite_colours", "height"],
    "additionalProperties": False,
}
FILLED = {
    "first_name": "Zoë 🦊",
    "date_of_birth": "1990-05-03",
    "favourite_colours": ["hellgrün"],
    "height": 1.73,
}


@pytest.mark.parametrize("name", MODELS)
def test_real_vocabularies(name):
    tokenizer = tokenizer_of(name)
    vocab = tokenizer.vocab_size + 64
    make = GrammarCompiler(tokenizer, vocab).compile(GrammarSpec("json", json.dumps(FORM)))
    hidden = {*range(tokenizer.vocab_size, vocab), *tokenizer.special_ids} - tokenizer.eos_ids
    filled = tokenizer.encode(json.dumps(FILLED, ensure_ascii=False))
    assert make().allowed([*filled, min(tokenizer.eos_ids)]) == len(filled) + 1
    for seed in range(3):
        choose, here, text, drafted = random.Random(seed), make(), [], 0
        for _ in range(200):
            forced = here.forced()
            drafted += len(forced)
            path = forced[: choose.randrange(4)]
            follow = left(here, path, vocab)
            assert not follow & hidden
            twin = make()
            twin.advance([*text, *path])
            assert left(twin, (), vocab) == follow
            path = [*path, choose.choice(sorted(follow))]
            here.advance(path)
            text += path
            if path[-1] in tokenizer.eos_ids:
                break
        Draft202012Validator(FORM).validate(json.loads(tokenizer.decode(text, special=False)))
        assert drafted > 15


@pytest.mark.parametrize("name", MODELS)
def test_an_ambiguous_grammar_is_given_up_before_its_masks_take_long(name):
    """Each takes longer than the one before, and everybody would wait for it."""
    tokenizer = tokenizer_of(name)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    with pytest.raises(ForedraftError, match="Too many items"):
        here = compiler.compile(GrammarSpec("grammar", 'start: a\na: "a" | "b" | a a | a a a'))()
        for token in tokenizer.encode("abba" * 60):
            follow = left(here, vocab=tokenizer.vocab_size)
            here.advance([token if token in follow else min(follow)])
