"""What users of other servers have complained of, posed to this one: each test is named after a complaint.

Drafts are forced, so that what is complained of happens inside a burst: `hurried` asserts that bursts were
long. The scripted model's answers are known; those of the tiny one are worked out here, from the logits of
its float64 twin.
"""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from asking import CHAT, TEXT, ask, create
from scripted import END, scripted_llm
from serving import serving
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import LLM
from foredraft.engine.drafting import Drafting
from foredraft.measure.chisquare import chi_square

PROMPT = "the quick brown fox"
SURE = {"drafter": "prediction", "k": 8}
AGAIN = {"drafter": "suffix", "k": 8}  # drafts what an answer before has said
STORY = "the fox and the dog, the wind and the trees: what is drafted here is checked there."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("complaints")


@pytest.fixture(scope="module")
def path(folder):
    return write_tiny(folder / "tiny.gguf", "qwen2", quant="F32", seed=6)


@pytest.fixture(scope="module")
def draft_model(folder):
    """Not the model, but not unlike it: another quantisation of its weights."""
    return f"model:{write_tiny(folder / 'draft.gguf', 'qwen2', quant='Q4_0', seed=6)}"


@pytest.fixture(scope="module")
def twin(path):
    return twin_llm(path)


@pytest.fixture(scope="module")
def client(path, draft_model):
    drafting = Drafting(f"suffix+{draft_model}")
    with (
        LLM(path, ctx=256, kv_tokens=8192, kv="f32", threads=1, drafting=drafting) as llm,
        serving(llm, max_running=4, max_waiting=128) as server,
    ):
        yield server.client()


@pytest.fixture(scope="module")
def script(path):
    with scripted_llm(path) as llm, serving(llm) as server:
        yield server


@pytest.fixture(scope="module")
def teller(script):
    return script.client()


def told(script, answer, prompt="tell", route=TEXT):
    """Let the model answer so: a text and an end, or ids. Returns the ids."""
    llm = script.llm
    ids = [*llm.tokenize(answer, special=True), END] if isinstance(answer, str) else list(answer)
    llm.target.write(llm.prompter.encode(prompt, raw=route == TEXT), ids)
    return ids


def hurried(client, prediction, *, route=TEXT, least=4.0, prompt="tell", **fields):
    """The reply, whole and streamed, drafted for by a prediction: so many tokens a round at least."""
    fields = {
        "max_tokens": 200,
        "prediction": {"type": "content", "content": prediction},
        "speculation": SURE,
        **fields,
    }
    replies = [ask(client, route, prompt, stream=stream, **fields) for stream in (False, True)]
    for reply in replies:
        assert reply.drafted["tokens_per_round"] >= least
        assert reply.usage.completion_tokens == len(reply.answer.ids)
    assert replies[0].answers == replies[1].answers
    return replies[0]


# 3.4 Sampling parameters rejected or silently ignored


def by_hand(twin, prompt, count, *, repetition=1.0, presence=0.0, frequency=0.0, bias=(), noted=1):
    """The greedy answer under penalties as OpenAI and Transformers define them. `noted`: every which token
    the penalties take note of; 1 is right.
    """
    ids = twin.tokenize(prompt)
    seen, counts, answer = set(ids), np.zeros(twin.target.vocab), []
    for step in range(count):
        row = twin.target.logits((*ids, *answer)).astype(float)
        known = sorted(seen)
        row[known] = np.where(row[known] > 0, row[known] / repetition, row[known] * repetition)
        row -= frequency * counts + presence * (counts > 0)
        for token, value in dict(bias).items():
            row[token] += value
        answer.append(int(row.argmax()))
        if step % noted == 0:
            counts[answer[-1]] += 1
            seen.add(answer[-1])
    return answer


