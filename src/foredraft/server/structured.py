"""What a request says its text must be: JSON, by a schema or not, a pattern, one of a few texts, a grammar,
or calls of tools. One of them, under any of the names that servers have for it.

JSON comes on one line, with one space after each comma and colon. A schema holds with and without `strict`.
What of it cannot be enforced is refused; what JSON Schema does not know is ignored, as it says.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

from foredraft.engine.grammar import Grammar, GrammarCompiler, GrammarSpec
from foredraft.engine.grammar_limits import REMARKS
from foredraft.engine.grammar_source import JSON_OPTIONS
from foredraft.engine.llm import LLM
from foredraft.errors import UsageError
from foredraft.server.field_error import FieldError, fields_of, shown
from foredraft.server.tools.grammar_source import ToolGrammar

KEPT = 16  # compiled grammars; each may come to hold 40 MB
ANY_OBJECT = '{"type": "object"}'
TYPES = ("text", "json_object", "json_schema")
# Of a JSON schema: what holds values that are no schemas, and what holds schemas by names of the user's.
VALUES = ("const", "enum")
BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


class Grammars:
    """The grammars of one model; those asked for last stay compiled. Safe to use from several threads."""

    def __init__(self, llm: LLM) -> None:
        self._compiler = GrammarCompiler(llm.tokenizer, llm.target.vocab)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Callable[[], Grammar]] = OrderedDict()

    def compile(self, source: GrammarSpec | ToolGrammar) -> Callable[[], Grammar]:
        """Makes a constraint for one answer after another. It may take a second; `FieldError` says why it
        cannot be had.
        """
        if isinstance(source, ToolGrammar):
            return self._of_tools(source)
        key = (source.kind, source.source)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            made = self._compiler.compile(source)
        except UsageError as error:
            raise FieldError(str(error), source.field) from None
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _of_tools(self, tools: ToolGrammar) -> Callable[[], Grammar]:
        try:
            return self.compile(spec_of_tools(tools))
        except FieldError:
            for name, schema in tools.schemas:  # whose fault it is
                try:
                    self._compiler.compile(_json(schema, f"the schema of tool {shown(name)}"))
                except UsageError as error:
                    raise FieldError(str(error), "tools") from None
            raise


def spec_of(response_format: Mapping[str, object] | None, extras: Mapping[str, object]) -> GrammarSpec | None:
    """The one grammar that a request asks for, if it does. `extras` are the other fields that name one."""
    given: list[GrammarSpec] = []
    for field, value in {"response_format": response_format, **extras}.items():
        spec = None if value is None else READERS[field](value, field)
        if spec is not None:
            given.append(spec)
    if len(given) > 1:
        first, second = given[0].field, given[1].field
        raise FieldError(f"{first} and {second} are both given; a text follows one grammar", second)
    return given[0] if given else None


# Fields


def _response_format(value: object, path: str) -> GrammarSpec | None:
    fields = fields_of(value, path, ("type", "json_schema", "schema"))
    kind = fields.get("type")
    if kind not in TYPES:
        raise FieldError(f"{path}.type is {shown(kind)}; {', '.join(TYPES)} are known", f"{path}.type")
    if kind != "json_schema":
        if "json_schema" in fields or (kind == "text" and "schema" in fields):
            raise FieldError(f'{path} has a schema, but its type is "{kind}"', path)
        if "schema" in fields:  # as llama.cpp has it
            return _json(fields["schema"], f"{path}.schema")
        return None if kind == "text" else GrammarSpec("json", ANY_OBJECT, path)
    path = f"{path}.json_schema"
    if "schema" in fields:
        raise FieldError(f"the schema belongs into {path}.schema", path)
    fields = fields_of(fields.get("json_schema"), path, ("name", "schema", "strict", "description"))
    for name, sort in (("name", str), ("description", str), ("strict", bool)):
        if name in fields and not isinstance(fields[name], sort):
            raise FieldError(f"{path}.{name} is {shown(fields[name])}", f"{path}.{name}")
    if "schema" not in fields:
        raise FieldError(f"{path}.schema is missing", f"{path}.schema")
    return _json(fields["schema"], f"{path}.schema")


def _structured_outputs(value: object, path: str) -> GrammarSpec | None:
    readers = {"json": _json, "regex": _regex, "choice": _choice, "grammar": _grammar, "json_object": _object}
    fields = fields_of(value, path, tuple(readers))
    given = [spec for name, item in fields.items() if (spec := readers[name](item, f"{path}.{name}"))]
    if len(given) > 1:
        raise FieldError(f"{given[0].field} and {given[1].field} are both given", given[1].field)
    if not given:
        raise FieldError(f"{path} names no grammar; give one of {', '.join(readers)}", path)
    return given[0]


def _object(value: object, path: str) -> GrammarSpec | None:
    if not isinstance(value, bool):
        raise FieldError(f"{path} is {shown(value)}; true or false is expected", path)
    return GrammarSpec("json", ANY_OBJECT, path) if value else None


def _json(value: object, path: str) -> GrammarSpec:
    if isinstance(value, str):
        return GrammarSpec("json", value, path)
    if not isinstance(value, Mapping):
        raise FieldError(f"{path} is {shown(value)}; a JSON schema is expected, which is an object", path)
    return GrammarSpec("json", _written(value, path), path)


def _regex(value: object, path: str) -> GrammarSpec:
    return GrammarSpec("regex", _text(value, path, "a regular expression"), path)


def _grammar(value: object, path: str) -> GrammarSpec:
    return GrammarSpec("grammar", _text(value, path, "a grammar, in GBNF or Lark,"), path)


def _choice(value: object, path: str) -> GrammarSpec:
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise FieldError(f"{path} is {shown(value)}; a list of at least one text is expected", path)
    return GrammarSpec("choice", _written(value, path), path)


def _text(value: object, path: str, what: str) -> str:
    if not isinstance(value, str):
        raise FieldError(f"{path} is {shown(value)}; {what} is expected, as a text", path)
    return value


def _written(value: object, path: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (RecursionError, ValueError, TypeError):
        raise FieldError(f"{path} is nested too deep, or holds a number that is not finite", path) from None


READERS: Mapping[str, Callable[[object, str], GrammarSpec | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _json,
    "grammar": _grammar,
    "regex": _regex,
    "ebnf": _grammar,
}


# Tools


def spec_of_tools(tools: ToolGrammar) -> GrammarSpec:
    """The grammar of a text that is calls of these tools."""
    more = f"({_in_lark(tools.between, tools.control)} call)*" if tools.many else ""
    begin, end = _in_lark(tools.begin, tools.control), _in_lark(tools.end, tools.control)
    try:
        calls = [
            _call(name, tools.key, _moved(_no_root(schema), f"#/anyOf/{number}/properties/{tools.key}"))
            for number, (name, schema) in enumerate(tools.schemas)
        ]
    except RecursionError:
        raise FieldError("the schema of a tool is nested too deep", "tools") from None
    schema = _written({"x-guidance": JSON_OPTIONS, "anyOf": calls}, "tools")
    return GrammarSpec("grammar", f"start: {begin} call {more} {end}\ncall: %json {schema}", "tools")


def _call(name: str, key: str, schema: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: schema},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _no_root(schema: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key not in ("$schema", "$id", "id")}


def _moved(schema: object, place: str) -> object:
    """A schema that is to stand at this place of another, whose references are to mean what they did. Remarks
    are left out: those of a large set of tools are longer than all the rest.
    """
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved: dict[str, object] = {}
    for key, value in schema.items():
        if key in REMARKS:
            continue
        if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = place + value[1:]
        elif key in BY_NAME and isinstance(value, Mapping):
            moved[key] = {name: _moved(item, place) for name, item in value.items()}
        else:
            moved[key] = value if key in VALUES else _moved(value, place)
    return moved


def _in_lark(text: str, control: tuple[tuple[str, int], ...]) -> str:
    """A text in Lark, in which some parts are control tokens."""
    for part, token in control:
        if part in text:
            before, _, after = text.partition(part)
            return f"{_in_lark(before, control)} <[{token}]> {_in_lark(after, control)}"
    return json.dumps(text, ensure_ascii=False) if text else ""
