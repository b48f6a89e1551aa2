"""Conversations as text, by a chat template, and which of it the assistant says."""

import re
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from moray.corpus.document import Document, RowError, messages_of, tools_of
from moray.errors import UserError

# Stands in for what the assistant says; letters and digits alone, which no template changes.
_STAND_IN = "5zQmorayStandsInHere5zQ"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: what the template makes of it.
        spans: from and to which character the assistant says it, the stop token included.
    """

    text: str
    spans: list[tuple[int, int]]


class ChatTemplate:
    """A tokenizer's chat template, or one in its place."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, template: str | None, stop_tokens: list[str]
    ) -> None:
        """Take a template.

        Args:
            tokenizer: of the model.
            template: Jinja; None for the tokenizer's own.
            stop_tokens: each of them ends what the assistant says.

        Raises:
            UserError: if there is no template.
        """
        try:
            # A tokenizer can have several, one of them for tools.
            self._plain = tokenizer.get_chat_template(template)
            self._with_tools = tokenizer.get_chat_template(template, tools=[{}])
        except ValueError as error:
            raise UserError(
                "data.chat_template",
                "got none, and the tokenizer has none, expected a template for conversations",
                "give one, or start from a model that has one",
            ) from error
        self._special_tokens = tokenizer.special_tokens_map
        self._stops = stop_tokens

    def render(self, document: Document) -> Rendered:
        """A whole conversation.

        Raises:
            RowError: if the template fails, or leaves out what the assistant says.
            UserError: if no stop token is trained after it.
        """
        messages, tools = messages_of(document), tools_of(document)
        template = self._with_tools if tools else self._plain
        if _GENERATION.search(template):
            text, spans = self._marked(messages, tools)
            stopped = all(self._ends_in_stop(text[start:end]) for start, end in spans)
        else:
            text = self._text(messages, tools)
            said = [
                self._said(number, text, messages, tools)
                for number, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
            stops = [self._stop_after(text, start, end) for start, end in said]
            spans = [(start, stop) for (start, _), stop in zip(said, stops, strict=True) if stop]
            stopped = len(spans) == len(said)
        if not spans and stopped:
            raise RowError("got a chat template that marks nothing of it as said", "mend either")
        if not stopped:
            raise UserError(
                "data.chat_template",
                "got a template by which what the assistant says is trained without a stop token, "
                f"expected {' or '.join(self._stops)} behind it",
                "write {{ eos_token }} behind each message of the assistant, and before "
                "{% endgeneration %} where the template has that",
            )
        return Rendered(text, spans)

    def prompt(self, document: Document) -> tuple[str, str]:
        """A conversation up to the assistant's last turn, and what the assistant says there.

        Without the stop token, which continuations don't show either.
        """
        messages = messages_of(document)
        last = max(n for n, message in enumerate(messages) if message["role"] == "assistant")
        text = self._text(messages[:last], tools_of(document), add_generation_prompt=True)
        rendered = self.render(document)
        start, end = rendered.spans[-1]
        stop = rf"({'|'.join(map(re.escape, self._stops))})\s*$"
        return text, re.sub(stop, "", rendered.text[start:end])

    def _text(self, messages: list[dict[str, Any]], tools: Any, **options: Any) -> str:
        return self._rendered(messages, tools, **options)[0]

    def _marked(
        self, messages: list[dict[str, Any]], tools: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        """With the spans between `{% generation %}` and `{% endgeneration %}`."""
        return self._rendered(messages, tools, return_assistant_tokens_mask=True)

    def _rendered(
        self, messages: list[dict[str, Any]], tools: Any, **options: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        try:
            # In transformers' sandbox: a template can't reach out of its text.
            (text,), spans = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=self._with_tools if tools else self._plain,
                **{**self._special_tokens, **options},
            )
        # Whatever a template's own code raises.
        except Exception as error:
            first = str(error).partition("\n")[0]
            raise RowError(
                f"got a chat template that fails ({type(error).__name__}: {first})",
                "mend data.chat_template or leave the row out",
            ) from error
        return text, spans[0] if spans else []

    def _said(
        self, number: int, text: str, messages: list[dict[str, Any]], tools: Any
    ) -> tuple[int, int]:
        """From and to where the text depends on what message `number` says.

        Found by letting the assistant say something else there. Rendering the messages before it
        would not do: many templates write earlier turns in another way than the last one.
        """
        other = [dict(message) for message in messages]
        other[number] = {"role": "assistant", "content": _STAND_IN}
        with_other = self._text(other, tools)
        if with_other.count(_STAND_IN) != 1:
            raise RowError(
                f"got a chat template that leaves out message {number + 1}, expected all that the "
                "assistant says",
                "mend data.chat_template or leave the row out",
            )
        before, _, after = with_other.partition(_STAND_IN)
        start = _common(text, before)
        rest = text[start:]
        return start, len(text) - _common(rest[::-1], after[::-1])

    def _stop_after(self, text: str, start: int, end: int) -> int | None:
        """Where the stop token behind a span ends; it may be partly inside."""
        stop = "|".join(map(re.escape, self._stops))
        if behind := re.compile(rf"\s*(?:{stop})").match(text, end):
            return behind.end()
        longest = max(map(len, self._stops))
        across = re.compile(stop).search(text, max(start, end - longest))
        return across.end() if across and across.start() < end < across.end() else None

    def _ends_in_stop(self, said: str) -> bool:
        return said.rstrip().endswith(tuple(self._stops))


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    if one.startswith(other):
        return len(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
