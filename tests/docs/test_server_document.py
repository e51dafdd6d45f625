"""What the pages about the server say is what the code has: routes, fields, options, errors, metrics. Their
examples run.
"""

import argparse
import importlib
import json
import re
import shlex
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from real import real_model
from serving import serving
from tiny import write_tiny

from foredraft import LLM
from foredraft.cli import COMMANDS
from foredraft.drafters.grammar import GrammarDrafter
from foredraft.engine.checks import DEFAULT_CONTEXT, FREE_PART, SERVED
from foredraft.engine.drafting import SCRATCH_ROWS
from foredraft.engine.grammar_limits import MOST_CHARACTERS, MOST_NESTED
from foredraft.engine.grammar_source import MOST_PATTERN
from foredraft.engine.kv import BLOCK
from foredraft.models.families import describe
from foredraft.models.gguf import read_gguf
from foredraft.models.target import kv_block_bytes
from foredraft.server.bridge import LONGEST_WAIT
from foredraft.server.chat_body import ChatBody, TemplateBody
from foredraft.server.completion_body import DEFAULT_MOST, CompletionBody
from foredraft.server.documents import DrafterReply, SpeculationReply, Timings
from foredraft.server.fields import (
    IDLE_IN_CHATS,
    IDLE_IN_COMPLETIONS,
    IGNORED,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_STOPS,
    Speculation,
    StreamOptions,
)
from foredraft.server.guard import OPEN
from foredraft.server.messages import ROLES
from foredraft.server.meters import WINDOW_S
from foredraft.server.replies import LEAST_LOGPROB
from foredraft.server.round_meters import POSITIONS
from foredraft.server.routes_tokens import DetokenizeBody, TokenizeBody
from foredraft.server.settings import MAX_BODY
from foredraft.server.structured import TYPES
from foredraft.server.tools.reader import TAGS

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / f"docs/{name}.md").read_text() for name in ("server", "several-machines")}
PAGE = PAGES["server"]
TEXT = " ".join(PAGE.split())
MODEL = "qwen2.5-coder-1.5b"  # what the examples ask
BODIES = {"chat": ChatBody, "text": CompletionBody}
COMMANDS_SHOWN = sorted(
    {
        command
        for page in PAGES.values()
        for command in re.findall(r"(?:^\$ |`(?:numactl [^`]*?)?)foredraft ([^`\n]+)", page, re.MULTILINE)
    }
)


def tables(page, *head):
    """The rows of all tables whose head begins with these words."""
    found = re.findall(r"^\| (.*) \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [body.splitlines() for titles, body in found if tuple(titles.split(" | "))[: len(head)] == head]
    assert rows, head
    return [[cell.strip() for cell in row.strip("|").split("|")] for body in rows for row in body]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def row(first, *head):
    (found,) = [row for row in tables(PAGE, *head) if first in names(row[0])]
    return found


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def parser_of(command):
    subparsers = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"foredraft.cli.{command}").add(subparsers)
    return subparsers.choices[command]


def options_of(parser):
    return {name: action for action in parser._actions for name in action.option_strings}


def sources(*places):
    return "\n".join(path.read_text() for place in places for path in (ROOT / "src/foredraft").glob(place))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("docs") / "tiny.gguf", "qwen2", seed=5)


