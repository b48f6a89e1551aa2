"""Rendering conversations with a chat template, and finding what is trained in the text."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from moray.corpus.dataset import Document, RowError, messages_of, tools_of
from moray.errors import UserError, first_line
from moray.model.chat_template import unused_variable_error, unused_variables
from moray.tasks.language.alterations import Alterations, alteration, left_out, shorten
from moray.tasks.language.answers import answer_alone, trained_answers
from moray.tasks.language.turns import (
    Messages,
    Render,
    Start,
    content_span,
    other_messages,
    render_or_none,
    squeeze,
    start_behind_reasoning,
    turn_start,
)

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

# A fixed date for templates that ask for today's, so that tokens don't depend on the day; it is the
# default of Llama's templates. A macro, because transformers only passes its own functions.
_TODAY = (
    "{% macro strftime_now(form) %}"
    "{{ '2024-07-26' if form == '%Y-%m-%d' else '26 Jul 2024' }}"
    "{% endmacro %}"
)


@dataclass(frozen=True)
class Turn:
    """An assistant's turn in the rendered text.

    Attributes:
        start: where the trained text starts, in characters.
        end: the end of its stop token.
        alterations: what the template does to the answer besides rendering it.
        lost_text: the part of the answer that the text doesn't have.
        has_prompt: whether the text has the generation prompt, and the turn starts behind it.
    """

    start: int
    end: int
    alterations: frozenset[tuple[str, str]]
    lost_text: str
    has_prompt: bool


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as text, and where its trained assistant turns are, including stop tokens.

    Spans have start and end, in characters.

    Attributes:
        messages: role, start and end of all turns of the assistant, and of the other messages.
        alterations: what the template does to the trained answers besides rendering them.
        prompt_ends: starts of spans that are the end of a generation prompt.
    """

    text: str
    spans: list[tuple[int, int]]
    messages: list[tuple[str, int, int]] = field(default_factory=list)
    alterations: Alterations = field(default_factory=Counter)
    prompt_ends: frozenset[int] = frozenset()


def missing_template_error() -> UserError:
    """The fault of a conversation that nothing can render."""
    return UserError(
        "data.chat_template",
        "is not set, and the tokenizer has no chat template",
        "set it, or use a base model that has one",
    )


