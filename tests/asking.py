"""Ask a server through OpenAI's own client, in any way, and get what it says in one form."""

import inspect
from dataclasses import dataclass, field

from openai.resources.chat.completions import Completions as Chats
from openai.resources.completions import Completions
from serving import NAME

CHAT, TEXT = "chat", "completions"
KNOWN = {
    CHAT: frozenset(inspect.signature(Chats.create).parameters),
    TEXT: frozenset(inspect.signature(Completions.create).parameters),
}


@dataclass
class Answer:
    """A choice: what all ways of asking must agree on."""

    text: str = ""
    ids: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)  # of the answer's own tokens, if they were asked for
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass
class Reply:
    """`bursts`: the ids of each chunk of a stream. `speculation`: of each choice, or of all."""

    answers: list
    usage: object = None
    bursts: list = field(default_factory=list)
    speculation: list = field(default_factory=list)

    @property
    def answer(self):
        (answer,) = self.answers
        return answer

    @property
    def drafted(self):
        """How this was drafted for; of one choice."""
        (given,) = self.speculation
        return given


def expected(completion):
    """The answer that a completion must come to."""
    return Answer(
        completion.text,
        list(completion.ids),
        [one.logprob for one in completion.logprobs or ()],
        completion.finish_reason,
        completion.stopped_by,
    )


def create(client, route, prompt, **fields):
    """What the client makes of it. Fields that it has no argument for go into the body as they are."""
    own = {name: value for name, value in fields.items() if name in KNOWN[route]}
    extra = {name: value for name, value in fields.items() if name not in KNOWN[route]}
    if route == TEXT:
        return client.completions.create(model=NAME, prompt=prompt, **own, extra_body=extra)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return client.chat.completions.create(model=NAME, messages=messages, **own, extra_body=extra)


def ask(client, route, prompt, *, stream=False, logprobs=None, **fields):
    """The reply, with ids. `logprobs`: how many of the likeliest beside each token."""
    if logprobs is not None and route == CHAT:
        fields |= {"logprobs": True, "top_logprobs": logprobs}
    elif logprobs is not None:
        fields |= {"logprobs": logprobs}
    fields = {"temperature": 0, "return_token_ids": True, **fields}
    if not stream:
        return _whole(create(client, route, prompt, **fields))
    return _gathered(
        create(client, route, prompt, stream=True, stream_options={"include_usage": True}, **fields)
    )


def _whole(given):
    reply = Reply([], given.usage, [], [given.speculation])
    for index, choice in enumerate(given.choices):
        assert choice.index == index
        text = choice.text if hasattr(choice, "text") else choice.message.content or ""
        answer = Answer(text, choice.token_ids, [], choice.finish_reason, choice.stop_reason)
        _add_logprobs(answer, choice)
        reply.answers.append(answer)
    return reply


def _gathered(chunks):
    reply, answers = Reply([]), {}
    for chunk in chunks:
        if not chunk.choices:
            assert reply.usage is None
            reply.usage = chunk.usage
            continue
        assert reply.usage is None and chunk.usage is None, "usage comes once, and last"
        (choice,) = chunk.choices
        answer = answers.setdefault(choice.index, Answer())
        assert answer.finish_reason is None, "nothing follows the end"
        answer.text += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
        answer.ids += choice.token_ids
        answer.finish_reason = choice.finish_reason
        answer.stop_reason = getattr(choice, "stop_reason", None)
        _add_logprobs(answer, choice)
        if choice.finish_reason:
            reply.speculation.append(chunk.speculation)
        reply.bursts.append(choice.token_ids)
    reply.answers = [answers[index] for index in sorted(answers)]
    return reply


def _add_logprobs(answer, choice):
    if choice.logprobs is None:
        return
    if hasattr(choice, "text"):
        answer.logprobs += choice.logprobs.token_logprobs
    else:
        answer.logprobs += [entry.logprob for entry in choice.logprobs.content]
