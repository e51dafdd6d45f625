"""`LLM` on the native engine: tiny models against the twin, and SmolLM2 against itself."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from real import real_model
from tiny import write_tiny
from twin_target import twin_llm

from foredraft import LLM, ModelNotFoundError, Sampling, UsageError

TEXT = "The three primary colours are"


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_ids_are_the_twins(family, tmp_path):
    path = write_tiny(tmp_path / "tiny.gguf", family, quant="F32", seed=9)
    twin = twin_llm(path)
    prompt = twin.tokenize("the quick brown fox jumps")
    with LLM(path, kv="f32") as llm:
        for sampling in (
            Sampling(max_tokens=24),
            Sampling(max_tokens=24, temperature=0.9, top_p=0.9, seed=2),
        ):
            assert llm.generate(prompt, sampling).ids == twin.generate(prompt, sampling).ids


@pytest.fixture(scope="module")
def llm():
    with LLM(real_model("smollm2-135m"), ctx=1024) as llm:
        yield llm
        llm.pool.check([])


def test_stream_is_generate_on_a_real_model(llm):
    for sampling in (Sampling(max_tokens=32), Sampling(max_tokens=32, temperature=0.8, top_p=0.95, seed=5)):
        whole = llm.generate(TEXT, sampling)
        with llm.stream(TEXT, sampling) as stream:
            assert "".join(burst.text for burst in stream) == whole.text
        assert stream.completion.ids == whole.ids
        assert llm.detokenize(whole.ids) == whole.text


def test_conversation_equals_fresh_runs_on_a_real_model(llm):
    sampling = Sampling(max_tokens=24, temperature=0.7, seed=8, repetition_penalty=1.1)
    with llm.chat("You are terse.") as chat:
        for text in ("Name a colour.", "And a fruit?", "Thanks."):
            before = [*chat.messages, {"role": "user", "content": text}]
            assert chat.send(text, sampling).ids == llm.generate(before, sampling).ids


def test_threads_and_chunks_do_not_change_the_text(llm, monkeypatch):
    sampling = Sampling(max_tokens=16)
    expected = llm.generate(TEXT * 6, sampling, raw=True).ids
    monkeypatch.setattr("foredraft.engine.stream.CHUNK", 7)
    with LLM(real_model("smollm2-135m"), ctx=256, threads=1) as other:
        assert other.generate(TEXT * 6, sampling, raw=True).ids == expected


def test_threads_of_the_caller_may_ask_at_once(llm):
    sampling = Sampling(max_tokens=12, temperature=0.9, seed=3)
    prompts = ["One.", "Two and more.", "Three is a crowd, they say."]
    expected = [llm.generate(prompt, sampling).ids for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda prompt: llm.generate(prompt, sampling).ids, prompts)
    assert list(found) == expected


def test_model_is_closed_twice_without_harm(tmp_path):
    llm = LLM(write_tiny(tmp_path / "tiny.gguf"))
    llm.close()
    llm.close()


def test_default_context_is_no_longer_than_trained(tmp_path):
    assert LLM(write_tiny(tmp_path / "tiny.gguf", context=512)).ctx == 512
    assert LLM(write_tiny(tmp_path / "long.gguf", context=10**6)).ctx == 4096


@pytest.mark.parametrize("ctx", [0, 1, -5, 513])
def test_context_the_model_was_not_trained_for_is_refused(tmp_path, ctx):
    with pytest.raises(UsageError, match=f"ctx is {ctx}"):
        LLM(write_tiny(tmp_path / "tiny.gguf", context=512), ctx=ctx)


def test_unknown_model_is_told():
    with pytest.raises(ModelNotFoundError, match="unknown model"):
        LLM("smollm3")
