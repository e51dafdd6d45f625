"""Which way of calling tools a model's template teaches, by what it writes for a tool."""

from foredraft.errors import TemplateError
from foredraft.models.chat import ChatTemplate
from foredraft.server.tools import hermes, llama3
from foredraft.server.tools.described import described
from foredraft.server.tools.format import Format
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.request import read_tools

NAME = "look_up_something"
TOOL = {"type": "function", "function": {"name": NAME, "description": "Look it up.", "parameters": {}}}


def choose_format(template: ChatTemplate) -> Format:
    """Templates without tools, and those that teach a form that is not read here, get none to write: the
    tools are described instead.
    """
    shown = read_tools([TOOL], "auto", True)
    assert shown is not None
    try:
        text = template.render([{"role": "user", "content": "Hi"}], tools=shown.tools)
    except TemplateError:
        return described(template)
    if NAME not in text:
        return described(template)
    if hermes.TAUGHT.search(text):
        return HERMES
    return LLAMA3 if llama3.TAUGHT.search(text) else described(template)
