"""Calls between tags, as Hermes, Qwen and SmolLM2 are taught them."""

import re
from collections.abc import Sequence

from foredraft.server.tools.format import Format, Messages
from foredraft.server.tools.request import Tool
from foredraft.server.tools.turns import Turn, for_template

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# A JSON object in the tags, or a list of them: other families put XML there.
TAUGHT = re.compile(rf"{OPEN}\s*\[?\s*\{{")


def prepare(turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Messages, Sequence[Tool]]:
    return [for_template(turn) for turn in turns], tools


HERMES = Format(
    begin=f"{OPEN}\n",
    between=f"\n{CLOSE}\n{OPEN}\n",
    end=f"\n{CLOSE}",
    key="arguments",
    tags=(OPEN, CLOSE),
    prepare=prepare,
)
