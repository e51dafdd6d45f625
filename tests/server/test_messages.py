import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import CHATML, write_tiny
from twin_target import twin_llm
from vocabularies import gpt2_metadata, metadata_of, tokenizer_of

from foredraft.engine.llm import LLM
from foredraft.models.chat import ChatTemplate
from foredraft.models.stream import TextDecoder
from foredraft.models.tokenizer import Tokenizer
from foredraft.server.field_error import FieldError
from foredraft.server.messages import render_messages

QWEN = "qwen2.5-coder-0.5b"
# Templates in the manner of the families: what they teach, refuse and leave out.
HERMES = (
    "{% if tools %}tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "<tool_call>\n{\"name\": name, \"arguments\": object}\n</tool_call>\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ call.function.name }}\", "
    "\"arguments\": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}\n{% endfor %}"
)  # fmt: skip
LLAMA = (
    "{% if tools %}Answer as {\"name\": function name, \"parameters\": its arguments}. "
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{% if 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}"
    "{% else %}{{ m.content | trim }}{% endif %}{{ '\n' }}{% endfor %}"
)  # fmt: skip
GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}[model]{% endif %}"
)
XML = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "<tool_call>\n<function=name>\n</tool_call>"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
WEATHER = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": WEATHER}]
USER = {"role": "user", "content": "Hi"}


def part(text):
    return {"type": "text", "text": text}


def call(number=1, arguments='{"city": "Köln"}', **more):
    function = {"name": "weather", "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function, **more}


def answer(number=1, content="rain"):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


def asked(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return twin_llm(write_tiny(tmp_path_factory.mktemp("messages") / "tiny.gguf", "qwen2"))


@pytest.fixture
def render(tiny):
    def render(messages, template=CHATML, tokenizer=None, **options):
        templates = ChatTemplate({} if template is None else {"default": template})
        llm = LLM.of(tiny.target, tokenizer or tiny.tokenizer, templates, ctx=64)
        return render_messages(llm, messages, **options)

    return render


# Messages


def test_the_prompt_is_the_templates_with_its_control_tokens(render, tiny):
    prompt = render([USER])
    assert prompt.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids == tiny.tokenizer.encode(prompt.text, special=True, bos=True)
    assert tiny.tokenizer.decode(prompt.ids[:1]) == "<|im_start|>"
    assert (prompt.parser, prompt.constraint_source, prompt.visible) == (None, None, frozenset())
    assert render([USER], add_generation_prompt=False).text == "<|im_start|>user\nHi<|im_end|>\n"
    assert render([USER], template="{{ mood }}", variables={"mood": "fine"}).text == "fine"


READ = [
    ({"role": "user", "content": ""}, "user", ""),
    ({"role": "developer", "content": "x"}, "system", "x"),
    ({"role": "user", "content": [part("a"), part("b")]}, "user", "a\nb"),
    ({"role": "user", "content": "x", "name": "Ann", "audio": None}, "user", "x"),
    ({"role": "assistant", "content": None, "refusal": None, "annotations": []}, "assistant", ""),
    ({"role": "assistant"}, "assistant", ""),
    ({"role": "assistant", "content": None, "refusal": "No."}, "assistant", "No."),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, "assistant", "No."),
    ({"role": "assistant", "content": "x", "tool_calls": [], "function_call": None}, "assistant", "x"),
    ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, "assistant", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "role", "content"), READ)
def test_messages_are_read(render, message, role, content):
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{{ 'tool_calls' in m }}{% endfor %}"
    assert render([message], template=template).text == f"{role}:{content};False"


WRONG = [
    ([], "messages"),
    ("Hi", "messages"),
    (["Hi"], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([USER, {"role": "oracle", "content": "x"}], "messages[1].role"),
    ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
    ([{**USER, "foo": 1}], "messages[0].foo"),
    ([{**USER, "tool_calls": [call()]}], "messages[0].tool_calls"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": []}], "messages[0].content"),
    ([{"role": "user", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0]"),
    ([{"role": ["user"], "content": "x"}], "messages[0].role"),
    ([{**USER, "\ud800": 1}], "messages[0].'\\ud800'"),
    ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}], "messages[0].content[0].x"),
    ([{"role": "user", "content": [{"type": "refusal", "refusal": ""}]}], "messages[0].content[0]"),
    (
        [USER, {"role": "user", "content": [part(""), {"type": "image_url", "image_url": {"url": ""}}]}],
        "messages[1].content[1]",
    ),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "file"}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
    ([{"role": "assistant", "audio": {"id": "x"}}], "messages[0].audio"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [7]}], "messages[0].tool_calls[0]"),
    ([asked(call(), call(colour=1))], "messages[0].tool_calls[1].colour"),
    ([asked({**call(), "type": "custom"})], "messages[0].tool_calls[0].type"),
    ([asked({**call(), "id": None})], "messages[0].tool_calls[0].id"),
    ([asked(call(arguments={}))], "messages[0].tool_calls[0].function.arguments"),
    ([asked({"id": "a", "type": "function"})], "messages[0].tool_calls[0].function"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "tool", "tool_call_id": "x", "content": None}], "messages[0].content"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "param"), WRONG)
