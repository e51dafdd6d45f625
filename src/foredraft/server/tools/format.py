"""How a template teaches a model to call tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foredraft.models.tokenizer import Tokenizer
from foredraft.server.tools.grammar_source import ToolGrammar
from foredraft.server.tools.request import Tool, ToolRequest
from foredraft.server.tools.turns import Turn

Messages = list[dict[str, object]]
# The messages and the tools to give to the template.
Prepare = Callable[[Sequence[Turn], Sequence[Tool]], tuple[Messages, Sequence[Tool]]]


@dataclass(frozen=True)
class Format:
    """`begin`, `between`, `end` and `key` are those of `ToolGrammar`; `tags` are the tags in them."""

    begin: str
    between: str
    end: str
    key: str
    tags: tuple[str, ...]
    prepare: Prepare

    def control(self, tokenizer: Tokenizer) -> tuple[tuple[str, int], ...]:
        """The tags that are one control token each in this vocabulary: control tokens have no text, unless
        they are asked for.
        """
        found = []
        for tag in self.tags:
            ids = tokenizer.encode(tag, special=True)
            if len(ids) == 1 and ids[0] in tokenizer.special_ids:
                found.append((tag, ids[0]))
        return tuple(found)

    def grammar(self, request: ToolRequest, tokenizer: Tokenizer) -> ToolGrammar:
        return ToolGrammar(
            begin=self.begin,
            end=self.end,
            schemas=request.schemas,
            many=request.many,
            between=self.between,
            key=self.key,
            control=self.control(tokenizer),
        )
