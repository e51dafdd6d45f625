"""Keeps the code small: fails if a function, a file or the whole has more lines than the budget allows.

Python functions are found by the parser. C++ functions are found by their braces: exact enough for code that
clang-format would leave alone, with strings and comments blanked first.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FUNCTION_LINES = 60
FILE_LINES = 300
PYTHON_LINES = 21_500
CPP_LINES = 4_400

ROOT = Path(__file__).parent.parent
CPP_SUFFIXES = (".cpp", ".hpp", ".inc")
# Whatever braces may hide in, longest first; newlines inside are kept so that line numbers stay right.
CPP_BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)
# What opens a block that is no function; a brace after an `=` opens a table.
CPP_NO_FUNCTION = re.compile(
    r"^\s*(if|else|for|while|do|switch|try|catch|namespace|struct|class|union|enum|extern)\b|=\s*$"
)


@dataclass(frozen=True)
class Function:
    name: str
    line: int
    num_lines: int


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield Function(node.name, node.lineno, last - node.lineno + 1)


def cpp_functions(text: str) -> Iterator[Function]:
    code = CPP_BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    code = re.sub(
        r"^[ \t]*#(?:\\\n|[^\n])*", lambda match: re.sub(r"[^\n]", " ", match[0]), code, flags=re.MULTILINE
    )
    opened: list[tuple[str, int]] = []
    start = 0
    for position, character in enumerate(code):
        if character == "{":
            opened.append((code[start:position], position))
        elif character == "}" and opened:
            head, opening = opened.pop()
            if "(" in head and not CPP_NO_FUNCTION.search(head):
                first = code.count("\n", 0, opening - len(head.lstrip())) + 1
                yield Function(" ".join(head.split()), first, code.count("\n", 0, position) + 2 - first)
        if character in "{};":
            start = position + 1


def over_budget(path: Path) -> Iterator[str]:
    """What is too long in one file."""
    text = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT)
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield f"{place}: the file has {lines} lines, at most {FILE_LINES} are allowed"
    functions = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
    for function in functions:
        if function.num_lines > FUNCTION_LINES:
            yield (
                f"{place}:{function.line}: {function.name} has {function.num_lines} lines, "
                f"at most {FUNCTION_LINES} are allowed"
            )


def num_lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def main() -> int:
    python = sorted((ROOT / "src").rglob("*.py"))
    scripts = sorted((ROOT / "scripts").rglob("*.py"))
    cpp = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in CPP_SUFFIXES)
    faults = [fault for path in [*python, *scripts, *cpp] for fault in over_budget(path)]
    for language, paths, limit in (("Python", python, PYTHON_LINES), ("C++", cpp, CPP_LINES)):
        total = num_lines(paths)
        print(f"{language}: {total} of {limit} lines in {len(paths)} files")
        if total > limit:
            faults.append(f"{language} has {total} lines, at most {limit} are allowed")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
