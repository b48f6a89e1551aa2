"""The model that the harness asks: it doesn't compute batches that an earlier process has on disk.

The harness's own cache has answers to single requests: what is left of them falls into other
batches, which round otherwise. It reads pickles, and leaves out sampled answers. So the harness's
batches are made here, and each is given to it by itself.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import Collator
from transformers import PreTrainedModel

from moray.evaluate.batches import Arrays, Batch
from moray.evaluate.worker import BatchStore, batches_of
from moray.provenance.manifest import fingerprint

Tokens = tuple[Any, list[int], list[int]]
"""The strings of a request, and the tokens of its context and its continuation."""


class ResumableModel(HFLM):
    """A model of transformers whose answers are put into a store, batch by batch."""

    def __init__(
        self, name: str, store: BatchStore, model: PreTrainedModel, tokenizer: Any, batch_size: int
    ) -> None:
        """Answer so many requests at once.

        Args:
            name: of the model, in the store.
        """
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
        self._store, self._name, self._count = store, name, 0

    def _loglikelihood_tokens(
        self, requests: Sequence[Tokens], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        score = partial(super()._loglikelihood_tokens, disable_tqdm=True)
        # The harness reads requests that differ in the last token as one row, the longest first.
        rows = defaultdict(list)
        for number, (_, context, continuation) in enumerate(requests):
            rows[(*context, *continuation[:-1])].append(number)
        order = sorted(rows, key=lambda tokens: (-len(tokens), tokens))
        answers: dict[int, tuple[float, bool]] = {}
        for batch in batches_of(order, self.batch_size):
            numbers = [number for row in batch for number in rows[row]]
            some = [requests[number] for number in numbers]
            stored = self._stored([tokens for _, *tokens in some], partial(_answers, score, some))
            answers |= zip(numbers, map(tuple, _of_bytes(stored["answers"])), strict=True)
        return [answers[number] for number in range(len(requests))]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer prompts; what is drawn at random is what an undisturbed process draws."""
        generate = partial(super().generate_until, disable_tqdm=True)
        random = torch.cuda if self.device.type == "cuda" else torch

        def answers_and_state(some: list[Instance]) -> Arrays:
            return {**_answers(generate, some), "state": random.get_rng_state().numpy()}

        collator = Collator(
            list(enumerate(requests)),
            sort_fn=lambda one: (-len(self.tok_encode(one[1].args[0])), one[1].args[0]),
            group_fn=lambda one: one[1].args[1],
            group_by="gen_kwargs",
        )
        answers: dict[int, str] = {}
        for batch in collator.get_batched(n=self.batch_size):
            numbers, some = zip(*batch, strict=True)
            content = [request.args for request in some]
            stored = self._stored(content, partial(answers_and_state, list(some)))
            random.set_rng_state(torch.from_numpy(stored["state"].copy()))
            answers |= zip(numbers, _of_bytes(stored["answers"]), strict=True)
        return [answers[number] for number in range(len(requests))]

    def _stored(self, content: list[Any], compute: Callable[[], Arrays]) -> Arrays:
        """The result of the next batch, which an earlier process has on disk or is computed."""
        # Data of tasks may have changed where nobody tracks it.
        part = fingerprint([self.batch_size, repr(content)], [])
        batch = Batch(self._name, part, self._count)
        self._count += 1
        if (arrays := self._store.read(batch)) is None:
            arrays = compute()
            self._store.add(batch, arrays)
        return arrays


def _answers(compute: Callable[[Any], Iterable[Any]], requests: Sequence[Any]) -> Arrays:
    return {"answers": np.frombuffer(json.dumps([*compute(requests)]).encode(), np.uint8)}


def _of_bytes(answers: Any) -> list[Any]:
    found: list[Any] = json.loads(answers.tobytes())
    return found
