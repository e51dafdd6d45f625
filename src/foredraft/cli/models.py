"""`foredraft models`: the models that are known, and which of them are there."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.cli.progress import human_bytes
from foredraft.models.cache import cache_home, model_path
from foredraft.models.pull import is_pulled
from foredraft.models.registry import KNOWN, ModelEntry

if TYPE_CHECKING:
    from foredraft.cli import Subparsers


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "models",
        help="list the models that are known, and which of them are there",
        description="Lists the models that can be given by name. `-m` also takes the path of a GGUF file.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


@dataclass(frozen=True)
class Listed:
    """One line of the list."""

    entry: ModelEntry
    path: Path | None  # where it lies, if it has been pulled

    def as_json(self) -> dict[str, object]:
        entry, hub = self.entry, self.entry.hub
        return {
            "name": entry.name,
            "pulled": self.path is not None,
            "path": None if self.path is None else str(self.path),
            "bytes": entry.num_bytes,
            "sha256": entry.sha256,
            "licence": entry.licence,
            "hub": None if hub is None else f"{hub.repo}:{hub.file}",
        }


def run(args: argparse.Namespace) -> int:
    models = [Listed(entry, model_path(entry.name) if is_pulled(entry) else None) for entry in KNOWN]
    if args.json:
        print(json.dumps({"home": str(cache_home()), "models": [model.as_json() for model in models]}))
        return 0
    rows = [("NAME", "SIZE", "LICENCE", "WHERE")]
    for model in models:
        where = f"not pulled: foredraft pull {model.entry.name}" if model.path is None else str(model.path)
        rows.append((model.entry.name, human_bytes(model.entry.num_bytes), model.entry.licence, where))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]))
    return 0
