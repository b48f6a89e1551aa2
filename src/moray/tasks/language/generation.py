"""Prompts from held-out documents, the text that follows them there, and their continuations."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.generation import BaseStreamer

from moray.corpus.dataset import Document, RowError, group_of
from moray.errors import UserError
from moray.evaluate.batches import Arrays
from moray.evaluate.worker import EvaluationJob, batch_results
from moray.tasks.language.encode import Encoder
from moray.workers.entry import Worker
from moray.workers.memory import split_on_out_of_memory

# More than one, because some documents leave no room for a continuation.
_DOCUMENTS_A_SAMPLE = 16


@dataclass(frozen=True)
class Prompt:
    """A prompt, and the text that follows it in its document.

    Attributes:
        tokens: its tokens as in training, including the BOS token, if the tokenizer has one.
        group: what its document shares with others, see `group_of`.
        is_chat: whether its text is a conversation that a chat template has rendered.
    """

    text: str
    tokens: list[int]
    reference: str
    group: str
    is_chat: bool = False


def choose_prompts(
    documents: Iterable[Document],
    encoder: Encoder,
    model_length: int,
    num_samples: int,
    prompt_length: int,
    max_new_tokens: int,
    seed: int,
    left_out: Counter[str],
) -> list[Prompt]:
    """Draw prompts that leave room for a continuation, in the order of their documents.

    Args:
        documents: conversations, whose last trained assistant turn becomes the reference; or
            documents with `prompt` and `completion`; or with `text`, which is cut into windows.
        model_length: maximum number of tokens that the model takes.
        prompt_length: tokens at the start of a window that form its prompt.
        max_new_tokens: tokens to leave for the continuation.
        left_out: updated with the number of prompts that were drawn and left out, as `no_room`
            in the model; and of documents without a prompt, as `no_prompt`.

    Raises:
        UserError: if no prompt leaves enough room.
    """
    prompts = []
    for document in _draw_documents(documents, _DOCUMENTS_A_SAMPLE * num_samples, seed):
        every = _prompts_of(document, encoder, prompt_length, max_new_tokens)
        # An empty prompt has no tokens if documents begin without a BOS token.
        candidates = [one for one in every if one.tokens]
        fitting = [one for one in candidates if len(one.tokens) + max_new_tokens <= model_length]
        left_out.update(no_room=len(candidates) - len(fitting), no_prompt=int(not candidates))
        prompts += fitting
    if not prompts and not left_out["no_room"]:
        raise UserError(
            "generate",
            "got no prompt to continue: those of the test split are empty, or the chat template "
            "makes none",
            "give rows prompts, or don't ask snakemake for generate",
        )
    if not prompts:
        raise UserError(
            "generate.max_new_tokens",
            f"got {max_new_tokens}, which leaves no room for a prompt in the model's "
            f"{model_length} tokens",
            "lower it, or generate.prompt_tokens",
        )
    indices = np.random.default_rng(seed).permutation(len(prompts))[:num_samples]
    return [prompts[index] for index in sorted(indices)]


def _draw_documents(documents: Iterable[Document], count: int, seed: int) -> list[Document]:
    """Draw `count` documents in one pass and keep their order; all of them if there are fewer.

    Source: Vitter, "Random sampling with a reservoir", 1985 (algorithm R).
    """
    draw = np.random.default_rng([seed, 1])
    sample: list[tuple[int, Document]] = []
    for number, document in enumerate(documents):
        if number < count:
            sample.append((number, document))
        elif (slot := int(draw.integers(number + 1))) < count:
            sample[slot] = (number, document)
    return [document for _, document in sorted(sample, key=lambda pair: pair[0])]


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
        return [Prompt(text, encoder.tokens_of(text), reference, group, is_chat=True)]
    if "prompt" in document:
        text = document["prompt"]
        # The text of a row may have the stop token itself.
        reference = document["completion"].removesuffix(encoder.tokenizer.eos_token)
        return [Prompt(text, encoder.prompt_tokens(text), reference, group)]
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


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a continuation are chosen; the model's own settings are ignored.

    Attributes:
        temperature: sampling temperature; 0 takes the likeliest token.
        top_p: nucleus sampling (Holtzman et al., 2020).
        seed: seed, combined with the prompt's number.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    stops: tuple[int, ...]
    padding: int


def continue_on_worker(
    job: EvaluationJob, worker: Worker, prompts: list[list[int]], sampling: Sampling
) -> dict[str, dict[int, list[int]]]:
    """Continue this worker's prompts with each model; returns new tokens by the prompt's number."""

    def compute(
        model: PreTrainedModel, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        for batch in batches:
            some = {number: prompts[number] for number in batch.tolist()}
            new = continue_prompts(model, some, sampling)
            tokens = np.array([token for one in new.values() for token in one], np.int64)
            yield {
                "prompts": np.array([*new]),
                "lengths": np.array([*map(len, new.values())]),
                "tokens": tokens,
            }

    # Longest first, so that the prompts of a batch need little padding.
    order = np.argsort([-len(prompt) for prompt in prompts], kind="stable")
    continuations: dict[str, dict[int, list[int]]] = {name: {} for name in job.models}
    for batch, arrays in batch_results(compute, {"prompts": order}, job, worker):
        ends = np.cumsum(arrays["lengths"])[:-1]
        tokens = (one.tolist() for one in np.split(arrays["tokens"], ends))
        continuations[batch.model] |= zip(arrays["prompts"].tolist(), tokens, strict=True)
    return continuations


@torch.no_grad()
def continue_prompts(
    model: PreTrainedModel, prompts: dict[int, list[int]], sampling: Sampling
) -> dict[int, list[int]]:
    """Generate a continuation of each prompt, up to a stop token.

    The model is in evaluation mode, and the `generation_config.json` of its folder is ignored. The
    other prompts of the batch affect a continuation only by rounding. If memory is too small for
    all prompts, they are continued in smaller batches.

    Returns:
        New tokens, including the stop token, by the number of the prompt.
    """
    settings = _settings(model, sampling)

    def continue_some(numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        rows = [prompts[number] for number in numbers]
        width = max(map(len, rows))
        # Padded on the left, so that each row ends with the last token of its prompt.
        padding = [width - len(row) for row in rows]
        input_ids = torch.tensor(
            [[sampling.padding] * gap + row for gap, row in zip(padding, rows, strict=True)]
        )
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in padding])
        output = model.generate(
            input_ids=input_ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=settings,
            logits_processor=_choice(numbers, sampling),
        )
        new = output[:, width:].tolist()
        return [
            (number, _up_to_stop(tokens, sampling))
            for number, tokens in zip(numbers, new, strict=True)
        ]

    return dict(split_on_out_of_memory(continue_some, list(prompts)))


@torch.no_grad()
def stream(
    model: PreTrainedModel,
    prompt: list[int],
    sampling: Sampling,
    number: int,
    streamer: BaseStreamer,
) -> None:
    """Generate a continuation of one prompt, up to a stop token, for a streamer of the tokens."""
    input_ids = torch.tensor([prompt], device=model.device)
    model.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        generation_config=_settings(model, sampling),
        logits_processor=_choice([number], sampling),
        streamer=streamer,
    )


def _settings(model: PreTrainedModel, sampling: Sampling) -> GenerationConfig:
    # Otherwise, those of the model's folder would fill in what isn't set here.
    model.generation_config = GenerationConfig()
    return GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=list(sampling.stops),
        pad_token_id=sampling.padding,
    )


def _choice(numbers: Sequence[int], sampling: Sampling) -> LogitsProcessorList:
    if sampling.temperature == 0:
        return LogitsProcessorList()
    return LogitsProcessorList([SeededSampler(numbers, sampling)])


class SeededSampler(LogitsProcessor):
    """Samples a token for each row with the row's own generator, and masks all other tokens.

    transformers samples a whole batch with one generator, which would make each continuation
    depend on the other prompts.
    """

    def __init__(self, numbers: Sequence[int], sampling: Sampling) -> None:
        self._generators = [np.random.default_rng([sampling.seed, number]) for number in numbers]
        self._sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores that are minus infinity for all tokens but the sampled one.

        Args:
            input_ids: shape (rows, tokens).
            scores: logits, shape (rows, vocabulary).
        """
        probabilities = torch.softmax(scores.double() / self._sampling.temperature, -1)
        ordered, tokens = torch.sort(probabilities, dim=-1, descending=True, stable=True)
        reached = ordered.cumsum(-1)
        # Keep the smallest set that reaches `top_p`, including the token that crosses it. The
        # likeliest token is always kept.
        ordered[reached - ordered >= self._sampling.top_p] = 0
        cumulative = ordered.cumsum(-1)
        draws = torch.tensor([generator.random() for generator in self._generators])
        threshold = draws.to(cumulative)[:, None] * cumulative[:, -1:]
        choice = tokens.gather(1, torch.searchsorted(cumulative, threshold, right=True))
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, choice, 0.0)


def _up_to_stop(tokens: list[int], sampling: Sampling) -> list[int]:
    ends = (end for end, token in enumerate(tokens, 1) if token in sampling.stops)
    return tokens[: next(ends, len(tokens))]
