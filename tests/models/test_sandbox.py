import pytest

from foredraft.errors import TemplateError
from foredraft.models.chat import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]


def render(source, messages=USER):
    return ChatTemplate({"default": source}).render(messages)


GROW = "{%% set ns = namespace(x='aaaaaaaaaa') %%}{%% for i in range(60) %%}%s{%% endfor %%}"
HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% for i in range(999999) %}{% endfor %}",
    "{{ 'x' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 9 ** 999999999 }}",
    "{{ 'x' | center(10**9) }}",
    "{{ 'x'.center(10**9) }}",
    "{{ 'x'.ljust(width=10**9) }}",
    "{{ '%1000000000d' % 5 }}",
    "{{ '%*d' % (1000000000, 5) }}",
    "{{ '%1000000000d' | format(5) }}",
    "{{ '{:1000000000}'.format(5) }}",
    "{{ '{:{}}'.format(5, 1000000000) }}",
    "{{ [1] | batch(10**9, 'x') | list }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ ('a\n' * 1000000) | indent(1000) }}",
    "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
    "{{ ('a' * 1000000) | replace('a', 'a' * 1000000) }}",
    "{{ ('a' * 100000).join(range(99999) | map('string') | list) }}",
    "{{ lipsum(n=100000) }}",
    GROW % "{% set ns.x = ns.x ~ ns.x %}",
    GROW % "{% set ns.x = ns.x + ns.x %}",
    GROW % "{% set ns.x = [ns.x] + [ns.x] %}{% set ns.x = ns.x | join %}",
    GROW % "{% set ns.x = ns.x | replace('a', 'aa') %}",
    GROW % "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set x = 'a' * 4000000 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ self.__init__ }}{{ ''['__class__'].x }}",
    "{# " + "x" * (1 << 20) + " #}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_is_stopped(source):
    with pytest.raises(TemplateError):
        render(source)


def test_every_render_has_a_budget_of_its_own():
    template = ChatTemplate({"default": "{% for i in range(90000) %}{% endfor %}done"})
    assert [template.render(USER) for _ in range(15)] == ["done"] * 15


def test_a_long_conversation_is_no_hostile_one():
    messages = [{"role": "user", "content": "word " * 200}] * 500
    source = "{% for m in messages %}{{ '<' + m.role ~ '>' + m.content | trim + '\n' }}{% endfor %}"
    assert len(render(source, messages)) > 400_000
