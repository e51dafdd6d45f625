"""A model that writes what it is told to, so that a test knows beforehand what a client must get.

llm = scripted_llm(path)
llm.target.write(llm.prompter.encode("hello", raw=True), llm.tokenize("Grüezi") + [END])
"""

from altered import with_metadata
from engine_for_tests import HashedTarget

from foredraft.engine.drafting import Drafting
from foredraft.engine.llm import LLM
from foredraft.models.chat import ChatTemplate
from foredraft.models.gguf import read_gguf
from foredraft.models.tokenizer import Tokenizer

VOCAB = 300
END = VOCAB - 1  # of those that `write_tiny` makes
# ChatML, with tools.
TEMPLATE = """\
{% for tool in tools or [] %}{{ tool.function.name }} as <tool_call>{}</tool_call>
{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LEAD = 40.0  # of the token that is due; all others are within 20 of each other


class ScriptedTarget(HashedTarget):
    """After a script has ended, and where it was left, what follows is anything."""

    def __init__(self, vocab=VOCAB):
        super().__init__(vocab)
        self.prompt = self.answer = ()

    def write(self, prompt, answer):
        """This, after that, until it is told something else."""
        self.prompt, self.answer = tuple(prompt), tuple(answer)

    def logits(self, tokens):
        row = super().logits(tokens)
        due = self._due(tokens)
        if due is not None:
            row = row.copy()
            row[due] = LEAD
        return row

    def _due(self, tokens):
        said = tokens[len(self.prompt) :]
        if len(said) < len(self.answer) and tokens == self.prompt + self.answer[: len(said)]:
            return self.answer[len(said)]
        return None


def scripted_llm(path, ctx=1536, kv_tokens=8192):
    """An LLM around such a target, with the tokenizer of the model in the file."""
    file = with_metadata(read_gguf(path), {"tokenizer.chat_template": TEMPLATE})
    tokenizer = Tokenizer.from_gguf(file)
    template = ChatTemplate.from_gguf(file, tokenizer)
    return LLM.of(ScriptedTarget(), tokenizer, template, ctx=ctx, kv_tokens=kv_tokens, drafting=Drafting())