@contextmanager
def served(path, **options):
    with (
        LLM(path, ctx=512, kv_tokens=2048, threads=1) as llm,
        serving(llm, names=(MODEL,), **options) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def server(path):
    with served(path) as server:
        yield server


def recorded(path, log, ask):
    """What the log says of the one request that this makes of a server."""
    with served(path, request_log=str(log)) as server:
        ask(server)
    (line,) = log.read_text().splitlines()
    return json.loads(line)


# Fields


@pytest.mark.parametrize("kind", BODIES)
def test_every_field_has_its_row(kind):
    rows = [row for row in tables(PAGE, "field", "routes") if row[1] in ("both", kind)]
    documented = [name for row in rows for name in names(row[0])]
    assert sorted(documented) == sorted(BODIES[kind].model_fields)
    assert all(len(row) == 4 and row[2] and row[3] for row in rows)


def test_rows_are_of_a_route_there_is():
    assert {row[1] for row in tables(PAGE, "field", "routes")} == {"both", *BODIES}


def test_required_fields_are_called_required():
    required = {
        name for body in BODIES.values() for name, field in body.model_fields.items() if field.is_required()
    }
    assert {
        name for row in tables(PAGE, "field") if row[3] == "required" for name in names(row[0])
    } == required


def test_the_fields_within_fields_are_named():
    assert set(names(row("stream_options", "field")[2])) == set(StreamOptions.model_fields)
    assert set(names(row("speculation", "field")[2])) - {'"off"', '"auto"'} == set(Speculation.model_fields)
    assert set(names(row("messages", "field")[2])) == set(ROLES)
    assert set(names(row("response_format", "field")[2])) == set(TYPES)


def test_ignored_fields_are_listed():
    (listed,) = re.findall(r"nothing is done about them: (.*?)\.", TEXT)
    assert names(listed) == list(IGNORED)


@pytest.mark.parametrize(("kind", "idle"), [("chat", IDLE_IN_CHATS), ("text", IDLE_IN_COMPLETIONS)])
def test_fields_that_may_only_be_idle_are_listed(kind, idle):
    documented = {}
    for value, both, *others in tables(PAGE, "value", "both", "chat", "text"):
        own = others[["chat", "text"].index(kind)]
        for name in names(both) + names(own):
            assert name not in documented
            documented[name] = () if value == "null" else (json.loads(names(value)[0]),)
    assert documented.keys() == idle.keys()
    for name, values in documented.items():
        assert set(map(repr, values)) == {
            repr(value) for value in idle[name] if not isinstance(value, float)
        }, name


# Routes


def test_every_route_is_there(server):
    documented = [name for row in tables(PAGE, "route") for name in names(row[0])]
    http = server.http()
    there = http.get("/nowhere").json()["error"]["message"].partition("; there are ")[2].split(", ")
    paths = http.get("/openapi.json").json()["paths"]
    assert sorted(there) == sorted(f"{method.upper()} {path}" for path in paths for method in paths[path])
    assert sorted(documented) == sorted([*there, "GET /openapi.json"])


@pytest.mark.parametrize(
    ("route", "body"),
    [("tokenize", TokenizeBody), ("detokenize", DetokenizeBody), ("apply-template", TemplateBody)],
)
def test_the_fields_of_a_small_route_are_in_its_row(route, body):
    assert sorted(names(row(f"POST /{route}", "route")[1])) == sorted(body.model_fields)


def test_the_routes_that_want_no_key_are_those_of_the_code():
    (listed,) = re.findall(r"all routes but (.*?) want `Authorization", TEXT)
    assert names(listed) == list(OPEN)


# Errors


def test_every_status_is_there(server):
    document = server.http().get("/openapi.json").json()
    possible = {
        int(status)
        for operations in document["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
        if status.isdecimal() and status >= "400"
    }
    documented = {int(row[0]) for row in tables(PAGE, "status")}
    assert documented == possible | {405}  # which is of no operation: it says that there is none


def test_every_code_is_there():
    code = sources("server/*.py")
    used = set(re.findall(r'code="(\w+)"', code)) | set(
        re.findall(r'^TOO_LONG = "(\w+)"', code, re.MULTILINE)
    )
    used |= {name for pair in re.findall(r'\(429, "(\w+)"\).*?\(503, "(\w+)"\)', code) for name in pair}
    used |= set(re.findall(r'message, code = .*, "(\w+)"$', code, re.MULTILINE))
    documented = {name for row in tables(PAGE, "status") for name in names(row[1])}
    assert "queue_full" in used and "unknown_url" in used
    assert documented | {"http_error"} == used
    assert "`http_error`" in PAGE


def test_the_error_that_is_shown_is_given(server):
    (shown,) = [json.loads(block) for block in blocks("json") if '"error"' in block]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "the fox"}], "mirostat": 2}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert reply.json() == shown


# Examples


