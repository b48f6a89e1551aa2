"""Prompts out of held-out documents, and what really follows them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from moray.corpus.document import Document
from moray.errors import UserError
from moray.tokens.encode import prompt_tokens


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the text behind it in the document that it was taken from."""

    text: str
    reference: str


def choose_prompts(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerFast,
    model_length: int,
    num_samples: int,
    prompt_length: int,
    max_new_tokens: int,
    seed: int,
) -> list[Prompt]:
    """Draw prompts that leave room for a continuation, in the order of their documents.

    Args:
        documents: with `prompt` and `completion`, or with `text`, which is cut into windows.
        tokenizer: of the model.
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
        for document in documents
        for prompt in _prompts_of(document, tokenizer, prompt_length, max_new_tokens)
        if len(prompt_tokens(tokenizer, prompt.text)) + max_new_tokens <= model_length
    ]
    if not prompts:
        raise UserError(
            "generate.max_new_tokens",
            f"got {max_new_tokens}, expected room for a prompt in {model_length} tokens",
            "lower it, or generate.prompt_tokens",
        )
    drawn = np.random.default_rng(seed).permutation(len(prompts))[:num_samples]
    return [prompts[index] for index in sorted(drawn)]


def _prompts_of(
    document: Document, tokenizer: PreTrainedTokenizerFast, length: int, reference_length: int
) -> list[Prompt]:
    if "prompt" in document:
        return [Prompt(document["prompt"], document["completion"])]
    text = document["text"]
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    # Cut from the text itself: decoding needn't give it back, least of all parts of a character.
    ends = [0, *(end for _, end in encoding.offsets)]
    prompts = []
    for start in range(0, max(1, len(encoding) - length), length + reference_length):
        middle = min(start + length, len(encoding))
        end = min(middle + reference_length, len(encoding))
        prompts.append(Prompt(text[ends[start] : ends[middle]], text[ends[middle] : ends[end]]))
    return prompts
