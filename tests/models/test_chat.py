import json
from pathlib import Path

import pytest
from vocabularies import LARGER, SMALL, gpt2_metadata, metadata_of, tokenizer_of

from foredraft.errors import TemplateError
from foredraft.models.chat import ChatTemplate
from foredraft.models.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
CONVERSATION = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
USER = [{"role": "user", "content": "Hi <&> 'é' \"x\""}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a < b & 'é'", "parameters": {}}}]


def render(source, messages=USER, **options):
    return ChatTemplate({"default": source}, bos_token="<s>", eos_token="</s>").render(messages, **options)


@pytest.mark.parametrize(
    "name", [SMALL, *(pytest.param(name, marks=pytest.mark.models) for name in LARGER[1:])]
)
def test_conversations_are_rendered_as_llama_cpp_renders_them(name):
    template = ChatTemplate.from_metadata(metadata_of(name), tokenizer_of(name))
    expected = json.loads((GOLDEN / f"text-{name}.json").read_text())["chat_template"]
    assert template.render(CONVERSATION) == expected
    assert template.render(CONVERSATION) == expected, "the second time it is compiled already"
    assert tokenizer_of(name).decode(tokenizer_of(name).encode(expected, special=True)) == expected


@pytest.mark.models
def test_a_base_model_has_no_template():
    template = ChatTemplate.from_metadata(metadata_of("gemma3-270m"), tokenizer_of("gemma3-270m"))
    with pytest.raises(TemplateError, match="no chat template"):
        template.render(USER)


# What Transformers offers to templates

OFFERS = [
    ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}", {}),
    ("{%- for m in messages -%}\n  {{ m['role'] }}\n  {%- if loop.last %}!{% endif %}\n{% endfor %}", {}),
    ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", {}),
    ("{{ messages | tojson }} {{ {'b': 1, 'a': [true, none]} | tojson(indent=2) }}", {}),
    ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", {}),
    (
        "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ loop.index }}{% endfor %}",
        {},
    ),
    (
        "{% for m in messages * 3 %}{% if loop.last %}{% break %}{% endif %}{{ loop.index }}{% endfor %}",
        {},
    ),
    (
        "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        {},
    ),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}.", {}),
    ("{% set x %}[{{ messages[0].role }}]{% endset %}{{ x ~ x ~ 1 }}{{ x|replace('[', '(')|trim }}", {}),
    ("{% macro f(x, y=2) %}{{ x * y }}{% endmacro %}{{ f(3) }}{{ f('ab', y=3) }}", {}),
    ("{{ messages[0].content.split(' ')[-1].strip() }}{{ messages[0]['content'][::-1] }}", {}),
    ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}", {}),
    ("{% for m in messages if m.role == 'system' %}{{ m }}{% else %}none{% endfor %}", {}),
    (
        "{% for m in messages|selectattr('role', 'eq', 'user') %}{{ loop.length }}{% endfor %}",
        {},
    ),
    ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", {}),
    (
        "{{ '%s-%02d' % ('a', 7) }}{{ '{} {}'.format(1, 'b') }}{{ 2 ** 10 }}{{ [1] + [2] }}",
        {},
    ),
    ("{{ add_generation_prompt }}{{ tools }}{{ documents is defined }}{{ missing is defined }}", {}),
    ("{% if tools %}{{ tools | tojson }}{% endif %}", {"tools": TOOLS}),
]


@pytest.mark.parametrize(("source", "options"), OFFERS)
def test_templates_give_what_transformers_gives(source, options):
    reference = pytest.importorskip("transformers.utils.chat_template_utils")
    expected, _ = reference.render_jinja_template(
        conversations=[USER], chat_template=source, bos_token="<s>", eos_token="</s>",
        add_generation_prompt=True, **options
    )  # fmt: skip
    assert render(source, **options) == expected[0]


def test_json_is_not_escaped_for_html():
    assert render("{{ messages[0].content | tojson }}") == json.dumps(USER[0]["content"], ensure_ascii=False)


def test_the_generation_prompt_and_the_templates_own_switches_are_passed_on():
    source = "{{ add_generation_prompt }} {{ thinking }}"
    assert render(source, add_generation_prompt=False, variables={"thinking": "yes"}) == "False yes"


def test_the_date_is_at_hand():
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_the_messages_stay_as_they_are():
    messages = [{"role": "user", "content": "Hi"}]
    render("{% for m in messages %}{{ m.content }}{% endfor %}", messages)
    assert messages == [{"role": "user", "content": "Hi"}]


# Several templates

NAMED = {
    "tokenizer.chat_template": "plain",
    "tokenizer.chat_template.tool_use": "tools",
    "tokenizer.chat_template.rag": "rag",
}


def test_named_variants_are_found_and_tools_take_theirs():
    metadata = gpt2_metadata() | NAMED
    template = ChatTemplate.from_metadata(metadata, Tokenizer.from_metadata(metadata))
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=TOOLS) == "tools"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, variant="rag", tools=TOOLS) == "rag"
    with pytest.raises(TemplateError, match=r"'poem'.*'default', 'rag', 'tool_use'"):
        template.render(USER, variant="poem")


def test_the_begin_and_end_tokens_are_those_of_the_vocabulary():
    metadata = gpt2_metadata(control=["<s>", "</s>"]) | {
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}",
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert ChatTemplate.from_metadata(metadata, tokenizer).render(USER) == "<s>|</s>"
    assert tokenizer.chat_template == metadata["tokenizer.chat_template"]


def test_a_template_that_is_no_text_is_refused():
    metadata = gpt2_metadata() | {"tokenizer.chat_template": 5}
    with pytest.raises(TemplateError, match="not a text"):
        ChatTemplate.from_metadata(metadata, Tokenizer.from_metadata(metadata))


# Mistakes


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ x.y.z }}", "'x' is undefined"),
        ("{{ 'a' + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% for %}", "line 1"),
        ("\n\n{% if %}", "line 3"),
        ("{% endfor %}", "endfor"),
        ("{% include 'other' %}", "loader"),
        ("{{ messages | nothing }}", "nothing"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "nested"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
        ("{{ 1" + "0" * 5000 + " }}", "digits"),
    ],
)
def test_a_broken_or_refusing_template_says_why(source, reason):
    with pytest.raises(TemplateError, match=reason):
        render(source)


@pytest.mark.parametrize("messages", [[], "Hi", {"role": "user"}, ["Hi"], [{"content": "Hi"}], [{"role": 5}]])
def test_messages_must_be_a_list_of_objects_with_a_role(messages):
    with pytest.raises(TemplateError, match="role"):
        render("{{ messages }}", messages)
