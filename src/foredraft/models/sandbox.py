"""Runs a template that came with a file: Jinja2's immutable sandbox, with bounds on steps and sizes.

The sandbox keeps a template from reaching Python; the bounds keep it from taking the machine. They are far
beyond what real templates need. A step is a loop's round; a call and work on long texts count as more.
Every render has a budget of its own.
"""

import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

SOURCE_LIMIT = 1 << 20  # characters of a template
SIZE_LIMIT = 1 << 22  # characters of a text, entries of a list, bits of a number
PRODUCT_LIMIT = 1 << 28  # replace, join, indent, ...: the text may grow with the product of two sizes
STEP_LIMIT = 1_000_000
STEPS_PER_CALL = 10
SIZE_PER_STEP = 1000
# Methods and filters that take a width or a count; those of GROWING use it once for every line or tab.
SIZED = frozenset(
    (
        *("batch", "center", "expandtabs", "indent", "ljust", "rjust"),
        *("round", "slice", "tojson", "truncate", "wordwrap", "zfill"),
    )
)
GROWING = frozenset(("expandtabs", "indent"))
_LOOP, _BLOCK = "bounded loop", "bounded block"  # with a space, so that no template can name them


class Generation(Extension):
    """{% generation %} marks what a model has written, for training; the text is the same without it."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it as an instance's)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One compilation or one render."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self.steps_left = STEP_LIMIT
        del self.globals["lipsum"]  # filler text by the megabyte, and no use for it here
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        self.filters[_LOOP] = self._loop
        self.filters[_BLOCK] = self._checked

    def compile_bounded(self, source: str) -> types.CodeType:
        """Bytecode of the template; its loops count their rounds, and whatever joins text is checked."""
        if len(source) > SOURCE_LIMIT:
            raise SecurityError(f"the template has {len(source)} characters, more than {SOURCE_LIMIT}")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, _LOOP)
        for block in list(tree.find_all(nodes.AssignBlock)):
            block.filter = _filtered(block.filter, _BLOCK)
        for join in list(tree.find_all(nodes.Concat)):
            # `a ~ b ~ c` is one node; as the only item of another it stays what it is.
            inner = nodes.Concat(join.nodes, lineno=join.lineno)
            join.nodes = [_filtered(inner, _BLOCK)]
        tree.set_environment(self)
        return self.compile(tree)

    def render(self, code: types.CodeType, variables: Mapping[str, object]) -> str:
        template = Template.from_code(self, code, self.make_globals(None))
        pieces: list[str] = []
        total = 0
        for piece in template.generate(**variables):
            pieces.append(piece)
            total += len(piece)
            if total > SIZE_LIMIT:
                raise SecurityError(f"the template writes more than {SIZE_LIMIT} characters")
        return "".join(pieces)

    # The values of a template can be anything, hence Any, as in the methods these override.

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N805
        __self._spend(STEPS_PER_CALL)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        if isinstance(method, types.BuiltinMethodType) and isinstance(method.__self__, str | bytes):
            __self._check_arguments(method.__name__, method.__self__, [*args, *kwargs.values()])
        return __self._checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_size(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            self._check_widths(left)
        return self._checked(super().call_binop(context, operator, left, right))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # wraps() keeps the mark of filters that want the context or the environment as their first argument.
        marked = hasattr(function, "jinja_pass_arg")

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            value, *others = args[1 if marked else 0 :] or (None,)
            self._check_arguments(name, value, [*others, *kwargs.values()])
            return self._checked(function(*args, **kwargs))

        return wrapper

    def _loop(self, items: Iterable[object]) -> Iterable[object]:
        if not isinstance(items, Sized):
            return self._count(items)
        self._spend(len(items))
        return items

    def _count(self, items: Iterable[object]) -> Iterator[object]:
        for item in items:
            self._spend(1)
            yield item

    def _spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise SecurityError(f"the template takes more than {STEP_LIMIT} steps")

    def _checked(self, value: Any) -> Any:  # noqa: ANN401
        size = _size(value)
        self._check_size(size)
        self._spend(size // SIZE_PER_STEP)
        return value

    def _check_size(self, size: int) -> None:
        if size > SIZE_LIMIT:
            raise SecurityError(f"the template makes a value of more than {SIZE_LIMIT} characters or entries")

    def _check_product(self, left: object, right: object) -> None:
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
                self._check_size(_size(value) * times)

    def _check_arguments(self, name: str, value: object, arguments: list[object]) -> None:
        if name == "format" and isinstance(value, str):
            self._check_widths(value)
        for argument in arguments:
            if isinstance(argument, int) and name not in SIZED:
                continue
            size = abs(argument) if isinstance(argument, int) else _size(argument)
            self._check_size(size)
            if (name in GROWING or not isinstance(argument, int)) and _size(value) * size > PRODUCT_LIMIT:
                raise SecurityError(
                    f"the template asks for {name} of {_size(value)} by {size} characters or entries"
                )

    def _check_widths(self, text: str) -> None:
        """Refuse the format of a very wide field, or of one whose width comes from elsewhere."""
        if re.search(r"\d{6}|%[^a-zA-Z%]*\*|\{[^}]*\{", text):
            raise SecurityError(f"the template formats a very wide field: {text[:80]!r}")


def _filtered(node: nodes.Node | None, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node is not None else 1)


def _size(value: object) -> int:
    """Characters, for a list those of its texts too; bits of a number."""
    if isinstance(value, str | bytes | Mapping):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(len(item) if isinstance(item, str) else 1 for item in value)
    return value.bit_length() if isinstance(value, int) else 0
