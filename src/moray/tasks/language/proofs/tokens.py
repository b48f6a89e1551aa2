"""Stored tokens compared with what the tokenizer alone makes of the same documents.

Nothing here is shared with what made the tokens, so that a mistake there shows here.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import AutoTokenizer, GenerationConfig

from moray.corpus.dataset import Document
from moray.tasks.language.proofs.answers import Piece

# The day that templates get as today's.
_TODAY = (
    "{% macro strftime_now(form) %}{% if form == '%Y-%m-%d' %}2024-07-26{% else %}26 Jul 2024"
    "{% endif %}{% endmacro %}"
)
# A generation prompt can end in it; then an answer that begins with it is trained without it.
_OPENING_TAG = re.compile(r"^\s*<[^<>]+>\s*")
# Characters of a text that are shown.
_SHOWN = 60


@dataclass(frozen=True)
class Difference:
    """A difference in one document.

    Attributes:
        document: its place among those that were compared.
        kind: `tokens`: others than the tokenizer's. `missing`: text of an answer that isn't
            trained. `stop`: no stop token is trained after an answer. `added`: trained text that
            is no answer's, such as a header. `white_space`: only that of an answer.
        stored: the text there.
        expected: the text that should be there.
    """

    document: int
    kind: Literal["tokens", "missing", "stop", "added", "white_space"]
    stored: str
    expected: str


def compare_tokens(
    folder: Path,
    documents: Sequence[Document],
    pieces: Sequence[Sequence[Piece]],
    chat_template: str | None = None,
    bos: Literal["auto"] | bool = "auto",
    only_last: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[Difference]:
    """Compare the stored pieces of documents with the tokenizer's own call, or chat template.

    Args:
        folder: the tokenizer's, and of the model's `generation_config.json`.
        documents: texts, prompts with completions, or conversations; halves of pairs.
        pieces: of each document, in their order; pieces without trained tokens can be missing, and
            so can the end of a document that was cut.
        chat_template: the run's, instead of the tokenizer's own.
        bos: `data.bos`.
        only_last: whether only the last answer of a conversation is trained.
        variables: of the chat template.
    """
    plain = Plain(folder, chat_template, bos, variables or {})
    return differences_of(plain, zip(documents, pieces, strict=True), only_last)


def differences_of(
    plain: "Plain", pairs: Iterable[tuple[Document, Sequence[Piece]]], only_last: bool
) -> list[Difference]:
    """The differences in documents with their pieces; see `compare_tokens`."""
    return [
        difference
        for number, (document, parts) in enumerate(pairs)
        for difference in plain.differences(number, document, parts, only_last)
    ]


class Plain:
    """A tokenizer by itself."""

    def __init__(
        self,
        folder: Path,
        chat_template: str | None,
        bos: Literal["auto"] | bool,
        variables: Mapping[str, Any],
    ) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.template = chat_template
        self.variables = variables
        token, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if bos == "auto":
            bos = token is not None and (
                token == eos or self.tokenizer("a")["input_ids"][0] == token
            )
        self.opening = [token] if bos else []
        stops = [eos]
        if (folder / "generation_config.json").is_file():
            stops += np.ravel(GenerationConfig.from_pretrained(folder).eos_token_id or []).tolist()
        # Earlier turns can end in another special token than the last.
        added = self.tokenizer.added_tokens_decoder.items()
        others = {token for token, word in added if word.special}
        self.stops = {*stops, *(others - {self.tokenizer.unk_token_id})}
        self.stop_texts = [_squeeze(self.tokenizer.decode([stop])) for stop in self.stops]

    def differences(
        self, number: int, document: Document, pieces: Sequence[Piece], only_last: bool
    ) -> Iterator[Difference]:
        forms = list(self.forms(document))
        places = ((form, _place(form, pieces)) for form in forms)
        tokens, placement = next((both for both in places if both[1]), (forms[0], None))
        if placement is None:
            stored = list(chain.from_iterable(ids.tolist() for ids, _ in pieces))
            pairs = enumerate(zip(stored, tokens, strict=False))
            at = next((place for place, (one, other) in pairs if one != other), 0)
            yield Difference(number, "tokens", self._text(stored[at:]), self._text(tokens[at:]))
            return
        runs = [
            [token for _, token in run]
            for trained, run in groupby(zip(placement.mask, tokens, strict=True), itemgetter(0))
            if trained
        ]
        # A document that was cut ends anywhere.
        if not placement.is_whole and not (runs and runs[-1][-1] in self.stops):
            return
        if "messages" in document:
            everything = self.tokenizer.decode(tokens)
            yield from self._conversation(number, document, everything, runs, only_last)
        else:
            yield from self._completion(number, document, list(chain.from_iterable(runs)))

    def forms(self, document: Document) -> Iterator[list[int]]:
        """The tokens that a document can have: of a conversation, by how templates take nulls."""
        if "messages" in document:
            yield from self._conversations(document)
            return
        prompt = document.get("prompt", "")
        text = document.get("text", document.get("completion", ""))
        for ids in ([*self._ids(prompt), *self._ids(text)], self._ids(prompt + text)):
            opening = [] if ids[:1] == self.opening else self.opening
            yield [*opening, *self._without_stop(ids), self.tokenizer.eos_token_id]

    def _conversations(self, document: Document) -> Iterator[list[int]]:
        messages = json.loads(document["messages"])
        tools = json.loads(document.get("tools") or "null")
        filled = [message | {"content": message.get("content") or ""} for message in messages]
        failure: Exception | None = None
        variants = []
        for form in (messages, filled):
            # gpt-oss has another name for reasoning.
            thinking = [
                message | {"thinking": thought}
                if (thought := message.get("reasoning_content"))
                else message
                for message in form
            ]
            for variant in (form, thinking):
                try:
                    text = self.render(variant, tools)
                except Exception as error:  # a template's code can raise anything
                    failure = error
                else:
                    variants.append(self._ids(text))
        if failure and not variants:
            raise failure
        yield from variants

    def render(self, messages: list[dict[str, Any]], tools: Any, **options: Any) -> str:
        """The chat template's own text."""
        template = _TODAY + self.tokenizer.get_chat_template(self.template, tools)
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tools,
                chat_template=template,
                tokenize=False,
                **{**self.variables, **options},
            )
        )

    def _completion(
        self, number: int, document: Document, trained: list[int]
    ) -> Iterator[Difference]:
        """Differences in a text or a completion that is there to its end."""
        expected = document.get("text", document.get("completion", ""))
        if not trained or trained[-1] != self.tokenizer.eos_token_id:
            yield Difference(number, "stop", self._text(trained[-8:]), self.tokenizer.eos_token)
            return
        # The first token of a text is only trained if a BOS token is in front of it.
        ids = self._ids(expected)
        has_own = bool(self.opening) and ids[:1] == self.opening
        first = 0 if document.get("prompt") or (self.opening and not has_own) else 1
        ids = self._without_stop(ids)
        if trained[:-1] == ids[first:]:
            return
        expected = expected.strip().removesuffix(str(self.tokenizer.eos_token))
        stored = self.tokenizer.decode(trained[:-1], clean_up_tokenization_spaces=False)
        if stored.strip() not in (expected.strip(), self.tokenizer.decode(ids).strip()):
            kind: Literal["added", "missing"] = "added" if expected in stored else "missing"
            yield Difference(number, kind, stored[:_SHOWN], expected[:_SHOWN])
        elif stored != expected and stored != f" {expected}":
            yield Difference(number, "white_space", stored[:_SHOWN], expected[:_SHOWN])

    def _without_stop(self, ids: list[int]) -> list[int]:
        """The tokens of a text; a stop token that it ends in is the document's."""
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id else ids

    def _conversation(
        self,
        number: int,
        document: Document,
        everything: str,
        runs: list[list[int]],
        only_last: bool,
    ) -> Iterator[Difference]:
        """Differences in the answers: their texts must be in the trained text, in their order."""
        answers = [
            message
            for message in json.loads(document["messages"])
            if message["role"] == "assistant" and message.get("weight", 1)
        ]
        for run in runs:
            if run[-1] not in self.stops:
                yield Difference(number, "stop", self._text(run[-8:]), self.tokenizer.eos_token)
        if only_last:
            answers = answers[-1:]
        # The trained texts without their stop tokens.
        exact = [self.tokenizer.decode(run[:-1]).strip(" ") for run in runs]
        text, place, has_format = _squeeze("".join(map(self.tokenizer.decode, runs))), 0, False
        for message in answers:
            # Text that templates put around calls and reasoning is a part of them.
            has_format |= bool(message.get("tool_calls") or message.get("reasoning_content"))
            for part in _parts(message):
                own = part
                if _squeeze(own) not in text[place:] and own in everything:
                    own = _OPENING_TAG.sub("", own)
                if (at := text.find(_squeeze(own), place)) < 0:
                    yield Difference(number, "missing", text[place : place + _SHOWN], part[:_SHOWN])
                    continue
                if at > place and not has_format:
                    yield Difference(number, "added", text[place:at][:_SHOWN], "")
                if not has_format and own.strip(" ") not in exact and at == place:
                    yield Difference(number, "white_space", repr(exact)[:_SHOWN], part[:_SHOWN])
                place = at + len(_squeeze(own))
            has_format = bool(message.get("tool_calls"))
            place = len(text) - len(self._behind_stop(text[place:]))
        if place < len(text) and not has_format:
            yield Difference(number, "added", text[place:][:_SHOWN], "")

    def _behind_stop(self, text: str) -> str:
        """A text without the stop token that it begins with."""
        return next(
            (text.removeprefix(stop) for stop in self.stop_texts if text.startswith(stop)), text
        )

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens)))[:_SHOWN]


