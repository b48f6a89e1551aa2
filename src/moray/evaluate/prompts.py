"""Prompts from held-out documents, and the text that follows them there."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moray.corpus.dataset import Document, RowError, group_of
from moray.errors import UserError
from moray.tasks.language.encode import Encoder

# More than one, because some documents leave no room for a continuation.
_DOCUMENTS_A_SAMPLE = 16


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the text that follows it in its document.

    Attributes:
        tokens: its tokens as in training, including the BOS token, if the tokenizer has one.
        group: what its document shares with others, see `group_of`.
    """

    text: str
    tokens: list[int]
    reference: str
    group: str


def choose_prompts(
    documents: Iterable[Document],
    encoder: Encoder,
    model_length: int,
    num_samples: int,
    prompt_length: int,
    max_new_tokens: int,
    seed: int,
) -> list[Prompt]:
    """Draw prompts that leave room for a continuation, in the order of their documents.

    Args:
        documents: conversations, whose last trained assistant turn becomes the reference; or
            documents with `prompt` and `completion`; or with `text`, which is cut into windows.
        model_length: maximum number of tokens that the model takes.
        prompt_length: tokens at the start of a window that form its prompt.
        max_new_tokens: tokens to leave for the continuation.

    Raises:
        UserError: if no prompt leaves enough room.
    """
    prompts = [
        prompt
        for document in _drawn(documents, _DOCUMENTS_A_SAMPLE * num_samples, seed)
        for prompt in _prompts_of(document, encoder, prompt_length, max_new_tokens)
        if len(prompt.tokens) + max_new_tokens <= model_length
    ]
    if not prompts:
        raise UserError(
            "generate.max_new_tokens",
            f"got {max_new_tokens}, which leaves no room for a prompt in the model's "
            f"{model_length} tokens",
            "lower it, or generate.prompt_tokens",
        )
    drawn = np.random.default_rng(seed).permutation(len(prompts))[:num_samples]
    return [prompts[index] for index in sorted(drawn)]


def _drawn(documents: Iterable[Document], count: int, seed: int) -> list[Document]:
    """Draw `count` documents in one pass and keep their order; all of them if there are fewer.

    Source: Vitter, "Random sampling with a reservoir", 1985 (algorithm R).
    """
    draw = np.random.default_rng([seed, 1])
    drawn: list[tuple[int, Document]] = []
    for number, document in enumerate(documents):
        if number < count:
            drawn.append((number, document))
        elif (slot := int(draw.integers(number + 1))) < count:
            drawn[slot] = (number, document)
    return [document for _, document in sorted(drawn, key=lambda pair: pair[0])]


def _prompts_of(
    document: Document, encoder: Encoder, length: int, reference_length: int
) -> list[Prompt]:
    group = group_of(document)
    if "messages" in document:
        try:
            text, reference = encoder.template().prompt(document)
        except RowError:
            # If the assistant has the first turn, many templates fail on the empty prompt.
            return []
        return [Prompt(text, encoder.tokens_of(text), reference, group)]
    if "prompt" in document:
        text = document["prompt"]
        return [Prompt(text, encoder.prompt_tokens(text), document["completion"], group)]
    text = document["text"]
    encoding = encoder.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    # Cut from the text itself: decoding may not restore it, especially not parts of a character.
    ends = [0, *(end for _, end in encoding.offsets)]
    prompts = []
    for start in range(0, max(1, len(encoding) - length), length + reference_length):
        middle = min(start + length, len(encoding))
        end = min(middle + reference_length, len(encoding))
        prompt, reference = text[ends[start] : ends[middle]], text[ends[middle] : ends[end]]
        prompts.append(Prompt(prompt, encoder.prompt_tokens(prompt), reference, group))
    return prompts
