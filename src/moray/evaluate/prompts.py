"""Prompts out of held-out documents, and what really follows them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moray.corpus.document import Document, RowError
from moray.errors import UserError
from moray.tokens.encode import Encoder

# Some leave no room for a continuation.
_DOCUMENTS_A_SAMPLE = 16


@dataclass(frozen=True)
class Prompt:
    """A prompt, and what is behind it in the document that it was taken from.

    Attributes:
        text: the prompt.
        tokens: as training saw it, the document's first token included.
        reference: the text behind it.
    """

    text: str
    tokens: list[int]
    reference: str


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
        documents: conversations, of which the assistant's last turn is left out; or with
            `prompt` and `completion`; or with `text`, which is cut into windows.
        encoder: of the run.
        model_length: tokens that the model can attend to.
        num_samples: prompts to draw; fewer if there are no more.
        prompt_length: tokens of a window that serve as its prompt.
        max_new_tokens: room for the continuation.
        seed: of the draw.

    Raises:
        UserError: if no prompt leaves room.
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
            f"got {max_new_tokens}, expected room for a prompt in {model_length} tokens",
            "lower it, or generate.prompt_tokens",
        )
    drawn = np.random.default_rng(seed).permutation(len(prompts))[:num_samples]
    return [prompts[index] for index in sorted(drawn)]


def _drawn(documents: Iterable[Document], count: int, seed: int) -> list[Document]:
    """Documents drawn in one pass, in their order; all of them if there are no more.

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
    if "messages" in document:
        try:
            text, reference = encoder.template().prompt(document)
        except RowError:
            # Where the assistant speaks first, many templates fail on the nothing before it.
            return []
        return [Prompt(text, encoder.tokens_of(text), reference)]
    if "prompt" in document:
        text = document["prompt"]
        return [Prompt(text, encoder.prompt_tokens(text), document["completion"])]
    text = document["text"]
    encoding = encoder.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    # Cut from the text itself: decoding needn't give it back, least of all parts of a character.
    ends = [0, *(end for _, end in encoding.offsets)]
    prompts = []
    for start in range(0, max(1, len(encoding) - length), length + reference_length):
        middle = min(start + length, len(encoding))
        end = min(middle + reference_length, len(encoding))
        prompt, reference = text[ends[start] : ends[middle]], text[ends[middle] : ends[end]]
        prompts.append(Prompt(prompt, encoder.prompt_tokens(prompt), reference))
    return prompts
