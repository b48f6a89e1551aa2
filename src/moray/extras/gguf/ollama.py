"""Ollama's Modelfile, with the chat template that the model was trained with.

Ollama writes prompts with templates of Go, not of Jinja. Most chat templates put fixed text around
each message, which can be found by rendering conversations, and written in Go.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moray.corpus.dataset import RowError
from moray.tasks.language.turns import Messages

Render = Callable[[Messages], str]
"""Renders messages; raises `RowError` if the template refuses them."""

# Nothing that a template changes or contains.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "Csystemc", "Cfirstc", "Canswerc", "Csecondc"


@dataclass(frozen=True)
class TextAround:
    """The fixed text before and after messages, at the beginning, and before the next answer.

    There is none around a system message if the template refuses them.
    """

    opening: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str

    def render(self, messages: Messages) -> str:
        """A conversation up to where the answer begins."""
        parts = (getattr(self, each["role"]) for each in messages)
        texts = (each["content"] for each in messages)
        turns = (before + text + after for (before, after), text in zip(parts, texts, strict=True))
        return self.opening + "".join(turns) + self.answer


def text_around(render: Render, before_answer: Render) -> TextAround | None:
    """The fixed text that a template puts around messages; None if it does anything else.

    `before_answer` renders them up to where the assistant's answer begins.
    """
    user, answer, second = (
        {"role": role, "content": text}
        for role, text in (("user", _FIRST), ("assistant", _ANSWER), ("user", _SECOND))
    )
    system = {"role": "system", "content": _SYSTEM}
    try:
        before_user, after_user = _split(render([user]), _FIRST)
        _, between, after_answer = _split(render([user, answer]), _FIRST, _ANSWER)
        *_, before_second, _ = _split(render([user, answer, second]), _FIRST, _ANSWER, _SECOND)
        prompt = before_answer([user])
    except (RowError, ValueError):
        return None
    each_user = before_second.removeprefix(after_answer)
    opening = before_user.removesuffix(each_user)
    texts = TextAround(
        opening,
        _around_system(render, [system, user], opening, each_user),
        (each_user, after_user),
        (between.removeprefix(after_user), after_answer),
        prompt.removeprefix(before_user + _FIRST + after_user),
    )
    conversation = [system, user, answer, second] if texts.system else [user, answer, second]
    is_all = all(
        texts.render(messages) == before_answer(messages) for messages in ([user], conversation)
    )
    # A Modelfile has no way to write three quotes.
    return texts if is_all and '"""' not in repr(texts) else None


def _around_system(
    render: Render, messages: Messages, opening: str, before_user: str
) -> tuple[str, str] | None:
    try:
        before, after, _ = _split(render(messages), _SYSTEM, _FIRST)
    except (RowError, ValueError):
        return None
    return before.removeprefix(opening), after.removesuffix(before_user)


def modelfile(weights: str, texts: TextAround | None, bos: str | None, stops: Sequence[str]) -> str:
    """A Modelfile for `ollama create`.

    Args:
        texts: the text around messages; without it, the file has no template.
        bos: text of the token that begins each document, which llama.cpp adds by itself.
    """
    lines = [f"FROM ./{weights}"]
    if texts:
        lines.append(f'TEMPLATE """{_go_template(texts, bos)}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in stops]
    return "\n".join(lines) + "\n"


def _go_template(texts: TextAround, bos: str | None) -> str:
    opening = texts.opening.removeprefix(bos or "")
    roles = {"user": texts.user, "assistant": texts.assistant}
    if texts.system:
        roles["system"] = texts.system
    cases = "{{ else ".join(
        f'if eq .Role "{role}" }}}}{_quote(before)}{{{{ .Content }}}}{_quote(after)}'
        for role, (before, after) in roles.items()
    )
    return (
        f"{_quote(opening)}{{{{ range .Messages }}}}{{{{ {cases}{{{{ end }}}}{{{{ end }}}}"
        f"{_quote(texts.answer)}"
    )


def _quote(text: str) -> str:
    """Text that Go's templates show as it is."""
    return text.replace("{{", '{{ "{{" }}')


def _split(text: str, *marks: str) -> list[str]:
    """The text before, between and after marks; a `ValueError` if one doesn't occur once."""
    parts = []
    for mark in marks:
        before, text = text.split(mark)
        parts.append(before)
    return [*parts, text]