def test_what_is_wrong_is_named(render, messages, param):
    with pytest.raises(FieldError) as caught:
        render(messages)
    assert caught.value.param == param
    assert param in str(caught.value)


WORDS = ["user", "tool", "assistant", "text", "function", "required"]
KEYS = ["role", "content", "type", "text", "tool_calls", "function", "name"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)  # fmt: skip


@given(anything, anything, anything)
def test_whatever_is_sent_a_prompt_or_the_field_to_blame_comes_back(tiny, messages, tools, choice):
    try:
        assert render_messages(tiny, messages, tools, choice).ids
    except FieldError as error:
        assert error.param.split("[")[0].split(".")[0] in ("messages", "tools", "tool_choice")


def test_even_the_deepest_and_longest_mistake_is_shown_in_short(render):
    deep = []
    for _ in range(10**5):
        deep = [deep]
    for tools in ([deep], [{"type": deep}], [{"type": "x" * 10**6}], deep):
        with pytest.raises(FieldError) as caught:
            render([USER], tools=tools)
        assert len(str(caught.value)) < 200


def test_what_the_template_or_the_tokenizer_refuses_is_the_messages_fault(render):
    for messages, template in ([USER, USER], GEMMA), ([{"role": "user", "content": "\ud800"}], CHATML):
        with pytest.raises(FieldError) as caught:
            render(messages, template=template)
        assert caught.value.param == "messages"
    with pytest.raises(FieldError, match="/v1/completions"):
        render([USER], template=None)


def test_replies_of_openais_client_can_be_sent_back(render):
    chat = pytest.importorskip("openai.types.chat")
    reply = chat.ChatCompletionMessage.model_validate({**asked(call(index=0)), "refusal": None})
    prompt = render(
        [USER, reply.model_dump(), answer(), {"role": "assistant", "content": "It rains."}], HERMES
    )
    assert '"arguments": {"city": "Köln"}' in prompt.text


# Continuing the last message


@pytest.mark.parametrize("content", ["It was", "a  ", "", "<|im_end|>"])
@pytest.mark.parametrize("template", [CHATML, GEMMA, HERMES])
def test_the_prompt_ends_where_the_message_to_be_continued_ends(render, content, template):
    last = {"role": "assistant", "content": content}
    text = render([USER, last], template=template, continue_final=True).text
    whole = render(
        [USER, {**last, "content": content + "~"}], template=template, add_generation_prompt=False
    ).text
    assert text == whole[: whole.rindex("~")]


@pytest.mark.parametrize("last", [USER, answer(), asked(call())])
def test_only_a_text_of_the_assistant_can_be_continued(render, last):
    with pytest.raises(FieldError, match="can be continued") as caught:
        render([USER, last], continue_final=True)
    assert caught.value.param == "continue_final_message"


def test_a_template_that_does_not_show_the_message_cannot_continue_it(render):
    with pytest.raises(FieldError, match="cannot be continued"):
        render([{"role": "assistant", "content": "x"}], template="nothing", continue_final=True)


# Tools


BEGINNINGS = [(HERMES, "<tool_call>\n"), (LLAMA, ""), (GEMMA, "<tool_call>\n"), (XML, "<tool_call>\n")]


@pytest.mark.parametrize(("template", "begin"), BEGINNINGS)
def test_what_must_be_called_is_written_as_the_template_teaches_it(render, template, begin):
    source = render([USER], template, tools=TOOLS, tool_choice="required").constraint_source
    one = {"name": "weather", source.key: {"city": "Köln"}}
    text = source.begin + json.dumps(one) + source.between + json.dumps(one) + source.end
    assert source.begin == begin
    assert source.schemas == (("weather", WEATHER["parameters"]),)
    parser = render([USER], template, tools=TOOLS).parser
    assert [(call.name, json.loads(call.arguments)) for call in parser.new().feed(text).calls] == [
        ("weather", {"city": "Köln"})
    ] * 2


def test_the_choice_decides_what_is_shown_and_read(render):
    assert render([USER], HERMES, tools=TOOLS, tool_choice="none") == render([USER], HERMES)
    auto = render([USER], HERMES, tools=TOOLS)
    assert auto.text.startswith("tools: " + json.dumps(TOOLS[0]))
    assert auto.constraint_source is None
    assert auto.parser.many
    named = {"type": "function", "function": {"name": "weather"}}
    forced = render([USER], HERMES, tools=TOOLS, tool_choice=named)
    assert forced.text == auto.text
    assert not forced.constraint_source.many
    assert not render([USER], HERMES, tools=TOOLS, parallel=False).parser.many


def test_arguments_are_given_to_templates_read_or_as_they_are_where_they_are_no_json(render):
    calls = [call(1), call(2, ""), call(3, "{'city': 1}"), call(4, "[1]"), call(5, "[" * 10**5)]
    text = render([USER, asked(*calls), *map(answer, range(1, 6))], HERMES).text
    for arguments in ('{"city": "Köln"}', "{}", "\"{'city': 1}\"", '"[1]"', json.dumps("[" * 10**5)):
        assert f'"arguments": {arguments}}}</tool_call>' in text


