"""Generate continuations of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.generation import BaseStreamer

from moray.evaluate.execution import EvaluationJob, of_each_model, own_batches
from moray.workers.entry import Worker
from moray.workers.memory import in_parts_that_fit


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


@dataclass(frozen=True)
class GenerateJob(EvaluationJob):
    """Continue the same prompts with each model."""

    prompts: list[list[int]]
    sampling: Sampling


def continue_on_worker(job: GenerateJob, worker: Worker) -> dict[str, dict[int, list[int]]]:
    """Continue this worker's prompts with each model; returns new tokens by the prompt's number."""

    def continuations(model: PreTrainedModel) -> dict[int, list[int]]:
        written: dict[int, list[int]] = {}
        # Longest first, so that the prompts of a batch need little padding.
        order = np.argsort([-len(prompt) for prompt in job.prompts], kind="stable")
        for batch in own_batches(order, job, worker):
            prompts = {number: job.prompts[number] for number in batch.tolist()}
            written |= continue_prompts(model, prompts, job.sampling)
        return written

    return of_each_model(continuations, job, worker)


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
        written = model.generate(
            input_ids=input_ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=settings,
            logits_processor=_choice(numbers, sampling),
        )
        new = written[:, width:].tolist()
        return [
            (number, _up_to_stop(tokens, sampling))
            for number, tokens in zip(numbers, new, strict=True)
        ]

    return dict(in_parts_that_fit(continue_some, list(prompts)))


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
        kept = ordered.cumsum(-1)
        draws = torch.tensor([generator.random() for generator in self._generators])
        threshold = draws.to(kept)[:, None] * kept[:, -1:]
        chosen = tokens.gather(1, torch.searchsorted(kept, threshold, right=True))
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(1, chosen, 0.0)


def _up_to_stop(tokens: list[int], sampling: Sampling) -> list[int]:
    ends = (end for end, token in enumerate(tokens, 1) if token in sampling.stops)
    return tokens[: next(ends, len(tokens))]
