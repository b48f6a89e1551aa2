"""The job of continuing prompts on workers."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from moray.evaluate.execution import EvaluationJob, of_each_model, own_batches
from moray.evaluate.generation import Sampling, continue_prompts
from moray.workers.worker import Worker


@dataclass(frozen=True)
class GenerateJob(EvaluationJob):
    """Continue the same prompts with each model.

    Attributes:
        prompts: tokens of each prompt.
        sampling: how tokens are chosen.
    """

    prompts: list[list[int]]
    sampling: Sampling


def continue_on_worker(job: GenerateJob, worker: Worker) -> dict[str, dict[int, list[int]]]:
    """Continue this worker's prompts with each model; returns new tokens by the prompt's number."""
    size = job.execution.batch_size
    numbers = range(len(job.prompts))
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]

    def continuations(model: PreTrainedModel) -> dict[int, list[int]]:
        written: dict[int, list[int]] = {}
        for batch in own_batches(batches, job.execution, worker):
            prompts = {number: job.prompts[number] for number in batch}
            written |= continue_prompts(model, prompts, job.sampling)
        return written

    return of_each_model(continuations, job.models, job.execution, worker)
