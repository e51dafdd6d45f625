"""`POST /v1/chat/completions`."""

import time
import uuid
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from foredraft.engine.request import Request
from foredraft.server.chat_body import ChatBody, TemplateBody
from foredraft.server.chat_choices import ChatChoices
from foredraft.server.documents import ChatReply, answers_with, takes
from foredraft.server.messages import ChatPrompt, render_messages
from foredraft.server.service import Service, service_of
from foredraft.server.writer import Writer, answer

PATH = "/v1/chat/completions"
router = APIRouter()


@router.post(PATH, responses=answers_with(ChatReply), response_model=None, openapi_extra=takes(ChatBody))
async def chat_completions(http: HttpRequest) -> Response:
    """Answer a conversation."""
    arrived = time.perf_counter()
    service = service_of(http)
    service.check_open()
    body, size = await service.read(http, ChatBody)
    body.check()
    service.check_model(body.model)
    service.check_answers(body.n or 1)
    drafting = body.drafting(service.llm.drafting, service.models)
    prompt = await service.work(size, partial(render, service, body))
    requests = await _requests(service, body, prompt, arrived)
    reply_id = f"chatcmpl-{uuid.uuid4().hex}"
    flow = service.submit(reply_id, PATH, requests, drafting, arrived)
    asked = service.asked(reply_id, body, len(prompt.ids), len(requests), drafting)
    writer = Writer(asked, ChatChoices(body, prompt, service.texts))
    return await answer(http, flow, writer, body.streams)


def render(service: Service, body: ChatBody | TemplateBody) -> ChatPrompt:
    """Messages and tools to ids."""
    return render_messages(
        service.llm,
        body.messages,
        body.tools,
        body.tool_choice,
        body.parallel_tool_calls is not False,
        body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final=bool(body.continue_final_message),
    )


async def _requests(service: Service, body: ChatBody, prompt: ChatPrompt, arrived: float) -> list[Request]:
    """One for each choice."""
    constraint = await service.constraints(body, prompt.constraint_source, prompt.parser is not None)
    most = body.most(service.llm.ctx)
    return [
        service.llm.request(
            prompt.ids,
            body.sampling(most, index),
            arrived,
            body.likeliest,
            constraint=constraint(),
            salt=body.cache_salt or "",
            special=body.skip_special_tokens is False,
            visible=prompt.visible,
        )
        for index in range(body.n or 1)
    ]