def test_the_shell_example_is_answered(server):
    (shown,) = blocks("sh")
    program, url, *options = shlex.split(shown)
    assert program == "curl" and options[::2] == ["-H", "-d"]
    header, _, value = options[1].partition(": ")
    path = url.removeprefix("http://127.0.0.1:8000")
    reply = server.http().post(path, headers={header: value}, content=options[3])
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] <= 100


def test_the_program_runs_and_asks_for_what_it_says(path, tmp_path):
    (program,) = blocks("python")

    def run(server):
        exec(program.replace("http://127.0.0.1:8000", server.url), {})

    record = recorded(path, tmp_path / "log.jsonl", run)
    assert record["outcome"] in ("stop", "length")
    assert 0 < record["completion_tokens"] <= 100
    assert record["by_drafter"].keys() == {"suffix"}


def test_the_figures_that_are_shown_are_all_there_are():
    (shown,) = [json.loads(block) for block in blocks("json") if '"timings"' in block]
    for name, kind in (("speculation", SpeculationReply), ("timings", Timings)):
        kind.model_validate(shown[name], strict=True)
        assert shown[name].keys() == kind.model_fields.keys()
    members = [name for row in tables(PAGE, "member") for name in names(row[0])]
    assert members == [*SpeculationReply.model_fields, *sorted(Timings.model_fields, key=members.index)]
    assert names(row("by_drafter", "member")[1]) == [*DrafterReply.model_fields, GrammarDrafter.name]
    spec = shown["speculation"]
    assert spec["acceptance"] == pytest.approx(spec["accepted"] / spec["drafted"], abs=1e-3)
    assert spec["tokens_per_round"] == shown["timings"]["predicted_n"] / spec["rounds"]


def test_the_schema_that_is_shown_holds(server):
    (shown,) = [json.loads(block) for block in blocks("json") if '"response_format"' in block]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "the fox"}],
        "max_tokens": 200,
        "seed": 1,
    }
    reply = server.http().post("/v1/chat/completions", json={**body, **shown}).json()
    assert json.loads(reply["choices"][0]["message"]["content"])["colour"] in ("red", "green")


def test_there_are_no_other_examples_of_json():
    assert len(blocks("json")) == 3
    for inline in re.findall(r'`("?[a-z]+"?: \{.*?\})`', TEXT):
        assert json.loads("{" + inline + "}"), inline


# Options


def test_every_option_has_its_row():
    options = options_of(parser_of("serve"))
    documented = [name for row in tables(PAGE, "option") for name in names(row[0])]
    assert sorted(documented) == sorted(options.keys() - {"-h", "--help"})
    for listed, default, meaning in tables(PAGE, "option"):
        actions = list(dict.fromkeys(options[name] for name in names(listed)))
        given = [action.default for action in actions if action.default not in (None, False, [])]
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in given]
        assert meaning and default and (not given or default == ", ".join(shown)), listed


@pytest.mark.parametrize("command", COMMANDS_SHOWN)
def test_a_command_that_is_shown_can_be_given(command):
    name, *words = shlex.split(command)
    assert name in dict(COMMANDS)
    options = options_of(parser_of(name))
    assert [word for word in words if word.startswith("-") and word not in options] == []


def test_options_in_the_text_exist():
    known = options_of(parser_of("serve")).keys() | options_of(parser_of("bench")).keys()
    for page in PAGES.values():
        text = re.sub(r"`numactl .*?`", "", page)
        assert {name for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", text) if name not in known} == set()
    assert len(COMMANDS_SHOWN) > 4


def test_every_figure_of_the_log_is_there(path, tmp_path):
    def ask(server):
        server.client().completions.create(model=MODEL, prompt="the fox", max_tokens=2)

    record = recorded(path, tmp_path / "log.jsonl", ask)
    (listed,) = re.findall(r"Each line of `--log-requests` has (.*?)\. `--trace`", TEXT)
    outcomes = ["stop", "length", "cancelled", "failed"]
    assert f"`outcome` ({', '.join(f'`{name}`' for name in outcomes)})" in listed
    assert [name for name in names(listed) if name not in ("id", *outcomes)] == list(record)


# Metrics


def test_every_metric_has_its_row(server):
    http = server.http()
    http.get("/ready")  # counts at a route
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    there = {
        (
            name.removeprefix("foredraft:") + ("_total" if family.type == "counter" else ""),
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels) - {"model_name", "le"},
        )
        for name, family in families.items()
    }
    rows = tables(PAGE, "name (prefix `foredraft:`)")
    documented = [(name, row[1], frozenset(names(row[2]))) for row in rows for name in names(row[0])]
    assert len(documented) == len(there)
    assert set(documented) == there