class ChatTemplate:
    """A tokenizer's chat template, or one that replaces it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        template: str | None,
        stop_tokens: list[str],
        mask_history: bool = False,
        turns: str = "together",
        train_template_text: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a template.

        Args:
            template: a Jinja template; None to use the tokenizer's own.
            stop_tokens: tokens that end an assistant turn.
            mask_history: whether only the last assistant turn with a weight is trained.
            turns: whether a conversation is rendered once, with all turns `together`, or once for
                `each` trained one, up to there.
            train_template_text: whether empty reasoning in front of an answer is trained.
            variables: of the template.

        Raises:
            UserError: if there is no template, or it doesn't use a variable.
        """
        try:
            # A tokenizer can have several templates, one of them for tools.
            self._plain = tokenizer.get_chat_template(template)
            self._with_tools = tokenizer.get_chat_template(template, tools=[{}])
        except ValueError as error:
            raise missing_template_error() from error
        self._special_tokens = tokenizer.special_tokens_map
        self._stops = stop_tokens
        self._mask_history = mask_history
        self._turns = turns
        self._train_template_text = train_template_text
        self._variables = dict(variables or {})
        if unused := unused_variables(self._variables, self._plain + self._with_tools):
            raise unused_variable_error("data", unused)
        self._specials = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]

    def renderings(self, document: Document) -> list[RenderedChat]:
        """Render a conversation once, or once for each trained turn; see `render`."""
        if self._turns == "together":
            return [self.render(document)]
        numbers = trained_answers(messages_of(document))
        if self._mask_history:
            numbers = numbers[-1:]
        return [self.render(answer_alone(document, number)) for number in numbers]

    def render(self, document: Document) -> RenderedChat:
        """Render a whole conversation.

        Of what the template adds to an answer, only what the model has to write to reach it is
        trained, but no empty reasoning, unless `train_template_text` is set.

        Raises:
            RowError: if the template fails, or leaves out an assistant message, or a part of the
                last trained one.
            UserError: if no stop token is trained after an assistant message.
        """
        messages, tools = messages_of(document), tools_of(document)
        render = partial(self.text, tools=tools)
        numbers = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        # Of earlier answers that have rows of their own, the places of the contents do.
        earlier = numbers[:-1] if self._turns == "each" else []
        answers = numbers[len(earlier) :]
        if _GENERATION.search(self._with_tools if tools else self._plain):
            # Between `{% generation %}` and `{% endgeneration %}`.
            text, spans = self._render(messages, tools, return_assistant_tokens_mask=True)
            for number in numbers:
                content_span(render, messages, number, text)  # raises if the message is left out
            if len(spans) > len(numbers):
                spans = _joined(spans)
            if len(spans) != len(numbers):
                raise RowError(
                    f"the chat template marks {len(spans)} assistant turns, "
                    f"expected {len(numbers)}",
                    "fix data.chat_template or remove the row",
                )
            turns = [
                self._tagged_turn(render, messages, number, text, span)
                for number, span in zip(answers, spans[len(earlier) :], strict=True)
            ]
        else:
            text = render(messages)
            turns = [self._turn(render, messages, number, text) for number in answers]
        if not text[turns[-1].start : turns[-1].end].rstrip().endswith(tuple(self._stops)):
            raise self._missing_stop_error()
        weights = [messages[number].get("weight", 1) for number in answers]
        trained_turns = [(n, turn) for n, turn, w in zip(answers, turns, weights, strict=True) if w]
        if self._mask_history:
            trained_turns = trained_turns[-1:]
        for number, turn in trained_turns[-1:]:
            _check_whole(number, turn, is_last=number + 1 == len(messages))
        places = [content_span(render, messages, number, text) for number in earlier]
        places += [(turn.start, turn.end) for turn in turns]
        others, some_left_out = other_messages(render, messages, text)
        alterations = Counter(chain.from_iterable(turn.alterations for _, turn in trained_turns))
        alterations["answers", ""] = len(trained_turns)
        alterations["earlier", ""] = sum(
            _differs_alone(render, messages[: number + 1], text[: turn.end])
            for number, turn in trained_turns
            if messages[number + 1 :]
        )
        if some_left_out:
            alterations["messages", ""] = 1
        if tools and render_or_none(self.text, messages) == text:
            alterations["tools", ""] = 1
        return RenderedChat(
            text,
            [(turn.start, turn.end) for _, turn in trained_turns],
            [*(("assistant", start, end) for start, end in places), *others],
            +alterations,
            frozenset(turn.start for _, turn in trained_turns if turn.has_prompt),
        )

    def prompt(self, document: Document) -> tuple[str, str]:
        """The conversation before the last trained turn, and the assistant's text in that turn.

        The text excludes the stop token, as generated continuations do.
        """
        messages = messages_of(document)
        last = trained_answers(messages)[-1]
        text = self.before_answer(messages[:last], tools_of(document))
        rendered = self.renderings(document)[-1]
        start, end = rendered.spans[-1]
        stop = rf"({'|'.join(map(re.escape, self._stops))})\s*$"
        return text, re.sub(stop, "", rendered.text[start:end])

    def left_out(self, document: Document) -> list[str]:
        """The parts of the messages' text and reasoning that the rendered text doesn't have."""
        return left_out(partial(self.text, tools=tools_of(document)), messages_of(document))

    def before_answer(self, messages: Messages, tools: Any = None) -> str:
        """A conversation up to where the assistant's next text begins.

        Raises:
            RowError: if the template fails.
        """
        return self.text(messages, tools, add_generation_prompt=True)

    def text(self, messages: Messages, tools: Any = None, **options: Any) -> str:
        """A conversation up to the end of its last message.

        Raises:
            RowError: if the template fails.
        """
        return self._render(messages, tools, **options)[0]

    def _render(
        self, messages: Messages, tools: Any, **options: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        template = self._with_tools if tools else self._plain
        renamed = _rename_reasoning(messages, template)
        try:
            return self._render_once(renamed, tools, template, options)
        except RowError:
            filled = [message | {"content": message.get("content") or ""} for message in renamed]
            if filled == renamed:
                raise
            # Some templates take no null as the text beside a tool call.
            return self._render_once(filled, tools, template, options)

    def _render_once(
        self, messages: Messages, tools: Any, template: str, options: dict[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        try:
            # Runs in transformers' sandbox: a template has no access to anything outside it.
            (text,), spans = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=_TODAY + template,
                **{**self._special_tokens, **self._variables, **options},
            )
        # A template's code can raise anything.
        except Exception as error:
            raise RowError(
                f"the chat template fails ({type(error).__name__}: {first_line(error)})",
                "fix data.chat_template or remove the row",
            ) from error
        return text, spans[0] if spans else []

    def _tagged_turn(
        self, render: Render, messages: Messages, number: int, text: str, span: tuple[int, int]
    ) -> Turn:
        """An assistant turn between tags, without what the generation prompt has of it."""
        content_start, content_end = content_span(render, messages, number, text)
        try:
            start = turn_start(render, messages, number, text, (content_start, content_end))
        except RowError:
            start = Start(span[0], span[0])
        begin = max(span[0], start.place) if start.has_prompt else span[0]
        stop = re.search(
            rf"(?:{'|'.join(map(re.escape, self._stops))})(?=\s*$)", text[slice(*span)]
        )
        end = span[0] + stop.end() if stop else span[1]
        start = replace(start, place=begin)
        return self._turn_of(render, messages, number, text, start, content_start, content_end, end)

    def _turn(self, render: Render, messages: Messages, number: int, text: str) -> Turn:
        """An assistant turn that the template doesn't mark."""
        content_start, content_end = content_span(render, messages, number, text)
        start = turn_start(render, messages, number, text, (content_start, content_end))
        end = self._end(render, messages, number, text, content_end)
        return self._turn_of(render, messages, number, text, start, content_start, content_end, end)

    def _end(
        self, render: Render, messages: Messages, number: int, text: str, content_end: int
    ) -> int:
        """The end of the stop token of a turn, in characters."""
        following = messages[number + 1 :]
        limit = content_span(render, messages, number + 1, text)[0] if following else len(text)
        # A tool call may have closing text between its arguments and the stop token.
        between = r"(?s:.*?)" if messages[number].get("tool_calls") else r"\s*"
        # Earlier turns may end with a different token from the last.
        for ends in (self._stops, self._specials):
            end = re.compile(f"{between}(?:{'|'.join(map(re.escape, ends))})")
            if match := end.match(text, content_end, limit):
                return match.end()
        if following and following[0]["role"] == "assistant":
            return content_end
        raise self._missing_stop_error()

    def _turn_of(
        self,
        render: Render,
        messages: Messages,
        number: int,
        text: str,
        start: Start,
        content_start: int,
        content_end: int,
        end: int,
    ) -> Turn:
        """A turn, with what the template does to its answer."""
        message = messages[number]
        begin = start.place
        if not self._train_template_text:
            begin = start_behind_reasoning(render, messages, number, text, begin, content_start)
        alterations = (
            {("untrained", shorten(text[start.place : begin]))} if begin > start.place else set()
        )
        # Text before a call or reasoning belongs to it.
        text_before = squeeze(text[begin:content_start])
        plain = not message.get("tool_calls") and not message.get("reasoning_content")
        if plain and text_before and text_before not in squeeze(message["content"] or ""):
            alterations.add(("trained", shorten(text[begin:content_start])))
        if start.prompt_end:
            alterations.add(("prompt", shorten(start.prompt_end)))
        kind, lost_text = alteration(
            render, messages, number, text[start.header : content_end], text[begin:content_end]
        )
        if kind:
            alterations.add((kind, ""))
        has_prompt = start.has_prompt and begin == start.place
        return Turn(begin, end, frozenset(alterations), lost_text, has_prompt)

    def _missing_stop_error(self) -> UserError:
        return UserError(
            "data.chat_template",
            "with this template, assistant messages are trained without a stop token "
            f"({' or '.join(self._stops)}) after them",
            "add {{ eos_token }} after each assistant message, and before {% endgeneration %} if "
            "the template has it",
        )


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of which those side by side are one, such as a turn's and the last token's."""
    joined = spans[:1]
    for start, end in spans[1:]:
        if start == joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _differs_alone(render: Render, messages: Messages, text: str) -> bool:
    """Whether an answer, or what is in front of it, has another text where it is the last turn."""
    alone = render_or_none(render, messages)
    return alone is not None and not alone.startswith(text)


def _check_whole(number: int, turn: Turn, is_last: bool) -> None:
    """Check that the last trained answer, which may be the last message, is trained as a whole."""
    if turn.lost_text:
        remedy = "set a data.chat_template that renders it, or remove it from the row"
        raise RowError(
            f"the chat template leaves out {turn.lost_text.strip()[:40]!r} of message "
            f"{number + 1}, the last that is trained",
            remedy if is_last else f"set data.turns: each, {remedy}",
        )


def _rename_reasoning(messages: Messages, template: str) -> Messages:
    """The messages with their reasoning under the name that the template reads."""
    if "reasoning_content" in template:
        return messages
    # gpt-oss has the first.
    names = [name for name in ("thinking", "reasoning") if name in template]
    return [
        message | dict.fromkeys(names, message["reasoning_content"])
        if message.get("reasoning_content")
        else message
        for message in messages
    ]