PENALTIES = {
    "repetition": ({"repetition": 1.5}, {"repetition_penalty": 1.5}),
    "presence": ({"presence": 1.0}, {"presence_penalty": 1.0}),
    "frequency": ({"frequency": 0.6}, {"frequency_penalty": 0.6}),
    "all": (
        {"repetition": 1.2, "presence": 0.3, "frequency": 0.2, "bias": {70: 2.0, 2: -1.0}},
        {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2,
         "logit_bias": {70: 2, 2: -1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_count_every_accepted_token_and_drafts_change_nothing(client, twin, name):
    # vllm#33251, sglang#33643 (only the last token of a run was counted), vmlx-swift#357, TRT-LLM#17701
    settings, fields = PENALTIES[name]
    answer = by_hand(twin, PROMPT, 16, **settings)
    assert answer != by_hand(twin, PROMPT, 16, **settings, noted=3), "a count of some would do"
    for speculation in ("off", "auto", AGAIN, AGAIN):
        reply = ask(client, TEXT, PROMPT, max_tokens=16, ignore_eos=True, speculation=speculation, **fields)
        assert reply.answer.ids == answer
    assert reply.drafted["tokens_per_round"] > 1.5


def test_min_p_and_logit_bias_are_accepted_together_with_drafts(client):
    # vllm#42744, #42802, #38202; unslothai/unsloth#10573: clients always send min_p
    fields = {"min_p": 0.05, "logit_bias": {70: 3}, "top_k": 50, "top_p": 0.95, "temperature": 1, "seed": 1}
    off = ask(client, CHAT, PROMPT, max_tokens=20, speculation="off", **fields)
    for speculation in (AGAIN, AGAIN, "auto"):
        reply = ask(client, CHAT, PROMPT, max_tokens=20, speculation=speculation, **fields)
        assert reply.answer == off.answer


def test_min_tokens_counts_tokens_and_not_steps(script, teller):
    # sglang#33643
    ids = told(script, STORY)
    reply = hurried(teller, STORY, min_tokens=len(ids) - 1)
    assert (reply.answer.ids, reply.answer.finish_reason) == (ids, "stop")
    reply = hurried(teller, STORY, min_tokens=len(ids) + 5, least=2, max_tokens=len(ids) + 20)
    assert reply.answer.ids[: len(ids) - 1] == ids[:-1]
    assert END not in reply.answer.ids[: len(ids) + 5]


def test_a_penalty_ends_a_loop_that_is_drafted_for(script, teller):
    # sglang#28180, #28242, #28200
    ids = told(script, "the dog " * 40)
    assert hurried(teller, "the dog " * 40, max_tokens=60).answer.ids == ids[:60]
    prediction = {"type": "content", "content": "the dog " * 40}
    reply = ask(
        teller, TEXT, "tell", max_tokens=60, presence_penalty=1000, speculation=SURE, prediction=prediction
    )
    assert len(set(reply.answer.ids)) == len(reply.answer.ids) == 60
    assert reply.drafted["drafted"] > reply.drafted["accepted"]


# 3.4 and 3.5 The temperature, and the law of what is sampled

RULES = {
    "a deterministic draft": {"drafter": "suffix", "k": 8},
    "ratio": {"drafter": "model", "k": 3, "rule": "ratio"},
    "block": {"drafter": "model", "k": 3, "rule": "block"},
}
SETTINGS = {"temperature": 0.8, "top_k": 4, "min_p": 0.1, "logit_bias": {2: -1}}


def law(twin, text, temperature, top_k, min_p, logit_bias):
    """The chance of each token after a text."""
    row = twin.target.logits(text).astype(float)
    for token, value in logit_bias.items():
        row[token] += value
    row /= temperature
    row[row < np.sort(row)[-top_k]] = -np.inf
    chances = np.exp(row - row.max())
    chances[chances < min_p] = 0.0
    return {int(token): chances[token] / chances.sum() for token in np.flatnonzero(chances)}


def laws(twin, prompt, length, **settings):
    """The chance of each answer of that length."""
    chances = {(): 1.0}
    for _ in range(length):
        chances = {
            (*text, token): chance * own
            for text, chance in chances.items()
            for token, own in law(twin, (*prompt, *text), **settings).items()
        }
    return chances


@pytest.mark.parametrize("name", RULES)
def test_answers_are_as_frequent_as_they_should_be(client, twin, draft_model, name):
    # sglang#9127, #31214, #37134 (greedy whatever was asked for), vllm#47386 (biased to the draft),
    # transformers#47932, vllm-ascend#7807
    wish = {**RULES[name]}
    if wish["drafter"] == "model":
        wish["drafter"] = draft_model
    prompt = twin.tokenize(PROMPT)[:4]  # so short that it is drafted for at once
    fields = {"n": 128, "ignore_eos": True, "speculation": wish, **SETTINGS}
    ask(client, TEXT, prompt, seed=9000, max_tokens=12, **{**fields, "n": 20})  # something to remember
    fields |= {"max_tokens": 3}
    replies = [ask(client, TEXT, prompt, seed=number << 40, **fields) for number in range(2)]
    seen = Counter(tuple(answer.ids) for reply in replies for answer in reply.answers)
    assert sum(reply.drafted["accepted"] for reply in replies) > 150

    def p_value(**settings):
        chances = laws(twin, prompt, 3, **settings)
        assert seen.keys() <= chances.keys(), "an answer that could not be"
        return chi_square(
            [seen[text] for text in chances], [seen.total() * chance for chance in chances.values()]
        ).p_value

    assert p_value(**SETTINGS) > 1e-3
    assert p_value(**{**SETTINGS, "temperature": 1.6}) < 1e-6, "it would not show"


def test_drafts_are_accepted_at_a_temperature(client):
    # kekzl/imp#1538, jundot/omlx#3370: no draft was ever accepted above 0
    fields = {"temperature": 1.2, "seed": 4, "max_tokens": 40, "ignore_eos": True}
    first = ask(client, TEXT, PROMPT, speculation=AGAIN, **fields)
    reply = ask(client, TEXT, PROMPT, speculation=AGAIN, **fields)
    assert reply.answer == first.answer
    assert reply.drafted["tokens_per_round"] > 3


# 3.6 Logprobs


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_logprobs_of_drafted_tokens_are_the_models_own(client, twin, route):
    # llama.cpp#27972 (0.0 for all of them), vllm#34497, sglang#10660 (missing), TRT-LLM#18401 (refused)
    ids = twin.prompter.encode(PROMPT, raw=route == TEXT)
    fields = {"temperature": 0.7, "seed": 3, "repetition_penalty": 1.1, "max_tokens": 24, "ignore_eos": True}
    for stream in (False, False, True):
        reply = ask(client, route, PROMPT, stream=stream, logprobs=0, speculation=AGAIN, **fields)
    assert reply.drafted["tokens_per_round"] > 2
    assert len(reply.answer.logprobs) == len(reply.answer.ids) == 24
    for place, (token, logprob) in enumerate(zip(reply.answer.ids, reply.answer.logprobs, strict=True)):
        row = twin.target.logits((*ids, *reply.answer.ids[:place])).astype(float)
        assert logprob == pytest.approx(row[token] - np.logaddexp.reduce(row), abs=1e-3)


# 3.7 Structured output, tools, streaming

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Basel"]}, "days": {"enum": [1, 22]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def in_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_a_draft_that_violates_the_grammar_does_no_harm(script, teller):
    # vllm#27969, #11484, #52620: an error from the parser, or a dead engine
    text = '{"city": "Basel", "days": 22}'
    ids = told(script, text)
    for prediction in ('{"city": "Bonn", "days": 22}', '{"city": "Basel", "days": 7}', "prose", "]" * 30):
        fields = {"prediction": {"type": "content", "content": prediction}, "speculation": SURE}
        for stream in (False, True):
            reply = ask(
                teller, TEXT, "tell", stream=stream, max_tokens=50, response_format=in_schema(CITY), **fields
            )
            assert (reply.answer.text, reply.answer.ids) == (text, ids)


def test_an_answer_that_ought_to_violate_the_grammar_does_not_with_any_draft(script, teller):
    # the model wants prose, and the draft is the prose that it wants
    told(script, STORY)
    fields = {"response_format": in_schema(CITY), "max_tokens": 50}
    off = ask(teller, TEXT, "tell", speculation="off", **fields).answer
    assert json.loads(off.text)["city"] in ("Bern", "Basel") and off.finish_reason == "stop"
    for wish in (SURE, "auto"):
        prediction = {"type": "content", "content": STORY}
        assert ask(teller, TEXT, "tell", speculation=wish, prediction=prediction, **fields).answer == off
    assert hurried(teller, off.text, least=2, **fields).answer == off


def test_a_constraint_that_is_complete_in_the_middle_of_a_burst_ends_the_answer_there(script, teller):
    # vllm#36138, #34650: what the grammar had to say came too late for the rest of a run
    text = '{"city": "Bern", "days": 1}'
    told(script, text + STORY)
    reply = hurried(teller, text + STORY, response_format=in_schema(CITY))
    assert (reply.answer.text, reply.answer.ids[-1], reply.answer.finish_reason) == (text, END, "stop")


def test_an_end_token_inside_a_draft_is_sound_for_a_grammar(script, teller):
    # openvino.genai#4081: the matcher had terminated
    ids = told(script, [*script.llm.tokenize("abbbbbbb"), END, *script.llm.tokenize("bbbb after the end")])
    fields = {"speculation": {"drafter": "suffix", "k": 16}, "max_tokens": len(ids)}
    ask(teller, TEXT, "tell", ignore_eos=True, **fields)
    for stream in (False, True):
        reply = ask(teller, TEXT, "tell", stream=stream, guided_regex="ab{3,30}", **fields)
        assert (reply.answer.text, reply.answer.ids) == ("abbbbbbb", ids[: ids.index(END) + 1])
        assert reply.drafted["tokens_per_round"] >= 3
    whole = ask(teller, TEXT, "tell", ignore_eos=True, guided_regex="ab{3,30}", **fields)
    assert whole.answer.ids[: ids.index(END) + 1] == ids[: ids.index(END) + 1]


TOOL = {"type": "function", "function": {"name": "travel", "parameters": CITY}}


@pytest.mark.parametrize("k", [1, 7, 40])
def test_the_arguments_of_a_call_are_complete_however_many_tokens_a_chunk_has(script, teller, k):
    # vllm#41967, #42006, #45068, #42237, #43055; rtp-llm#694: parsers that took a chunk for a token
    arguments = '{"city": "Basel \\u2603 {\\"}", "days": 22}'
    text = f'I go.\n<tool_call>\n{{"name": "travel", "arguments": {arguments}}}\n</tool_call>'
    messages = [{"role": "user", "content": "Where?"}]
    prompt = script.http().post("/tokenize", json={"messages": messages, "tools": [TOOL]}).json()["tokens"]
    script.llm.target.write(prompt, [*script.llm.tokenize(text), END])
    chunks = create(
        teller, CHAT, messages, temperature=0, tools=[TOOL], stream=True, return_token_ids=True,
        prediction={"type": "content", "content": text}, speculation={"drafter": "prediction", "k": k},
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in chunks]
    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert "".join(choice.delta.content or "" for choice in choices).strip() == "I go."
    assert "".join(call.function.arguments for call in calls) == arguments
    assert [call.function.name for call in calls if call.function.name] == ["travel"]
    assert (choices[-1].finish_reason, choices[-1].delta.tool_calls) == ("tool_calls", None)
    assert max(len(choice.token_ids) for choice in choices) > k


@pytest.mark.parametrize("most", range(4, 16))
def test_no_character_is_dropped_where_an_answer_is_cut(script, teller, most):
    # vmlx-swift#148: the last characters of an answer with drafts
    ids = told(script, "ab☃😀é😀日本" * 3)
    reply = hurried(teller, "ab☃😀é😀日本" * 3, max_tokens=most, least=2)
    assert reply.answer.ids == ids[:most]
    data = b"".join(map(script.llm.tokenizer.token_bytes, ids[:most]))
    assert reply.answer.text == data.decode(errors="replace")


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_a_character_that_is_begun_and_never_finished_is_shown_as_that(script, teller, route):
    snowman = script.llm.tokenize("☃")
    assert len(snowman) == 3
    told(script, [*script.llm.tokenize("snow: "), *snowman[:2], END], route=route)
    for stream in (False, True):
        reply = ask(teller, route, "tell", stream=stream, max_tokens=50)
        assert (reply.answer.text, reply.answer.finish_reason) == ("snow: \ufffd", "stop")


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_emoji_survive_bursts_that_end_inside_them(script, teller, k):
    text = "👩‍👩‍👧 ☃️ 日本 é 😀😀" * 2
    ids = told(script, text)
    reply = hurried(teller, text, least=1.5, speculation={"drafter": "prediction", "k": k})
    assert (reply.answer.text, reply.answer.ids) == (text, ids)


# 3.8 Stop strings, end tokens, limits, usage


def test_a_stop_string_comes_before_the_length_at_the_same_token(script, teller):
    # sglang#31599, #31569, #33758
    ids = told(script, STORY)
    stop = "the wind"
    most = next(count for count in range(len(ids)) if stop in script.llm.detokenize(ids[:count]))
    reply = hurried(teller, STORY, stop=stop, max_tokens=most)
    assert (reply.answer.finish_reason, reply.answer.stop_reason) == ("stop", stop)
    assert reply.answer.text == STORY.partition(stop)[0]
    assert reply.answer.ids == ids[:most]
    reply = hurried(teller, STORY, stop=stop, max_tokens=most - 1)
    assert (reply.answer.finish_reason, reply.answer.stop_reason) == ("length", None)
    assert reply.answer.text == script.llm.detokenize(ids[: most - 1])
    reply = hurried(teller, STORY, max_tokens=len(ids))
    assert (reply.answer.finish_reason, reply.answer.stop_reason) == ("stop", END)


@pytest.mark.parametrize("start", range(0, 24, 5))
def test_a_stop_string_is_found_across_accepted_runs(script, teller, start):
    # sglang#23802: the window that was searched was shorter than a run and a stop string
    ids = told(script, STORY)
    stop = STORY[start : start + 48]
    wish = {"drafter": "prediction", "k": 4}
    reply = hurried(teller, STORY, stop=[stop, "not there"], speculation=wish)
    assert (reply.answer.text, reply.answer.stop_reason) == (STORY[:start], stop)
    assert reply.drafted["rounds"] > 3
    assert reply.answer.ids == ids[: len(reply.answer.ids)]
    assert stop in script.llm.detokenize(reply.answer.ids)
    assert stop not in script.llm.detokenize(reply.answer.ids[:-1])


def test_of_two_stop_strings_in_one_burst_the_first_to_end_holds(script, teller):
    told(script, STORY)
    stops = ["e dog, the w", "dog", " and the dog, the wind and"]
    assert hurried(teller, STORY, stop=stops).answer.stop_reason == "dog"
    assert hurried(teller, STORY, stop=["fox and", " and"]).answer.text == "the "


def test_text_that_might_have_become_a_stop_string_is_given_out_at_the_end(script, teller):
    told(script, STORY)
    for stop in (STORY[-20:] + "!", "there.\n", "."):
        reply = hurried(teller, STORY, stop=stop)
        assert reply.answer.text == STORY.removesuffix(stop)


def test_nothing_comes_after_an_end_token_inside_a_draft(script, teller):
    # transformers#47912, sglang#39826: and the usage does not count it
    ids = told(script, [*script.llm.tokenize(STORY[:30]), END, *script.llm.tokenize(STORY[30:])])
    wish = {"drafter": "suffix", "k": 20}
    whole = ask(teller, TEXT, "tell", speculation=wish, ignore_eos=True, max_tokens=len(ids))
    assert whole.answer.ids == ids
    for stream, logprobs in itertools.product([False, True], [None, 1]):
        reply = ask(
            teller, TEXT, "tell", stream=stream, logprobs=logprobs, speculation=wish, max_tokens=len(ids)
        )
        kept = ids[: ids.index(END) + 1]
        assert (reply.answer.text, reply.answer.ids) == (STORY[:30], kept)
        assert reply.answer.finish_reason == "stop"
        assert reply.usage.completion_tokens == len(kept)
        assert reply.drafted["tokens_per_round"] > 4
        assert logprobs is None or len(reply.answer.logprobs) == len(kept)


def test_nothing_comes_after_a_stop_token_inside_a_draft(script, teller):
    ids = told(script, STORY)
    token = ids[25]
    reply = hurried(teller, STORY, stop_token_ids=[token])
    assert reply.answer.ids == ids[: ids.index(token) + 1]
    assert reply.answer.stop_reason == token


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_ids_and_logprobs_end_where_the_stop_string_ends(script, teller, route):
    # vllm#47616
    ids = told(script, STORY, route=route)
    stop = "and the trees"
    reply = hurried(teller, STORY, route=route, stop=stop, logprobs=2)
    count = len(reply.answer.ids)
    assert reply.answer.ids == ids[:count] and len(reply.answer.logprobs) == count
    assert script.llm.detokenize(reply.answer.ids).endswith(stop)
    assert reply.answer.text == STORY.partition(stop)[0]


def test_a_stopped_answer_goes_on_as_if_it_had_not_been_stopped(client, twin):
    # onnxruntime-genai#2528: the random numbers of tokens that were thrown away
    ids = twin.tokenize(PROMPT)
    fields = {"temperature": 1, "seed": 12, "ignore_eos": True, "speculation": AGAIN}
    whole = ask(client, TEXT, ids, max_tokens=30, **fields).answer
    for _ in range(2):
        part = ask(client, TEXT, ids, max_tokens=30, stop_token_ids=[whole.ids[11]], **fields).answer
    assert part.ids == whole.ids[: whole.ids.index(whole.ids[11]) + 1]
    rest = ask(client, TEXT, ids + part.ids, max_tokens=30 - len(part.ids), **fields).answer
    assert part.ids + rest.ids == whole.ids


# 3.12 Per-request control


COUNTERS = tuple(f"foredraft:spec_decode_num_{name}" for name in ("drafts", "draft_tokens", "accepted"))


@pytest.mark.parametrize("wish", ["off", {"drafter": "off"}, {"drafter": "suffix", "k": 0}])
def test_speculation_that_is_off_is_off(script, teller, wish):
    # kekzl/imp#1639: it drafted on
    def counted():
        ask(teller, TEXT, "by then all before is counted", max_tokens=1, speculation="off")
        lines = script.http().get("/metrics").text.splitlines()
        return [line for line in lines if line.startswith(COUNTERS)]

    ids = told(script, STORY)
    before = counted()
    for stream in (False, True):
        reply = ask(teller, TEXT, "tell", stream=stream, max_tokens=len(ids), speculation=wish)
        given = reply.drafted
        assert reply.answer.ids == ids
        assert (given["rounds"], given["drafted"], given["accepted"]) == (len(ids), 0, 0)
        assert given["tokens_per_round"] == 1 and given["by_drafter"] == {}
    assert counted() == before
    assert hurried(teller, STORY).drafted["drafted"] > 0
    assert counted() != before
