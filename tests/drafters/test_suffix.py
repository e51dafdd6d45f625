"""The suffix drafter: what it reads, proposes and remembers. Its model is tested in test_context.py."""

import pytest

from foredraft import _native
from foredraft.core.drafter import Ask
from foredraft.core.nouns import Draft
from foredraft.drafters import context, suffix
from foredraft.drafters.suffix import Suffix

PROMPT = [1, 2, 3, 4, 5, 6, 1, 2]


def ask(text, most=6, depth=6, floor=0.0):
    return Ask(text, most, depth, floor=floor)


def test_proposes_the_models_tree():
    model = context.ContextModel()
    model.add(PROMPT)
    tokens, parents, chances = model.tree([], 6, 5, 0.01)
    draft = Suffix().propose(ask(PROMPT, 6, 5, 0.01))
    assert draft == Draft(tuple(tokens), tuple(parents), tuple(chances), ("suffix",) * len(tokens))
    assert tokens[:2] == [3, 4]


def test_reads_a_growing_text_once():
    grown = Suffix()
    text = list(PROMPT)
    for token in (3, 4, 9, 1, 2):
        grown.propose(ask(text))
        text.append(token)
    assert grown.propose(ask(text)) == Suffix().propose(ask(text))


@pytest.mark.parametrize("other", [[1, 2], [1, 2, 3, 4, 5, 6, 1, 3], [9, 8, 9]])
def test_begins_anew_with_another_text(other):
    drafter = Suffix()
    drafter.propose(ask([*PROMPT, 7, 7, 7]))
    assert drafter.propose(ask(other)) == Suffix().propose(ask(other))


def test_extends_a_drafted_path_as_if_it_were_text():
    drafter = Suffix()
    drafter.propose(ask(PROMPT))
    extended = drafter.extend(PROMPT, [3, 4], 4, 4, 0.0)
    whole = context.ContextModel()
    whole.add(PROMPT)
    assert extended.tokens == tuple(whole.tree([3, 4], 4, 4, 0.0)[0])
    assert extended.tokens[0] == 5
    assert drafter.propose(ask(PROMPT)) == Suffix().propose(ask(PROMPT))  # the path was not read


@pytest.mark.parametrize("memory", [suffix.Memory, context.Memory], ids=["native", "twin"])
def test_remembers_the_output_and_not_the_prompt(memory):
    remembered = memory()
    first = Suffix(remembered)
    first.propose(ask([10, 11, 12]))
    first.propose(ask([10, 11, 12, 20, 21]))
    first.propose(ask([10, 11, 12, 20, 21, 22]))
    assert Suffix(remembered).propose(ask([20, 21])) == Draft.empty  # not before it is closed
    first.close()
    assert Suffix(remembered).propose(ask([20, 21])).tokens == (22,)
    assert Suffix(remembered).propose(ask([10, 11])) == Draft.empty
    assert Suffix(remembered).propose(ask([12])) == Draft.empty
    first.close()  # once more does no harm
    assert Suffix().propose(ask([20, 21])) == Draft.empty


def test_nothing_known_nothing_proposed():
    assert Suffix().propose(ask([1, 2, 3])) == Draft.empty
    assert Suffix().propose(ask(PROMPT, most=0)) == Draft.empty
    assert Suffix().propose(ask(PROMPT, depth=0)) == Draft.empty
    assert Suffix().propose(ask(PROMPT, floor=0.99)) == Draft.empty


def test_without_a_memory_the_native_model_is_used():
    assert suffix.Memory is _native.ContextMemory
