"""Conversations keep their cache, and answer as if they had none."""

import pytest
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import ContextError, Sampling, TemplateError, UsageError
from foredraft.engine.kv import blocks_for

SAMPLING = Sampling(max_tokens=8, temperature=0.8, seed=11)


@pytest.fixture
def llm(tmp_path):
    return twin_llm(write_tiny(tmp_path / "tiny.gguf", "llama", seed=5))


def fresh(llm, messages):
    return llm.generate(list(messages), SAMPLING)


def test_every_turn_equals_a_fresh_run(llm):
    with llm.chat("be brief") as chat:
        for text in ("hello there", "and then?", "\u00e9t\u00e9"):
            before = [*chat.messages, {"role": "user", "content": text}]
            completion = chat.send(text, SAMPLING)
            assert completion.ids == fresh(llm, before).ids
            assert chat.messages[-1] == {"role": "assistant", "content": completion.text}
    llm.pool.check([])


def test_what_was_said_is_not_computed_again(llm):
    with llm.chat() as chat:
        first = chat.send("hello there " * 4, SAMPLING)
        llm.target.passes.clear()
        second = chat.send("go on", SAMPLING)
        assert sum(llm.target.passes) < second.prompt_tokens
        assert llm.target.passes[0] <= second.prompt_tokens - first.prompt_tokens


def test_interrupted_answer_stays_as_far_as_it_came(llm):
    with llm.chat() as chat:
        stream = chat.stream("hello there", SAMPLING)
        text = next(stream).text + next(stream).text
        stream.close()
        assert chat.messages[-1]["content"].startswith(text)
        before = [*chat.messages, {"role": "user", "content": "go on"}]
        assert chat.send("go on", SAMPLING).ids == fresh(llm, before).ids


def test_interrupt_inside_a_round_leaves_the_conversation_sound(llm):
    def interrupt(event):
        if event.round == 2:
            raise KeyboardInterrupt

    with llm.chat() as chat:
        with (
            pytest.raises(KeyboardInterrupt),
            chat.stream("hello there", SAMPLING, trace=interrupt) as stream,
        ):
            list(stream)
        before = [*chat.messages, {"role": "user", "content": "go on"}]
        assert len(before) == 3
        assert chat.send("go on", SAMPLING).ids == fresh(llm, before).ids


def test_a_turn_without_any_answer_was_not_said(llm):
    with llm.chat("be brief") as chat:
        chat.stream("hello", SAMPLING).close()
        assert [message["role"] for message in chat.messages] == ["system"]


def test_reset_forgets_all_but_the_system_message(llm):
    with llm.chat("be brief") as chat:
        first = chat.send("hello", SAMPLING)
        chat.reset()
        assert [message["role"] for message in chat.messages] == ["system"]
        assert chat.send("hello", SAMPLING).ids == first.ids


def test_mistake_leaves_the_conversation_as_it_was(llm):
    with llm.chat() as chat:
        chat.send("hello", SAMPLING)
        before = chat.messages
        with pytest.raises(ContextError, match="tokens"):
            chat.send("x" * 400, SAMPLING)
        with pytest.raises(UsageError, match="empty"):
            chat.send("", SAMPLING)
        assert chat.messages == before
        chat.send("still there", SAMPLING)


def test_idle_conversation_gives_way_and_comes_back(llm):
    with llm.chat() as chat:
        chat.send("x" * 150, SAMPLING)
        assert llm.pool.num_free < blocks_for(llm.ctx)
        llm.generate("y" * 180, SAMPLING)
        before = [*chat.messages, {"role": "user", "content": "go on"}]
        assert chat.send("go on", SAMPLING).ids == fresh(llm, before).ids


def test_closing_the_llm_frees_its_conversations(llm):
    chat = llm.chat()
    chat.send("hello", SAMPLING)
    llm.close()
    llm.pool.check([])


def test_model_without_a_template_cannot_chat(tmp_path):
    llm = twin_llm(write_tiny(tmp_path / "base.gguf", "gemma3"))
    with llm.chat() as chat, pytest.raises(TemplateError, match="no chat template"):
        chat.send("hello")
