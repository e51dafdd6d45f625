"""What `foredraft bench --speculation` asks for: our own prompts of six kinds of work (`prompts/`, one file
each, named KIND-NAME.txt), or the caller's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from foredraft.errors import UsageError

KINDS = ("json", "code", "edit", "summary", "chat", "prose")
OTHER = "other"  # the kind of a prompt that states none


@dataclass(frozen=True)
class Prompt:
    """Put to the model as a user's message."""

    kind: str
    name: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.kind}-{self.name}"


def own_prompts() -> tuple[Prompt, ...]:
    """In the order of `KINDS`, then by name."""
    found = []
    for file in files("foredraft.measure").joinpath("prompts").iterdir():
        kind, _, name = file.name.removesuffix(".txt").partition("-")
        if file.name.endswith(".txt"):
            found.append(Prompt(kind, name, file.read_text(encoding="utf-8").strip()))
    return tuple(sorted(found, key=lambda prompt: (KINDS.index(prompt.kind), prompt.name)))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """One JSON object a line: `prompt`, and `kind` and `name` if wanted. Spec-Bench's own keys do as well:
    the first of `turns`, `category` and `question_id`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path}: cannot be read as UTF-8 text: {error}") from error
    prompts = tuple(_parsed(path, number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise UsageError(f"--prompts {path}: the file has no prompts; one JSON object a line is expected")
    return prompts


def chosen(
    prompts: Sequence[Prompt], kinds: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> tuple[Prompt, ...]:
    """Those of these kinds and names; None: all of them."""
    _refuse_unknown("--kinds", kinds, [prompt.kind for prompt in prompts])
    _refuse_unknown("--only", names, [prompt.name for prompt in prompts])
    kept = tuple(
        prompt
        for prompt in prompts
        if (kinds is None or prompt.kind in kinds) and (names is None or prompt.name in names)
    )
    if not kept:
        raise UsageError(f"no prompt of the kinds {', '.join(kinds or ())} is named {', '.join(names or ())}")
    return kept


def _parsed(path: Path, number: int, line: str) -> Prompt:
    try:
        entry = json.loads(line)
        text = entry["prompt"] if "prompt" in entry else entry["turns"][0]
        if not isinstance(text, str) or not text:
            raise TypeError("the prompt is not a text")
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UsageError(
            f'--prompts {path}, line {number}: {line[:80]!r} is not understood ({error}); {{"kind": "code", '
            '"name": "sort", "prompt": "Write …"} is expected'
        ) from None
    kind = entry.get("kind", entry.get("category", OTHER))
    return Prompt(str(kind), str(entry.get("name", entry.get("question_id", number))), text)


def _refuse_unknown(option: str, asked: Sequence[str] | None, there: Sequence[str]) -> None:
    for word in asked or ():
        if word not in there:
            near = get_close_matches(word, there, 1)
            meant = f"; did you mean {near[0]}?" if near else "."
            raise UsageError(
                f"{option}: there is no {word!r} among the prompts{meant} There are: "
                f"{', '.join(dict.fromkeys(there))}"
            )