def test_queries_are_of_metrics_there_are():
    rows = tables(PAGE, "name (prefix `foredraft:`)")
    known = {name for row in rows for name in names(row[0])}
    known |= {
        f"{name}_{part}"
        for row in rows
        if row[1] == "histogram"
        for name in names(row[0])
        for part in ("bucket", "sum", "count")
    }
    for page in PAGES.values():
        asked = re.findall(r"foredraft:(\w+)", page)
        assert asked and set(asked) <= known
    for query in (names(row[1])[0] for row in tables(PAGE, "question")):
        assert query.count("(") == query.count(")")


# Numbers


@pytest.mark.parametrize(
    "phrase",
    [
        f"answers to each prompt, up to {MAX_CHOICES} |",
        f"up to {MAX_STOPS} texts",
        f"the likeliest tokens beside each one, up to {MAX_LOGPROBS} |",
        f"the likeliest tokens beside each one, up to {MAX_LOGPROBS};",
        f"text: {DEFAULT_MOST} |",
        f"the tokens of every draft, up to {SCRATCH_ROWS};",
        f"{LEAST_LOGPROB:g} stands for minus infinity",
        f"blocks of {BLOCK} tokens",
        f"| {SERVED} contexts |",
        f"{SERVED} contexts of {DEFAULT_CONTEXT} take",
        f"Where that exceeds {FREE_PART * 100:g} % of",
        f"more than {MOST_CHARACTERS:,} characters, or {MOST_PATTERN:,} of a regular expression",
        f"nested more than {MOST_NESTED} deep",
        f"over the last {WINDOW_S:g} s of passes",
        f"positions above {POSITIONS - 1}",
        f"up to {LONGEST_WAIT} s",
        *(f"`{tag}`" for tag in TAGS),
    ],
)
def test_a_number_is_that_of_the_code(phrase):
    assert phrase in TEXT


def test_the_balancers_let_bodies_through_that_the_server_takes():
    assert f"client_max_body_size {MAX_BODY >> 20}m;" in PAGES["several-machines"]


def test_the_memory_of_a_context_is_as_is_said():
    token = kv_block_bytes(describe(read_gguf(real_model(MODEL))), "f16") // BLOCK
    assert f"Keys and values take {token / 1024:g} KiB a token for {MODEL}" in TEXT
    assert f"contexts of {DEFAULT_CONTEXT} take {SERVED * DEFAULT_CONTEXT * token / 2**30:g} GiB" in TEXT


def test_what_one_machine_holds_was_measured():
    """Two of them, in the order in which their raw results are named."""
    page = PAGES["several-machines"]
    raws = re.findall(r"\(\.\./(benchmarks/results/[^)]*\.json)\)", page)
    (head,) = re.findall(r"^\| rows .*", page, re.MULTILINE)
    times, gains = (re.findall(rf"^\| {name}.*", page, re.MULTILINE) for name in (".*time ÷", "tokens of"))
    assert len(raws) == len(times) == len(gains) == 2
    for raw, *lines in zip(raws, times, gains, strict=True):
        figures = json.loads((ROOT / raw).read_text())["figures"]
        measured = {figure["title"]: figure["median"] for figure in figures}
        cells = zip(*(line.split("|")[2:-1] for line in (head, *lines)), strict=True)
        for rows, time, gain in list(cells)[1:]:
            median = measured[f"pass of {rows.strip()} rows ÷ 1, context 512"]
            assert time.strip() == f"{median:.2f}"
            assert gain.strip() == f"{int(rows) / median:.2f}"
