"""What keeps a grammar from anywhere from taking the process with it, or an afternoon.

llguidance bounds its own work, but for some things: it descends by recursion, so a chain of references or of
rules ends the process when the stack is full; it intersects regular expressions, and follows multiples, in
time that grows beyond all measure; and it tokenizes anew, for every token, all that is forced. These are
counted here, before it sees the grammar.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

from foredraft.errors import UsageError

MOST_CHARACTERS = 1 << 17  # of a grammar
MOST_LITERAL = 1 << 12  # of a text that may be forced as a whole
MOST_NESTED = 100  # objects and lists in a JSON schema
MOST_DEPTH = 800  # of those, when every reference is followed; the stack of a thread holds 2,000 and more
MOST_RULES = 1000  # rules, each counted with the parentheses it may have open; the stack holds 2,000
MOST_JOINED = 8  # regular expressions of which a text must match several
MOST_PATTERNS = 64  # of properties: all pairs of them are compared
MOST_MULTIPLE = 10_000  # a text's digits are followed by a state for each remainder

TOO_DEEP = f"it is nested more than {MOST_NESTED} deep"
# What a JSON schema may say without saying anything of the text.
REMARKS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")
)
_NO_CONDITION = REMARKS | {"$ref", "$defs", "definitions", "$schema", "$id", "$anchor"}
_JOINABLE = ("pattern", "patternProperties", "format")
# In a grammar: what stands for itself, and where a colon or a parenthesis means nothing.
TEXT = re.compile(r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')


def parsed(text: str) -> object:
    """JSON, by the standard: no NaN."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise UsageError(TOO_DEEP) from None
    except ValueError as error:
        raise UsageError(f"it is not JSON ({error})") from None


def check_length(text: str, most: int) -> None:
    if len(text) > most:
        raise UsageError(f"{text[:20]!r}… has {len(text)} characters; {most} at most are taken")


def check_schema(schema: Mapping[str, object]) -> None:
    """Refuse a JSON schema that would end in the stack, or never."""
    parts = _containers(schema)
    nodes = [part for part in parts if isinstance(part, dict)]
    _check_depth(schema, parts, nodes)
    for node in nodes:
        _check_texts(node)
    joins = sum(map(_joins, nodes))
    joinable = sum(key in node for node in nodes for key in _JOINABLE)
    if min(joins, joinable) > MOST_JOINED:
        raise UsageError(
            f"{joins} parts are joined by allOf or stand beside a $ref, and {joinable} say pattern or "
            f"format; {MOST_JOINED} may: what must match many patterns takes too long to find"
        )
    if (patterns := sum(len(_children(node.get("patternProperties"))) for node in nodes)) > MOST_PATTERNS:
        raise UsageError(f"patternProperties has {patterns} patterns; {MOST_PATTERNS} at most are taken")
    factors = {_digits(node["multipleOf"]) for node in nodes if "multipleOf" in node}
    if (math.prod(factors) if joins else max(factors, default=1)) > MOST_MULTIPLE:
        raise UsageError(
            f"multipleOf takes too long to follow beyond {MOST_MULTIPLE}, not counting zeros at its end"
        )


def check_lark(lark: str) -> None:
    """The same for a Lark grammar, JSON schemas in it included."""
    outline = TEXT.sub('""', _without_schemas(lark))
    nested = deepest = 0
    for bracket in re.findall(r"[()\[\]]", outline):
        nested += 1 if bracket in "([" else -1
        deepest = max(deepest, nested)
    if outline.count(":") * (1 + deepest) > MOST_RULES:
        raise UsageError(
            f"it has {outline.count(':')} rules, and parentheses nested {deepest} deep; the one times the "
            f"other may come to {MOST_RULES}"
        )
    if outline.count("&") + outline.count("~") > MOST_JOINED:
        raise UsageError(f"it uses & and ~ more than {MOST_JOINED} times, which takes too long to match")


def _without_schemas(lark: str) -> str:
    """The grammar without its %json parts, which are checked."""
    rest: list[str] = []
    done = 0
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    for match in re.finditer(r"%json\s*", lark):
        if match.start() < done:
            continue
        try:
            schema, end = decoder.raw_decode(lark, match.end())
        except RecursionError:
            raise UsageError(TOO_DEEP) from None
        except ValueError as error:
            raise UsageError(f"what follows %json is not JSON ({error})") from None
        if isinstance(schema, dict):
            check_schema(schema)
        rest.append(lark[done : match.start()])
        done = end
    return "".join(rest) + lark[done:]


def _containers(schema: object) -> list[object]:
    """All objects and lists in it, each before those within. Without recursion, which is to be prevented."""
    found: list[object] = []
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict | list):
            found.append(part)
            waiting += _children(part)
    return found


def _children(part: object) -> list[object]:
    if isinstance(part, dict):
        return list(part.values())
    return part if isinstance(part, list) else []


def _check_depth(
    schema: Mapping[str, object], parts: Sequence[object], nodes: Sequence[Mapping[str, object]]
) -> None:
    heights: dict[int, int] = {}
    for part in reversed(parts):
        heights[id(part)] = 1 + max((heights.get(id(child), 0) for child in _children(part)), default=0)
    depth = heights[id(schema)]
    if depth > MOST_NESTED:
        raise UsageError(TOO_DEEP)
    is_plain = not any(isinstance(node.get(key), str) for node in nodes[1:] for key in ("$id", "id"))
    pointers = {node["$ref"] for node in nodes if isinstance(node.get("$ref"), str)}
    targets = [_target(schema, str(pointer)) if is_plain else None for pointer in pointers]
    # What is not found here llguidance may find yet: then it may be anything.
    if depth + sum(heights.get(id(target), depth) for target in targets) > MOST_DEPTH:
        raise UsageError(f"followed through its references, the schema is nested more than {MOST_DEPTH} deep")


def _target(schema: object, pointer: str) -> object:
    """What a reference within the schema points at; None where that is not known."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    here = schema
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(here, list):
            here = here[int(step)] if step.isdecimal() and int(step) < len(here) else None
        else:
            here = here.get(step) if isinstance(here, dict) else None
    return here


def _check_texts(node: Mapping[str, object]) -> None:
    for key, value in node.items():
        texts = [key, *(value if isinstance(value, list) else [value])]
        for text in texts if key not in REMARKS else [key]:
            if isinstance(text, str):
                check_length(text, MOST_LITERAL)


def _joins(node: Mapping[str, object]) -> int:
    parts = node.get("allOf")
    beside = "$ref" in node and not node.keys() <= _NO_CONDITION
    return (len(parts) if isinstance(parts, list) else 0) + beside


def _digits(value: object) -> int:
    """Of a number, without the zeros at its end and the point."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    digits = Decimal(repr(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
