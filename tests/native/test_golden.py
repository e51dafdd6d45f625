"""Real models against values from llama.cpp and from Transformers in float32, both of the very same files.

`tests/golden/greedy-*.json` holds, for four prompts a model, llama.cpp's greedy completion and for each of
its positions `[id, llama.cpp's logprob, float32's logprob]` of the likeliest tokens, given the prompt and the
ids before. How close to float32 to be is llama.cpp's own distance, rounded up.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from bare_native import Native
from real import real_model

from foredraft.core.nouns import Rows
from foredraft.models.cores import physical_cores
from foredraft.models.gguf import read_gguf
from foredraft.models.target import BLOCK
from foredraft.models.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = Path(__file__).parents[2].parent / "shared" / "golden" / "text"
LIKELY = -5.0  # entries below are not compared
CHUNK = 256  # rows a pass
CLEAR = 0.4  # float32's best token must be ours too where its lead is larger


@dataclass(frozen=True)
class Bounds:
    """Of the absolute difference to float32's logprobs. `theirs`: llama.cpp's largest one."""

    mean: float
    largest: float
    theirs: float


BOUNDS = {
    "smollm2-135m": Bounds(0.09, 1.0, 0.83),
    "gemma3-270m": Bounds(0.11, 1.2, 1.08),
    "qwen2.5-coder-0.5b": Bounds(0.04, 0.5, 0.36),
    "qwen2.5-coder-1.5b": Bounds(0.045, 0.5, 0.40),
}
MARKS = {name: () if name == "smollm2-135m" else pytest.mark.models for name in BOUNDS}
MODELS = [pytest.param(name, marks=MARKS[name]) for name in BOUNDS]


@dataclass(frozen=True)
class Completion:
    prompt: list[int]
    ids: list[int]
    logprobs: list[list[tuple[int, float, float]]]  # id, llama.cpp, float32


class Loaded:
    def __init__(self, name):
        self.name = name
        path = real_model(name)
        self.native = Native(path, blocks=33, threads=physical_cores())
        self.tokenizer = Tokenizer.from_gguf(read_gguf(path))
        golden = json.loads((GOLDEN / f"greedy-{name}.json").read_text())
        self.completions = [
            Completion(entry["prompt_ids"], entry["ids"], entry["logprobs"]) for entry in golden.values()
        ]

    def logits(self, tokens, first):
        """After each of tokens[first:] in turn: [vocab] float32."""
        table = list(range(-(-len(tokens) // BLOCK)))
        for start in range(0, len(tokens), CHUNK):
            rows = Rows.chain(tokens[start : start + CHUNK])
            wanted = range(max(first - start, 0), len(rows))
            yield from self.native.logits(rows, [start], [table], wanted)


def logprob(logits, token):
    """The natural logarithm of a token's probability."""
    top = logits.max()
    total = np.exp(logits - top).sum(dtype=np.float64)
    return float(logits[token]) - float(top) - np.log(total)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return Loaded(request.param)


@pytest.fixture(scope="module")
def teacher_forced(model):
    """At each position of llama.cpp's texts: what it has there, our likeliest token, our logprobs by id."""
    found = []
    for one in model.completions:
        logits = model.logits([*one.prompt, *one.ids][:-1], len(one.prompt) - 1)
        for entries, own in zip(one.logprobs, logits, strict=True):
            found.append((entries, int(own.argmax()), {token: logprob(own, token) for token, *_ in entries}))
    return found


def test_logprobs_are_as_close_to_float32_as_llama_cpps(model, teacher_forced):
    """Entries where llama.cpp itself is farther from float32 than its stated maximum are left out. There is
    one, of gemma3-270m (`long`, position 234, id 142), where it is off by 5.19.
    """
    bounds = BOUNDS[model.name]
    differences, left_out = [], 0
    for entries, _, ours in teacher_forced:
        likely = [(token, theirs, exact) for token, theirs, exact in entries if exact > LIKELY]
        fair = [(token, exact) for token, theirs, exact in likely if abs(theirs - exact) <= bounds.theirs]
        left_out += len(likely) - len(fair)
        differences += [abs(ours[token] - exact) for token, exact in fair]
    print(f"{model.name}: mean {np.mean(differences):.4f}, largest {max(differences):.3f}")
    assert left_out == (1 if model.name == "gemma3-270m" else 0)
    assert len(differences) > 700
    assert np.mean(differences) <= bounds.mean
    assert max(differences) <= bounds.largest