def test_calls_at_once_become_messages_of_their_own_where_the_template_wants_one_each(render):
    one = [USER, asked(call(1), content="Wait."), answer(1, "a"), USER]
    assert render(one, LLAMA).text == (
        '[user]Hi\n[assistant]Wait.\n[assistant]weather {"city": "Köln"}\n[tool]a\n[user]Hi\n'
    )
    more = [USER, asked(call(1), call(2, "{}"), call(3, "{}")), answer(2, "b"), answer(1, "a"), USER]
    assert render(more, LLAMA, tools=TOOLS).text.endswith(
        '[user]Hi\n[assistant]weather {"city": "Köln"}\n[tool]a\n[assistant]weather {}\n[tool]b\n'
        "[assistant]weather {}\n[user]Hi\n"
    )


def test_a_template_without_tools_gets_them_described_in_the_system_message(render):
    system = {"role": "system", "content": "Be brief."}
    for messages, before in ([system, USER], "Be brief.\n\n"), ([USER], ""):
        text = render(messages, tools=TOOLS).text
        assert text.startswith(f"<|im_start|>system\n{before}You can call")
        assert f"<tools>\n{json.dumps(WEATHER)}\n</tools>" in text
        assert text.count("<|im_start|>system") == 1
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_without_a_system_message_gets_them_in_the_first_of_the_user(render):
    text = render([USER], GEMMA, tools=TOOLS).text
    assert text.startswith("[user]You can call")
    assert text.endswith("\n\nHi\n[model]")


def test_a_template_without_tools_is_told_calls_and_answers_in_words(render):
    calls = asked(call(1), call(2, "{}"), content="Wait.")
    turns = [USER, calls, answer(1, "a"), answer(2, "b"), {"role": "user", "content": "So?"}]
    text = (
        "[user]Hi\n[assistant]Wait.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n'
        "[user]<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    )
    assert render(turns, GEMMA).text == f"{text}\nSo?\n[model]"
    assert render(turns[:-1], GEMMA).text == f"{text}\n[model]"
    assert render([*turns[:-1], {"role": "assistant", "content": "Rain."}, USER], GEMMA).text == (
        f"{text}\n[assistant]Rain.\n[user]Hi\n[model]"
    )


def test_tags_that_are_control_tokens_must_be_shown_to_the_parser(render):
    tags = ["<tool_call>", "</tool_call>"]
    control, user = (Tokenizer.from_metadata(gpt2_metadata(**{kind: tags})) for kind in ("control", "user"))
    options = {"template": HERMES, "tools": TOOLS, "tool_choice": "required"}
    hidden = render([USER], tokenizer=control, **options)
    assert hidden.visible == {256, 257}
    assert hidden.constraint_source.control == (("<tool_call>", 256), ("</tool_call>", 257))
    shown = render([USER], tokenizer=user, **options)
    assert (shown.visible, shown.constraint_source.control) == (frozenset(), ())
    assert render([USER], tokenizer=control, template=HERMES).visible == frozenset()


# A real model's template and vocabulary


@pytest.fixture
def qwen(tiny):
    tokenizer = tokenizer_of(QWEN)
    return LLM.of(tiny.target, tokenizer, ChatTemplate.from_metadata(metadata_of(QWEN), tokenizer), ctx=64)


@pytest.mark.models
def test_a_real_template_gets_what_transformers_gives_it(qwen):
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [USER, asked(call(1), call(2), content="Wait."), answer(1), answer(2), USER]
    read = json.loads(json.dumps(messages))
    for item in read[1]["tool_calls"]:
        item["function"]["arguments"] = json.loads(item["function"]["arguments"])
    expected, _ = reference.render_jinja_template(
        conversations=[read], tools=TOOLS, chat_template=metadata_of(QWEN)["tokenizer.chat_template"],
        add_generation_prompt=True,
    )  # fmt: skip
    assert render_messages(qwen, messages, TOOLS).text == expected[0]


@pytest.mark.models
def test_calls_as_a_real_template_writes_them_are_read_token_by_token(qwen):
    arguments = '{"city": "Köln </tool_call> {"}'
    prompt = render_messages(qwen, [USER, asked(call(1, arguments), call(2, "{}")), answer()], TOOLS)
    written = prompt.text.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    decoder, stream = TextDecoder(qwen.tokenizer), prompt.parser.new()
    ids = qwen.tokenizer.encode(written, special=True)
    assert prompt.visible == frozenset()
    assert len(ids) < len(written) / 2
    deltas = [stream.feed(decoder.feed([token])) for token in ids]
    pieces = [call for delta in deltas for call in delta.calls]
    assert [call.name for call in pieces if call.name] == ["weather", "weather"]
    assert ["".join(call.arguments for call in pieces if call.index == index) for index in (0, 1)] == [
        arguments, "{}"
    ]  # fmt: skip
    assert "".join(delta.content for delta in deltas) == stream.finish().content == ""
