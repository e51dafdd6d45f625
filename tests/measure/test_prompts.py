import json

import pytest

from foredraft.errors import UsageError
from foredraft.measure.prompts import KINDS, OTHER, Prompt, chosen, own_prompts, read_prompts

THREE = (Prompt("json", "a", "A"), Prompt("code", "b", "B"), Prompt("code", "c", "C"))


def test_there_are_at_least_three_prompts_of_each_kind_in_the_order_of_kinds():
    kinds = [prompt.kind for prompt in own_prompts()]
    assert list(dict.fromkeys(kinds)) == list(KINDS)
    assert all(kinds.count(kind) >= 3 for kind in KINDS)


def test_prompts_have_names_of_their_own_and_no_space_around():
    prompts = own_prompts()
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    assert all(prompt.text == prompt.text.strip() != "" for prompt in prompts)


@pytest.mark.parametrize(
    ("kind", "unit", "least", "most"), [("edit", "\n", 60, 100), ("summary", " ", 400, 700)]
)
def test_what_is_to_be_rewritten_or_summarised_stands_in_the_prompt(kind, unit, least, most):
    for prompt in own_prompts():
        if prompt.kind == kind:
            assert least <= prompt.text.count(unit) <= most, prompt.label


def test_prompts_are_read_from_json_lines(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [
        {"kind": "code", "name": "sort", "prompt": "Sort it."},
        {"prompt": "Hello."},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    assert read_prompts(path) == (
        Prompt("code", "sort", "Sort it."),
        Prompt(OTHER, "3", "Hello."),
        Prompt("writing", "81", "First."),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no prompts"),
        ("Write a poem", "line 1"),
        ('{"text": "Hello."}', "line 1"),
        ('{"prompt": ""}', "line 1"),
        ('{"turns": []}', "line 1"),
        ('"prompt"', "line 1"),
        ("[1]", "line 1"),
    ],
)
def test_files_that_are_not_understood_are_refused(tmp_path, text, complaint):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_prompts(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")


def test_prompts_are_chosen_by_kind_and_name():
    assert chosen(THREE) == THREE
    assert chosen(THREE, kinds=["code"]) == THREE[1:]
    assert chosen(THREE, names=["c", "a"]) == (THREE[0], THREE[2])
    assert chosen(THREE, kinds=["code"], names=["a", "c"]) == (THREE[2],)


def test_unknown_kinds_and_names_are_refused_with_what_there_is():
    with pytest.raises(
        UsageError, match=r"--kinds: there is no 'jsom'.*did you mean json\? There are: json, code"
    ):
        chosen(THREE, kinds=["jsom"])
    with pytest.raises(UsageError, match="--only: there is no 'x'"):
        chosen(THREE, names=["x"])
    with pytest.raises(UsageError, match="no prompt of the kinds json is named b"):
        chosen(THREE, kinds=["json"], names=["b"])
