"""What a grammar is given as, turned into what llguidance reads."""

import re
from typing import TYPE_CHECKING, Literal

from foredraft.engine.grammar_limits import (
    MOST_CHARACTERS,
    MOST_LITERAL,
    MOST_RULES,
    TEXT,
    check_lark,
    check_length,
    check_schema,
    parsed,
)
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Kind = Literal["json", "regex", "choice", "grammar"]

MOST_PATTERN = 1 << 13  # characters of a regular expression

# JSON is written on one line, with one space after each comma and colon. A model that may write whitespace as
# it likes may write it until the answer is cut off, and what it may choose is not forced: so, half as many
# tokens could be drafted.
JSON_OPTIONS: "JsonCompileOptions" = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "coerce_one_of": False,
    "lenient": False,
}

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_CODE_POINT = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
# Of GBNF: literals, and what is repeated within what is repeated, whose parentheses would be lost.
_REPEATED = re.compile(
    r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*)|([*+?]|\{[\d,\s]*\})(\s*\)\s*)(?=[*+?{])'
)


def llguidance_source(kind: Kind, source: str) -> str:
    """What llguidance's matcher takes. `UsageError` where it cannot be had, or would be too much.

    The source of "json" is a JSON schema, that of "choice" a JSON list of texts; "grammar" is Lark as
    llguidance knows it, or GBNF.
    """
    from llguidance import LLMatcher

    check_length(source, MOST_PATTERN if kind == "regex" else MOST_CHARACTERS)
    if kind == "json":
        schema = parsed(source)
        if not isinstance(schema, dict):
            raise UsageError("an object is expected of a JSON schema")
        check_schema(schema)
        return LLMatcher.grammar_from_json_schema(source, overrides=JSON_OPTIONS)
    if kind == "grammar":
        rules = len(_GBNF_RULE.findall(source))
        if rules > MOST_RULES:
            raise UsageError(f"it has {rules} rules; {MOST_RULES} at most are taken")
        lark = _lark_of(source) if rules else source
        check_lark(lark)
        return LLMatcher.grammar_from_lark(lark)
    return LLMatcher.grammar_from_regex(source if kind == "regex" else _one_of(source))


def _one_of(source: str) -> str:
    choices = parsed(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) for text in choices):
        raise UsageError("a list of at least one text is expected")
    for text in choices:
        check_length(text, MOST_LITERAL)
    return "|".join(f"(?:{_literally(text)})" for text in choices)


def _literally(text: str) -> str:
    """A regular expression for this text alone."""
    return "".join(
        char if char.isalnum() or char in " _" or ord(char) > 127 else f"\\x{{{ord(char):x}}}"
        for char in text
    )


def _lark_of(gbnf: str) -> str:
    """llguidance's own conversion, with what it leaves out.

    It makes terminals of rules without recursion, and a terminal takes all it can: `[a-z]+ "x"` would never
    end. So a grammar of terminals only becomes a single one, and is exact.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    gbnf = _REPEATED.sub(lambda match: match[1] or f'{match[2]} ""{match[3]}', gbnf)
    try:
        lark = gbnf_to_lark(_CODE_POINT.sub(_written_out, gbnf))
    except RecursionError:
        raise UsageError("its parentheses are nested too deep") from None
    except Exception as error:  # noqa: BLE001 - it raises plain exceptions for whatever it does not understand
        raise UsageError(f"as GBNF it cannot be read ({error})") from None
    lark = TEXT.sub(lambda match: "/(?s:.)/" if match[0] == "/./" else match[0], lark)
    rules = re.findall(r"^([a-z_][a-z_0-9]*):", TEXT.sub('""', lark), re.MULTILINE)
    if rules != ["start"] or len(re.findall(r"\bstart\b", TEXT.sub('""', lark))) > 1:
        return lark
    return re.sub(r"^start:", "start: START\nSTART:", lark, flags=re.MULTILINE)


def _written_out(escape: re.Match[str]) -> str:
    """A code point beyond ASCII as the character itself: Lark has no other way to write it."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return escape[0]
    value = int(digits, 16)
    if value > 0x10FFFF or 0xD800 <= value < 0xE000:
        raise UsageError(f"{escape[0]} is not a character")
    return chr(value) if value > 127 else f"\\x{value:02x}"
