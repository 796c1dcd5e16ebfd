"""From a sample's text to token ids: template, BOS, and the cut between context and the rest.

The context is what a method compresses; the rest is what follows. Knows no task.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from ..errors import UsageError

_CUT = "\x02cut here\x03"


@dataclass(frozen=True)
class Encoded:
    """Token ids of one prompt: `context`, which may be compressed, and `rest`, which follows."""

    context: list[int]
    rest: list[int]


class PromptFormat:
    """How a model wants its prompts.

    The question and the answer prefix stand where kvpress puts them: the prefix after the header of
    the assistant's turn, as a beginning of the reply. Every part is encoded by itself and without
    special tokens: what the template writes is all there is, so there is one BOS at most.

    Args:
        tokenizer: mlx-lm's wrapper. Without a chat template the prompt is BOS, context, question,
            a newline and the prefix.
        aware: the question belongs to the context, so that methods see it before they choose.
        template_options: variables for the chat template.
    """

    def __init__(self, tokenizer, *, aware: bool = False, template_options: dict | None = None):
        self.tokenizer, self.aware = tokenizer, aware
        self.template_options = template_options or {}

    def render(self, context: str, question: str, prefix: str) -> tuple[str, str, str]:
        """The prompt's text in three parts: up to the context's end, question, what follows it."""
        if not self.tokenizer.has_chat_template:
            return context, question, f"\n{prefix}"
        # One message, so that a template that trims it trims neither side of the cuts.
        message = {"role": "user", "content": context + _CUT + question + _CUT}
        options = {"add_generation_prompt": True, "tokenize": False, **self.template_options}
        try:
            parts = self.tokenizer.apply_chat_template([message], **options).split(_CUT)
        except Exception as error:
            # A template raises what it likes.
            raise UsageError(f"the chat template refuses a prompt: {error}") from error
        if len(parts) != 3:
            raise UsageError("the chat template does not repeat the user's text as it is")
        return parts[0], parts[1], parts[2] + prefix

    def encode(self, context: str, question: str, prefix: str) -> Encoded:
        """Token ids of one prompt."""
        before, asked, after = map(self.ids, self.render(context, question, prefix))
        before = self._bos + before
        if self.aware:
            return Encoded(before + asked, after)
        return Encoded(before, asked + after)

    def count(self, context: str, question: str, prefix: str) -> int:
        """Tokens of the whole prompt, BOS included."""
        made = self.encode(context, question, prefix)
        return len(made.context) + len(made.rest)

    @cached_property
    def template_sha256(self) -> str:
        """Hash of what the template adds around a prompt."""
        return hashlib.sha256(_CUT.join(self.render("", "", "")).encode()).hexdigest()

    @cached_property
    def _bos(self) -> list[int]:
        """What a template writes itself, and the tokenizer adds where there is none."""
        first = self.tokenizer.bos_token_id
        if self.tokenizer.has_chat_template or first is None:
            return []
        return [first] if self.tokenizer.encode("a")[:1] == [first] else []

    def ids(self, text: str) -> list[int]:
        """Token ids of a piece of text, without special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False) if text else []
