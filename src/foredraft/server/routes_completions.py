"""`POST /v1/completions`."""

import time
import uuid
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft.engine.request import Request
from foredraft.server.completion_body import CompletionBody
from foredraft.server.completion_choices import CompletionChoices, TextPrompt
from foredraft.server.documents import CompletionReply, answers_with, takes
from foredraft.server.service import Service, service_of
from foredraft.server.writer import Writer, answer

PATH = "/v1/completions"
router = APIRouter()


@router.post(
    PATH, responses=answers_with(CompletionReply), response_model=None, openapi_extra=takes(CompletionBody)
)
async def completions(http: HttpRequest) -> Response:
    """Continue one or more texts."""
    arrived = time.perf_counter()
    service = service_of(http)
    service.check_open()
    body, size = await service.read(http, CompletionBody)
    body.check()
    service.check_model(body.model)
    per_prompt = max(body.n or 1, body.best_of or 1)
    service.check_answers(len(body.prompts) * per_prompt)
    drafting = body.drafting(service.llm.drafting, service.models)
    prompts = await service.work(size, partial(_encode, service, body))
    requests = await _requests(service, body, prompts, per_prompt, arrived)
    reply_id = f"cmpl-{uuid.uuid4().hex}"
    flow = service.submit(reply_id, PATH, requests, drafting, arrived)
    prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    asked = service.asked(reply_id, body, prompt_tokens, per_prompt, drafting)
    choices = CompletionChoices(body, prompts, per_prompt, service.texts, service.llm.tokenizer)
    writer = Writer(asked, choices, drops_all=body.most == 0)
    return await answer(http, flow, writer, body.streams, whole=_echoes_logprobs(body))


def _encode(service: Service, body: CompletionBody) -> list[TextPrompt]:
    encode, decode = service.llm.prompter.encode, service.llm.tokenizer.decode
    prompts = []
    for prompt in body.prompts:
        ids = encode(prompt, raw=isinstance(prompt, str))
        text = prompt if isinstance(prompt, str) else decode(ids) if body.echo else ""
        prompts.append(TextPrompt(text, ids))
    return prompts


async def _requests(
    service: Service, body: CompletionBody, prompts: Sequence[TextPrompt], per_prompt: int, arrived: float
) -> list[Request]:
    """`per_prompt` for each prompt."""
    constraint = await service.constraints(body, None, has_tools=False)
    picks = per_prompt > (body.n or 1)
    return [
        service.llm.request(
            prompt.ids,
            body.sampling(max(1, body.most), index),
            arrived,
            0 if picks and body.likeliest is None else body.likeliest,
            constraint=constraint(),
            prompt_logprobs=body.likeliest if body.echo else None,
            salt=body.cache_salt or "",
            special=body.skip_special_tokens is False,
        )
        for prompt in prompts
        for index in range(per_prompt)
    ]


def _echoes_logprobs(body: CompletionBody) -> bool:
    """The prompt's logprobs are there when the answer is complete: not sooner."""
    return bool(body.echo) and body.likeliest is not None
