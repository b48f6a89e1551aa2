"""Continuations, held against one token at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from moray.evaluate.worker import EvaluationJob
from moray.tasks.language.generation import (
    Sampling,
    SeededSampler,
    continue_on_worker,
    continue_prompts,
)
from moray.workers.entry import Worker

PROMPTS = ["def", "", "return self value for 東京 in (x, y)\n" * 2, "naïve 🐍", "x = a[0] += 1"]


def tokens_of(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    return [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]


@torch.no_grad()
def greedy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    count: int,
    stops: Sequence[int] = (),
) -> list[int]:
    """The likeliest tokens behind a prompt up to a stop token, a plain forward pass each."""
    ids = tokens_of(tokenizer, prompt)
    written: list[int] = []
    while len(written) < count and not {tokenizer.eos_token_id, *stops} & set(written):
        logits = model(input_ids=torch.tensor([ids + written]), use_cache=False).logits
        written.append(int(logits[0, -1].argmax()))
    return written


Write = Callable[..., list[str]]


@pytest.fixture
def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Write:
    """Continue prompts; returns the texts."""
    eos = tokenizer.eos_token_id
    settings: dict[str, Any] = {
        "max_new_tokens": 12,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
        "stops": (eos,),
        "padding": eos,
    }

    def write(prompts: list[str] = PROMPTS, batch_size: int = 5, **changes: Any) -> list[str]:
        sampling = Sampling(**settings | changes)
        tokens = dict(enumerate(tokens_of(tokenizer, prompt) for prompt in prompts))
        written: dict[int, list[int]] = {}
        for batch in np.array_split(np.arange(len(tokens)), -(-len(tokens) // batch_size)):
            written |= continue_prompts(model, {int(n): tokens[int(n)] for n in batch}, sampling)
        return [tokenizer.decode(written[n], skip_special_tokens=True) for n in range(len(tokens))]

    return write


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_the_likeliest_continuation_is_that_of_each_prompt_alone(
    write: Write, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch_size: int
) -> None:
    tokens = [greedy(model, tokenizer, prompt, 12) for prompt in PROMPTS]
    stopped = [tokenizer.eos_token_id in written for written in tokens]
    assert any(stopped)
    assert not all(stopped), "a batch goes on where one of its prompts has ended"
    expected = [tokenizer.decode(written, skip_special_tokens=True) for written in tokens]
    assert len(set(expected)) == len(PROMPTS)
    assert write(batch_size=batch_size) == expected


@pytest.mark.parametrize("count", [1, 3, 7])
def test_no_more_tokens_are_written_than_asked_for(
    write: Write, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, count: int
) -> None:
    tokens = [greedy(model, tokenizer, prompt, count) for prompt in PROMPTS]
    expected = [tokenizer.decode(written, skip_special_tokens=True) for written in tokens]
    assert write(max_new_tokens=count) == expected


def test_any_stop_token_ends_a_continuation(
    write: Write, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    unstopped = greedy(model, tokenizer, PROMPTS[0], 12)
    second = unstopped[len(unstopped) // 2]
    assert second != tokenizer.eos_token_id
    tokens = [greedy(model, tokenizer, prompt, 12, stops=[second]) for prompt in PROMPTS]
    assert len(tokens[0]) < len(unstopped)
    expected = [tokenizer.decode(written, skip_special_tokens=True) for written in tokens]
    assert write(stops=(tokenizer.eos_token_id, second)) == expected


def test_the_seed_decides_what_is_sampled(write: Write) -> None:
    sampled: dict[str, Any] = {"temperature": 1.5, "batch_size": 2}
    torch.manual_seed(1)
    first = write(seed=3, **sampled)
    torch.manual_seed(2)
    assert write(seed=3, **sampled) == first
    assert write(seed=4, **sampled) != first


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_what_is_sampled_for_a_prompt_does_not_depend_on_the_others(
    write: Write, batch_size: int
) -> None:
    sampled: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9, "seed": 3}
    assert write(batch_size=batch_size, **sampled) == write(batch_size=3, **sampled)


def test_equal_prompts_are_sampled_differently(write: Write) -> None:
    assert len(set(write(["def"] * 5, temperature=1.5))) == 5


def test_what_the_model_s_folder_says_of_generation_does_not_apply(
    write: Write, model: PreTrainedModel
) -> None:
    expected = write()
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.min_new_tokens = 12
    assert write() == expected


def test_a_nucleus_is_the_smallest_set_with_the_probability() -> None:
    scores = torch.log(torch.tensor([[0.1, 0.5, 0.15, 0.25]])).expand(300, -1)
    sampling = Sampling(1, 1.0, top_p=0.7, seed=0, stops=(), padding=0)
    chosen = SeededSampler(range(300), sampling)(torch.zeros(300, 1), scores).argmax(-1)
    counts = torch.bincount(chosen, minlength=4).tolist()
    assert (counts[0], counts[2]) == (0, 0)
    assert counts[1] / 300 == pytest.approx(2 / 3, abs=0.1)


def test_a_worker_s_batches_are_of_prompts_of_similar_lengths(
    model: PreTrainedModel, tuned_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, shapes = LlamaForCausalLM.generate, list[tuple[int, ...]]()

    def noted(self: LlamaForCausalLM, input_ids: torch.Tensor, **settings: Any) -> Any:
        shapes.append(tuple(input_ids.shape))
        return generate(self, input_ids=input_ids, **settings)

    sampling = Sampling(8, 1.0, 1.0, seed=3, stops=(1,), padding=1)
    prompts = [[5 + length] * length for length in (2, 9, 3, 7, 4)]
    expected = [continue_prompts(model, {n: prompts[n]}, sampling)[n] for n in range(5)]
    monkeypatch.setattr(LlamaForCausalLM, "generate", noted)
    job = EvaluationJob(tmp_path, 2, "key", "fp32", None, {"tuned": tuned_folder})
    worker = Worker(0, 1, torch.device("cpu"))
    written = continue_on_worker(job, worker, prompts, sampling)["tuned"]
    assert [written[n] for n in range(5)] == expected
    assert shapes == [(2, 9), (2, 4), (1, 2)]


def test_a_batch_too_large_for_memory_is_continued_in_parts(
    write: Write, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = write()
    generate, sizes = model.generate, list[int]()

    def limited(input_ids: torch.Tensor, **settings: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(input_ids=input_ids, **settings)

    monkeypatch.setattr(model, "generate", limited)
    assert write() == expected
    assert sizes == [5, 2, 3, 1, 2]


def test_sampling_leaves_other_random_numbers_alone(write: Write) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    write(temperature=1.0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("setting", [{"top_p": 1e-6, "temperature": 1.0}, {"temperature": 1e-4}])
def test_a_small_nucleus_and_a_low_temperature_come_to_the_likeliest(
    write: Write, setting: dict[str, Any]
) -> None:
    assert write(**setting) == write()


def test_samples_have_the_probabilities_of_the_model(
    write: Write, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    temperature, draws = 1.5, 2000
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens_of(tokenizer, "def")])).logits[0, -1]
    likeliest = int(logits.argmax())
    share = (logits / temperature).softmax(0)[likeliest].item()
    assert 0.05 < share < 0.95
    keys = {"temperature": temperature, "max_new_tokens": 1, "batch_size": draws}
    written = write(["def"] * draws, **keys)
    got = written.count(tokenizer.decode([likeliest])) / draws
    assert got == pytest.approx(share, abs=4 * (share * (1 - share) / draws) ** 0.5)
