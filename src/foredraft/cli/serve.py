"""`foredraft serve -m MODEL`: OpenAI's interface over HTTP, until a signal comes."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.cli import options
from foredraft.cli.progress import Bar
from foredraft.errors import UsageError

if TYPE_CHECKING:
    from foredraft.cli import Subparsers
    from foredraft.engine.drafting import Drafting
    from foredraft.engine.llm import LLM
    from foredraft.server.settings import ServeOptions

KEY = "FOREDRAFT_API_KEY"  # environment variable


def add(subparsers: "Subparsers") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve OpenAI's interface",
        description="Serves OpenAI's interface over HTTP. SIGTERM and Ctrl-C let requests end first.",
    )
    options.add_model_options(parser)
    options.add_draft_options(parser)
    parser.add_argument(
        "--no-remember",
        action="store_true",
        help="draft without what earlier answers said: for users who must not see each other's speed",
    )
    _add_network(parser)
    _add_limits(parser)
    group = parser.add_argument_group("what is written")
    group.add_argument(
        "--log-requests",
        nargs="?",
        const="-",
        metavar="FILE",
        help="a line of JSON for each request, never what was said (-, the default: standard error)",
    )
    group.add_argument(
        "--trace", type=Path, metavar="DIR", help="a line of JSON for each round of each request"
    )


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="where to listen (127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="0: any that is free (8000)")
    for option, value, text in (
        ("--api-key", "KEY", f"who asks must have one of these; may be repeated (also: {KEY})"),
        ("--cors-origin", "ORIGIN", "web pages from there may ask (*: from anywhere); may be repeated"),
        ("--served-model-name", "NAME", "what requests call the model; may be repeated"),
    ):
        group.add_argument(option, action="append", default=[], metavar=value, help=text)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    for option, kind, default, value, text in (
        (
            "--kv-tokens",
            int,
            None,
            "N",
            "tokens that all requests together have in memory (16 contexts, less where memory is short)",
        ),
        ("--max-running", int, 32, "N", "requests that are computed together (32)"),
        ("--max-waiting", int, 128, "N", "requests that wait beside them; more get status 429 (128)"),
        ("--max-body-bytes", int, 4 << 20, "N", "longest body of a request (4194304)"),
        ("--request-timeout", float, None, "S", "seconds a request may take (no limit)"),
        ("--drain-timeout", float, 120.0, "S", "seconds requests have to end after SIGTERM (120)"),
    ):
        group.add_argument(option, type=kind, default=default, metavar=value, help=text)


def run(args: argparse.Namespace) -> int:
    drafting = options.drafting_of(args)
    try:
        from foredraft.server.app import build_app
        from foredraft.server.run import listen
        from foredraft.server.run import run as serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("foredraft"):
            raise
        raise UsageError(
            f"serve needs packages that are not installed ({error.name}): pip install 'foredraft[serve]'"
        ) from None
    settings = settings_of(args)
    with listen(settings) as bound, load(args, drafting) as llm:
        return serve(build_app(llm, settings), bound)


def settings_of(args: argparse.Namespace) -> "ServeOptions":
    from foredraft.engine.engine import EngineOptions
    from foredraft.server.settings import ServeOptions

    key = os.environ.get(KEY)
    return ServeOptions(
        names=tuple(args.served_model_name) or (Path(args.model).name.removesuffix(".gguf"),),
        host=args.host,
        port=args.port,
        api_keys=(*args.api_key, *([key] if key else [])),
        cors_origins=tuple(args.cors_origin),
        max_body_bytes=args.max_body_bytes,
        request_timeout=args.request_timeout,
        drain_timeout=args.drain_timeout,
        engine=EngineOptions(args.max_running, args.max_waiting),
        request_log=args.log_requests,
        trace_dir=args.trace,
    )


def load(args: argparse.Namespace, drafting: "Drafting") -> "LLM":
    """The model, with room for several requests."""
    from foredraft.engine.llm import LLM

    with Bar(f"loading {Path(args.model).name}") as bar:
        return LLM(
            args.model,
            ctx=args.ctx,
            kv_tokens="auto" if args.kv_tokens is None else args.kv_tokens,
            threads=args.threads,
            kv=args.kv,
            drafting=drafting,
            draft_quant=args.draft_quant,
            remember=not args.no_remember,
            progress=bar.advance if sys.stderr.isatty() else None,
        )
