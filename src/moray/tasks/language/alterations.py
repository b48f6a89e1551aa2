"""Alterations of the answers in a row by a chat template, besides rendering them.

Templates add text to an answer, leave out parts of it, or change its white space. Then the trained
text isn't the row's, which users have to know.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from itertools import count, groupby, pairwise
from typing import Any

from moray.tasks.language.turns import STAND_IN, Messages, Render, render_or_none, squeeze

Alterations = Counter[tuple[str, str]]
"""The number of trained answers with an alteration of a kind, and the template's text, if any.

Kinds: `untrained` and `trained` text of the template in front of an answer; `prompt`, text at the
end of the generation prompt that training doesn't have; `shared`, a first token that begins in
the generation prompt; `left_out` parts of an answer; other `white_space`; `changed` text. And
`answers`, all of them, and the number of conversations of which other `messages`, or the `tools`,
are left out. `cut_prompts`, the number of documents whose answers begin in another piece than their
prompt. Of `prompts` with completions that are tokenised as one text: those with a token of
both, `spanning`.
"""

# Maximum numbers of texts that are counted apart, and of their characters.
_TEXTS = 5
_CHARACTERS = 80

# Words as groups. Templates look for tags, such as <think>, [/THINK] or <|channel|>.
_TAG_OR_WORD = re.compile(r"[<\[◁]\S*?[>\]▷]|(\w+)")


def alteration(
    render: Render, messages: Messages, number: int, turn: str, answer: str
) -> tuple[str, str]:
    """The kind of the worst alteration of an answer's text and reasoning, and what is left out.

    Args:
        turn: what the template makes of the message, with its header.
        answer: the part of it that the model goes on with, without the stop token.

    Returns:
        Two empty texts if the turn has the answer as it is.
    """
    worst = ("", "")
    for key in ("reasoning_content", "content"):
        text = messages[number].get(key) or ""
        # White space in front of it may be the header's.
        if text in answer or (text == text.lstrip() and text in turn):
            continue
        if squeeze(text) in squeeze(turn):
            worst = worst if worst[0] else ("white_space", "")
        elif parts := _left_out_of(render, messages, number, key):
            return "left_out", parts[0]
        elif _is_within(squeeze(answer), squeeze(text)):
            return "left_out", text
        else:
            worst = ("changed", "")
    return worst


def left_out(render: Render, messages: Messages) -> list[str]:
    """The parts of the messages' text and reasoning that the rendered text doesn't have.

    They are whole words: each is rendered with a mark behind it, and some marks are missing. None
    are found if the template fails on the marks.
    """
    keys = ("reasoning_content", "content")
    return _without_marks(render, messages, dict.fromkeys(range(len(messages)), keys))


def summary(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """The alterations of the answers of all splits, for a summary; mostly nothing."""
    total = _total(facts)
    del total["earlier", ""]  # a line of its own
    return "".join(f"; {line}" for line in lines(total))


def cost_of_one_rendering(facts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What is lost where all turns of a conversation are rendered together; None if nothing is."""
    total = _total(facts)
    line = next(lines(total, ("earlier",)), None)
    return line and f"{line}; data.turns: each trains every answer in the form of generation"


def _total(facts: Mapping[str, Mapping[str, Any]]) -> Alterations:
    """The alterations of all splits."""
    total = Alterations()
    for counts in facts.values():
        for kind, entry in counts.get("chat_template", {}).items():
            of_texts = entry if isinstance(entry, Mapping) else {"": entry}
            total.update({(kind, text): number for text, number in of_texts.items()})
    return total


def lines(counts: Alterations, kinds: Container[str] = ()) -> Iterator[str]:
    """The alterations in words, those of most answers first; of some kinds, or of all."""
    for (kind, text), number in counts.most_common():
        if (
            kind in ("answers", "prompts", "spanning")
            or not number
            or (kinds and kind not in kinds)
        ):
            continue
        answers = f"{number:,} of {counts['answers', '']:,} answers"
        yield {
            "untrained": f"the chat template puts {text!r} before {answers}, not trained",
            "trained": f"the chat template puts {text!r} before {answers}, trained with them",
            "prompt": f"in generation, prompts end in {text!r}, which {answers} lack here",
            "left_out": f"the chat template leaves out a part of {answers}",
            "shared": f"the first token of {answers} begins in the text before it",
            "earlier": f"{answers} are trained in another form than generation has, as the chat "
            "template renders earlier turns differently from the last",
            "messages": f"the chat template leaves out messages of {number:,} conversations",
            "tools": f"the chat template leaves out the tools of {number:,} conversations",
            "white_space": f"white space of {answers} is changed",
            "changed": f"the chat template changes the text of {answers}",
        }[kind]


def as_facts(counts: Alterations) -> dict[str, Any]:
    """The alterations as a manifest has them: by kind, and by text where there is one."""
    facts: dict[str, Any] = {}
    for (kind, text), number in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        if not text:
            facts[kind] = number
        elif len(texts := facts.setdefault(kind, {})) < _TEXTS:
            texts[text] = number
    return dict(sorted(facts.items()))


def shorten(text: str) -> str:
    """A text of a template, short enough to tell it apart from others."""
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"


def _left_out_of(render: Render, messages: Messages, number: int, key: str) -> list[str]:
    return _without_marks(render, messages, {number: (key,)})


def _without_marks(
    render: Render, messages: Messages, keys: Mapping[int, tuple[str, ...]]
) -> list[str]:
    numbers = count()
    texts: list[list[tuple[int, str]]] = []
    marked = [dict(message) for message in messages]
    for place, message in enumerate(marked):
        for key in keys.get(place, ()):
            if text := message.get(key):
                message[key], words = _mark_words(text, numbers)
                texts.append(words)
    rendered = render_or_none(render, marked)
    if rendered is None:
        return []
    there = set(map(int, re.findall(rf"{STAND_IN}(\d+)z", rendered)))
    return [
        "".join(part for _, part in parts)
        for words in texts
        for is_there, parts in groupby(words, lambda word: word[0] in there)
        if not is_there
    ]


def _mark_words(text: str, numbers: Iterator[int]) -> tuple[str, list[tuple[int, str]]]:
    """A text with a mark behind each word, and its parts, of a word each, with their numbers."""
    starts = [match.start() for match in _TAG_OR_WORD.finditer(text) if match[1]]
    parts = [text[start:end] for start, end in pairwise([0, *starts[1:], len(text)])]
    words = [(next(numbers), part) for part in parts if starts]
    marks = (f"{STAND_IN}{number}z" for number, _ in words)
    with_marks = _TAG_OR_WORD.sub(lambda match: match[0] + (next(marks) if match[1] else ""), text)
    return with_marks, words


def _is_within(part: str, whole: str) -> bool:
    """Whether the characters of a text are those of another one, in its order, without some."""
    characters = iter(whole)
    return all(character in characters for character in part)
