"""Continuing prompts."""

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

from moray.workers.memory import in_parts_that_fit


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a continuation are chosen; nothing else is in force.

    Attributes:
        max_new_tokens: tokens of a continuation, at most.
        temperature: 0 takes the likeliest token.
        top_p: nucleus sampling (Holtzman et al., 2020).
        seed: each prompt draws from this seed and its own number.
        stops: tokens that end a continuation.
        padding: token that fills up rows.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    stops: tuple[int, ...]
    padding: int


@torch.no_grad()
def continue_prompts(
    model: PreTrainedModel, prompts: dict[int, list[int]], sampling: Sampling
) -> dict[int, list[int]]:
    """What a model writes after each prompt, up to a stop token.

    A continuation depends on the other prompts by rounding only. Prompts for which memory is too
    small are continued in parts.

    Args:
        model: in evaluation mode. What its folder says of generation doesn't apply.
        prompts: tokens of each, by its number.
        sampling: how tokens are chosen.

    Returns:
        New tokens, the stop token included, by number of the prompt.
    """
    model.generation_config = GenerationConfig()
    settings = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=list(sampling.stops),
        pad_token_id=sampling.padding,
    )

    def continue_some(numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        rows = [prompts[number] for number in numbers]
        width = max(map(len, rows))
        # On the left, so that each row's last token is that of its prompt.
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


def _choice(numbers: Sequence[int], sampling: Sampling) -> LogitsProcessorList:
    if sampling.temperature == 0:
        return LogitsProcessorList()
    return LogitsProcessorList([SeededSampler(numbers, sampling)])


class SeededSampler(LogitsProcessor):
    """Samples a token for each row with a generator of its own, and leaves only this one possible.

    transformers draws for a whole batch from one generator, so that what a prompt gets would
    depend on the prompts beside it.
    """

    def __init__(self, numbers: Sequence[int], sampling: Sampling) -> None:
        """Seed a generator for each row.

        Args:
            numbers: of the prompts, by row.
            sampling: with a temperature above 0.
        """
        self._generators = [np.random.default_rng([sampling.seed, number]) for number in numbers]
        self._sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of which only the sampled token's isn't minus infinity.

        Args:
            input_ids: shape (rows, tokens).
            scores: logits, shape (rows, vocabulary).
        """
        probabilities = torch.softmax(scores.double() / self._sampling.temperature, -1)
        ordered, tokens = torch.sort(probabilities, dim=-1, descending=True, stable=True)
        reached = ordered.cumsum(-1)
        # The smallest set with this probability: all before it is reached, and the one by which
        # it is. The likeliest token is always in.
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
