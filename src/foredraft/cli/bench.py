"""`foredraft bench`: what the engine reaches on this machine, beside what it must reach; with --speculation
what drafting gains (`bench_speculation.py`), with --serve what the server does (`bench_serve.py`).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from foredraft.cli import bench_serve, bench_speculation
from foredraft.cli.progress import CLEAR
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.measure.report import Circumstances

R = TypeVar("R")
Say = Callable[[str], None]
CALM = 0.75  # load average per core
NOT_CALM = "bench: the load average is {:.1f}: other programs are running, and figures will suffer"


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure the engine, beside llama.cpp if you like",
        description="Measures passes, generation, prompts, loading and memory, each beside what it must "
        "reach, and the memory bandwidth in the same run. Takes some minutes. With --speculation it measures "
        "what drafting gains instead, which takes an hour, with --serve what the server does with many "
        "requests at once. A goal that is missed is reported; it is no failure.",
    )
    parser.add_argument(
        "-m", "--model", required=True, metavar="MODEL", help="a pulled name, or the path of a GGUF file"
    )
    parser.add_argument(
        "--peer", type=Path, metavar="PATH", help="llama.cpp's llama-bench, to be run by turns"
    )
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="threads (0, the default: one a physical core)"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="rounds of passes (15), a fifth of it for long runs; with --speculation pairs of runs, "
        "with --serve of everything (5)",
    )
    parser.add_argument(
        "--only", metavar="NAMES", help="only these figures, as in share,rows,load, or only these prompts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep every sample in this file, as JSON")
    bench_speculation.add_options(parser)
    bench_serve.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise UsageError(f"--out {args.out}: there is no such folder")
    if args.serve:
        return run_serve(args)
    bench_serve.refuse_options(args)
    return run_speculation(args) if args.speculation else run_engine(args)


def run_engine(args: argparse.Namespace) -> int:
    from foredraft.measure.bench import Order, bench
    from foredraft.measure.figures import FIGURES
    from foredraft.measure.report import as_json, as_text
    from foredraft.models.cache import find_model

    bench_speculation.refuse_options(args)
    only = tuple(FIGURES) if args.only is None else tuple(args.only.split(","))
    repeat = 15 if args.repeat is None else args.repeat
    order = Order(find_model(args.model), args.threads, repeat, only, args.peer)
    result, circumstances = attended(args.model, order.threads, partial(bench, order))
    print(as_text(result, circumstances))
    if args.out is not None:
        write(args.out, as_json(result, circumstances, raw=True))
    if args.json:
        print(json.dumps(as_json(result, circumstances), ensure_ascii=False))
    return 0


def run_speculation(args: argparse.Namespace) -> int:
    order = bench_speculation.order_of(args)
    measure = partial(bench_speculation.measure, order)
    shown, circumstances = attended(args.model, order.threads, measure)
    return bench_speculation.show(args, shown, circumstances)


def run_serve(args: argparse.Namespace) -> int:
    order = bench_serve.order_of(args)
    shown, circumstances = attended(args.model, order.threads, partial(bench_serve.measure, order))
    return bench_serve.show(args, shown, circumstances)


def attended(model: str, threads: int, measure: Callable[[Say], R]) -> tuple[R, "Circumstances"]:
    """Measure, and note what else was going on."""
    from foredraft.measure import machine
    from foredraft.measure.report import Circumstances

    here, before = machine.this_machine(), machine.load_average()
    if before > CALM * here.cores:
        print(NOT_CALM.format(before), file=sys.stderr)
    others = machine.Others()
    with ticker() as say:
        result = measure(say)
    return result, Circumstances(
        model=model,
        command=["foredraft", *sys.argv[1:]],
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=machine.commit(),
        threads=threads,
        machine=here,
        versions=machine.versions(),
        load_average=(before, machine.load_average()),
        others_cores=others.cores(),
    )


@contextmanager
def ticker() -> Iterator[Say]:
    """Says on standard error what is being done: in one line of a terminal, or a line each."""
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        shown = f"{CLEAR}bench: {text}" if terminal else f"bench: {text}\n"
        sys.stderr.write(shown)
        sys.stderr.flush()

    try:
        yield say
    finally:
        if terminal:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()


def write(path: Path, answer: dict[str, object]) -> None:
    text = json.dumps(answer, indent=1, ensure_ascii=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written: {error.strerror or error}") from error