@dataclass(frozen=True)
class _Placement:
    """The trained tokens of a document by its pieces, and whether they reach its end."""

    mask: list[bool]
    is_whole: bool


def _place(tokens: list[int], pieces: Sequence[Piece]) -> _Placement | None:
    """The pieces in their document; None if a piece isn't of these tokens.

    Each begins with the last token of the one before, or further behind.
    """
    mask, start = [False] * len(tokens), 0
    for ids, trained in pieces:
        part = ids.tolist()
        places = range(start, len(tokens) - len(part) + 1)
        place = next((n for n in places if tokens[n : n + len(part)] == part), None)
        if place is None:
            return None
        for offset, is_trained in enumerate(trained.tolist()):
            mask[place + offset] |= is_trained
        start = place + len(part) - 1
    return _Placement(mask, start == len(tokens) - 1)


def _parts(message: dict[str, Any]) -> Iterator[str]:
    """The texts of an answer, in the order in which templates have them."""
    for key in ("reasoning_content", "content"):
        if text := message.get(key):
            yield text
    for call in message.get("tool_calls") or []:
        yield from (
            str(value)
            for value in call["function"]["arguments"].values()
            if isinstance(value, str) and value.isalnum()
        )


def _squeeze(text: str) -> str:
    return "".join(text.split())
