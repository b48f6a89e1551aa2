"""Rendering conversations with a chat template, and finding the assistant's turns in the text.

A template is a program, so the position of a message in its output can't be read off the template.
Instead, the conversation is rendered again with another text in place of the message; the part of
the output that changes is the message. Comparing the renderings of prefixes wouldn't be enough:
many templates render earlier turns differently from the last.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby, pairwise
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from moray.corpus.dataset import Document, RowError, messages_of, tools_of
from moray.errors import UserError, first_line

Messages = list[dict[str, Any]]
Render = Callable[..., str]
"""Takes messages, and whether to add the prompt for the assistant's next turn."""

# Only letters and digits, which no template changes.
STAND_IN = "5zQmorayStandsInHere5zQ"

_MARK = "mark the assistant's turns with {% generation %} in data.chat_template"

# Words as groups. Templates look for tags, such as <think>, [/THINK] or <|channel|>.
_TAG_OR_WORD = re.compile(r"[<\[◁]\S*?[>\]▷]|(\w+)")

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

# A fixed date for templates that ask for today's, so that tokens don't depend on the day; it is the
# default of Llama's templates. A macro, because transformers only passes its own functions.
_TODAY = (
    "{% macro strftime_now(form) %}"
    "{{ '2024-07-26' if form == '%Y-%m-%d' else '26 Jul 2024' }}"
    "{% endmacro %}"
)


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and where its trained assistant turns are, including stop tokens.

    Spans have start and end, in characters.
    """

    text: str
    spans: list[tuple[int, int]]


def no_chat_template() -> UserError:
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
    ) -> None:
        """Load a template.

        Args:
            template: a Jinja template; None to use the tokenizer's own.
            stop_tokens: tokens that end an assistant turn.
            mask_history: whether only the last assistant turn with a weight is trained.

        Raises:
            UserError: if there is no template.
        """
        try:
            # A tokenizer can have several templates, one of them for tools.
            self._plain = tokenizer.get_chat_template(template)
            self._with_tools = tokenizer.get_chat_template(template, tools=[{}])
        except ValueError as error:
            raise no_chat_template() from error
        self._special_tokens = tokenizer.special_tokens_map
        self._stops = stop_tokens
        self._mask_history = mask_history
        self._specials = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]

    def render(self, document: Document) -> Rendered:
        """Render a whole conversation.

        Raises:
            RowError: if the template fails, or leaves out an assistant message.
            UserError: if no stop token is trained after an assistant message.
        """
        messages, tools = messages_of(document), tools_of(document)
        render = partial(self.text, tools=tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        if _GENERATION.search(self._with_tools if tools else self._plain):
            # Between `{% generation %}` and `{% endgeneration %}`.
            text, spans = self._rendered(messages, tools, return_assistant_tokens_mask=True)
            for number in turns:
                said_at(render, messages, number, text)  # raises if the message is left out
            if len(spans) != len(turns):
                raise RowError(
                    f"the chat template marks {len(spans)} assistant turns, expected {len(turns)}",
                    "fix data.chat_template or remove the row",
                )
        else:
            text = render(messages)
            spans = [self._turn(render, messages, number, text) for number in turns]
        if not text[slice(*spans[-1])].rstrip().endswith(tuple(self._stops)):
            raise self._without_stop()
        weights = [messages[number].get("weight", 1) for number in turns]
        trained = [span for span, weight in zip(spans, weights, strict=True) if weight]
        return Rendered(text, trained[-1:] if self._mask_history else trained)

    def prompt(self, document: Document) -> tuple[str, str]:
        """The conversation before the last trained turn, and the assistant's text in that turn.

        The text excludes the stop token, as generated continuations do.
        """
        messages = messages_of(document)
        trained = (
            message["role"] == "assistant" and message.get("weight", 1) for message in messages
        )
        last = max(number for number, weight in enumerate(trained) if weight)
        text = self.before_answer(messages[:last], tools_of(document))
        rendered = self.render(document)
        start, end = rendered.spans[-1]
        stop = rf"({'|'.join(map(re.escape, self._stops))})\s*$"
        return text, re.sub(stop, "", rendered.text[start:end])

    def left_out(self, document: Document) -> list[str]:
        """The parts of the messages' text and reasoning that the rendered text doesn't have.

        They are whole words: each is rendered with a mark behind it, and some marks are missing.
        None are found if the template fails on the marks.
        """
        messages, numbers = messages_of(document), count()
        texts: list[list[tuple[int, str]]] = []
        for message in messages:
            for key in ("reasoning_content", "content"):
                if text := message.get(key):
                    message[key], words = _marked(text, numbers)
                    texts.append(words)
        rendered = _or_none(partial(self.text, tools=tools_of(document)), messages)
        if rendered is None:
            return []
        there = set(map(int, re.findall(rf"{STAND_IN}(\d+)z", rendered)))
        return [
            "".join(part for _, part in parts)
            for words in texts
            for is_there, parts in groupby(words, lambda word: word[0] in there)
            if not is_there
        ]

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
        return self._rendered(messages, tools, **options)[0]

    def _rendered(
        self, messages: Messages, tools: Any, **options: Any
    ) -> tuple[str, list[tuple[int, int]]]:
        try:
            # Runs in transformers' sandbox: a template has no access to anything outside it.
            (text,), spans = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=_TODAY + (self._with_tools if tools else self._plain),
                **{**self._special_tokens, **options},
            )
        # A template's code can raise anything.
        except Exception as error:
            raise RowError(
                f"the chat template fails ({type(error).__name__}: {first_line(error)})",
                "fix data.chat_template or remove the row",
            ) from error
        return text, spans[0] if spans else []

    def _turn(self, render: Render, messages: Messages, number: int, text: str) -> tuple[int, int]:
        """Start and end of an assistant turn in the text, in characters."""
        said_from, said_to = said_at(render, messages, number, text)
        start = turn_start(render, messages, number, text, said_from)
        following = messages[number + 1 :]
        bound = said_at(render, messages, number + 1, text)[0] if following else len(text)
        # A tool call may have closing text between its arguments and the stop token.
        between = r"(?s:.*?)" if messages[number].get("tool_calls") else r"\s*"
        # Earlier turns may end with a different token from the last.
        for ends in (self._stops, self._specials):
            end = re.compile(f"{between}(?:{'|'.join(map(re.escape, ends))})")
            if found := end.match(text, said_to, bound):
                return start, found.end()
        if following and following[0]["role"] == "assistant":
            return start, said_to
        raise self._without_stop()

    def _without_stop(self) -> UserError:
        return UserError(
            "data.chat_template",
            "with this template, assistant messages are trained without a stop token "
            f"({' or '.join(self._stops)}) after them",
            "add {{ eos_token }} after each assistant message, and before {% endgeneration %} if "
            "the template has it",
        )


def said_at(render: Render, messages: Messages, number: int, text: str) -> tuple[int, int]:
    """Find the start and end, in characters, of a message's content in the rendered text.

    For a tool call, only the arguments count, because the tool's answer may repeat the name. In
    the last turn, reasoning is part of the content.

    Raises:
        RowError: if the template leaves the message out.
    """
    starts, ends = [], []
    for part, other in _others(messages, number):
        changed = render(other)
        if STAND_IN not in changed:
            raise RowError(
                f"the chat template leaves out the {part} of message {number + 1}",
                "set a data.chat_template that renders it, or remove it from the row",
            )
        # The content may begin or end with the same characters as its stand-in.
        start = _common(text, changed.partition(STAND_IN)[0])
        starts.append(start)
        ends.append(len(text) - _common(text[start:][::-1], changed.rpartition(STAND_IN)[2][::-1]))
    return min(starts), max(ends)


def turn_start(render: Render, messages: Messages, number: int, text: str, latest: int) -> int:
    """Find where the assistant's part of a turn starts in the rendered text, in characters.

    It starts after the generation prompt, if the text contains it; otherwise, where the text
    changes if the assistant's message is replaced; otherwise, after the preceding messages. It is
    at most `latest`, where the message's content starts.

    Raises:
        RowError: if the start can't be determined.
    """
    before = _or_none(render, messages[:number])
    prompt = _or_none(render, messages[:number], add_generation_prompt=True)
    if prompt != before and prompt and text.startswith(prompt) and len(prompt) <= latest:
        return len(prompt)
    plain = [dict(message) for message in messages]
    plain[number] = {"role": "assistant", "content": STAND_IN}
    changed = _or_none(render, plain)
    if changed and changed.count(STAND_IN) == 1:
        return min(latest, _common(text, changed.partition(STAND_IN)[0]))
    if before and text.startswith(before) and len(before) <= latest:
        return len(before)
    raise RowError(f"can't tell where the chat template begins message {number + 1}", _MARK)


def _others(messages: Messages, number: int) -> list[tuple[str, Messages]]:
    """Copies of the conversation, each with one part of a message replaced."""
    message = messages[number]
    others = []
    if message.get("content") or not message.get("tool_calls"):
        other = copy.deepcopy(messages)
        other[number]["content"] = STAND_IN
        others.append(("text", other))
    if message.get("tool_calls"):
        # Only the arguments change: templates check the names and the number of calls.
        other = copy.deepcopy(messages)
        for call in other[number]["tool_calls"]:
            call["function"]["arguments"] = {STAND_IN: STAND_IN}
        others.append(("tool calls", other))
    # Templates leave out reasoning from before the last question, as in generation.
    answered = any(after["role"] in ("user", "assistant") for after in messages[number + 1 :])
    if message.get("reasoning_content") and not answered:
        other = copy.deepcopy(messages)
        other[number]["reasoning_content"] = STAND_IN
        others.append(("reasoning", other))
    return others


def _marked(text: str, numbers: Iterator[int]) -> tuple[str, list[tuple[int, str]]]:
    """A text with a mark behind each word, and its parts, of a word each, with their numbers."""
    starts = [found.start() for found in _TAG_OR_WORD.finditer(text) if found[1]]
    parts = [text[start:end] for start, end in pairwise([0, *starts[1:], len(text)])]
    words = [(next(numbers), part) for part in parts if starts]
    marks = (f"{STAND_IN}{number}z" for number, _ in words)
    marked = _TAG_OR_WORD.sub(lambda found: found[0] + (next(marks) if found[1] else ""), text)
    return marked, words


def _or_none(render: Render, messages: Messages, **options: Any) -> str | None:
    """Part of a conversation as text; None if the template refuses it."""
    try:
        return render(messages, **options)
    except RowError:
        return None


def _common(one: str, other: str) -> int:
    """Length of the common prefix of two texts."""
    if one.startswith(other):
        return len(other)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