def best_two(entries):
    """Float32's likeliest token at a position, and how far ahead it is."""
    (best, token), (second, _) = sorted(((exact, token) for token, _, exact in entries), reverse=True)[:2]
    return token, best - second


def test_likeliest_token_is_float32s_wherever_that_is_clear(model, teacher_forced):
    clear = 0
    for entries, ours, _ in teacher_forced:
        token, lead = best_two(entries)
        if lead > CLEAR:
            clear += 1
            assert ours == token
    assert clear > 100


def test_greedy_text_leaves_llama_cpps_only_where_float32_is_undecided(model):
    """Token by token, as text is written: one row a pass."""
    for one in model.completions:
        table = [list(range(-(-(len(one.prompt) + len(one.ids)) // BLOCK)))]
        model.native.logits(Rows.chain(one.prompt[:-1]), [0], table, [])
        token = one.prompt[-1]
        for index, (expected, entries) in enumerate(zip(one.ids, one.logprobs, strict=True)):
            logits = model.native.logits(Rows.chain([token]), [len(one.prompt) - 1 + index], table, [0])
            token = int(logits[0].argmax())
            if token != expected:
                likeliest, lead = best_two(entries)
                assert lead <= CLEAR or token == likeliest
                break


# Perplexity: float32's, or llama.cpp's where that has not been measured, and how close to come.


@dataclass(frozen=True)
class Perplexity:
    model: str
    text: str
    window: int
    most_windows: int
    expected: float
    within: float = 0.01


PERPLEXITIES = [
    # model, text, window, most windows
    Perplexity("smollm2-135m", "gpl3", 512, 16, 18.1301, 0.02),
    Perplexity("smollm2-135m", "stdlib", 512, 16, 9.6604, 0.02),
    Perplexity("gemma3-270m", "gpl3", 512, 16, 13.8208),
    Perplexity("gemma3-270m", "stdlib", 512, 16, 9.0740),
    Perplexity("gemma3-270m", "gpl3", 2048, 4, 14.4624),
    Perplexity("gemma3-270m", "stdlib", 2048, 4, 7.3116),
    Perplexity("qwen2.5-coder-0.5b", "gpl3", 512, 16, 5.3037),
    Perplexity("qwen2.5-coder-0.5b", "stdlib", 512, 16, 5.7374),
    Perplexity("qwen2.5-coder-0.5b", "gpl3", 2048, 4, 6.5652),
    Perplexity("qwen2.5-coder-0.5b", "stdlib", 2048, 4, 5.3027),
    Perplexity("qwen2.5-coder-1.5b", "gpl3", 512, 16, 1.7522),
    Perplexity("qwen2.5-coder-1.5b", "stdlib", 512, 16, 3.4912),
]


def windows_of(tokenizer, text, case):
    """Full windows of the whole text's tokens; where the model adds BOS, it is every window's first token."""
    first = [tokenizer.bos_id] if tokenizer.add_bos else []
    ids = [*first, *tokenizer.encode(text)]
    whole = [ids[at : at + case.window] for at in range(0, len(ids) - case.window + 1, case.window)][
        : case.most_windows
    ]
    return [[*first, *window[len(first) :]] for window in whole]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "case"),
    [
        pytest.param(case.model, case, marks=MARKS[case.model], id=f"{case.model}-{case.text}-{case.window}")
        for case in PERPLEXITIES
    ],
    indirect=["model"],
)
def test_perplexity_is_float32s(model, case):
    path = TEXTS / f"{case.text}.txt"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    half, losses = case.window // 2, []
    for tokens in windows_of(model.tokenizer, path.read_text(encoding="utf-8"), case):
        # The predictions of the second half of a window, made from the position before each.
        logits = model.logits(tokens[:-1], half)
        losses += [-logprob(own, token) for own, token in zip(logits, tokens[half + 1 :], strict=True)]
    perplexity = np.exp(np.mean(losses))
    print(f"{case}: {perplexity:.4f} of {len(losses)} predictions")
    assert perplexity == pytest.approx(case.expected, rel=case.within)
