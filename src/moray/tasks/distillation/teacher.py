"""Store what a teacher predicts in the place of each trained token, for all runs that learn it."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.lineage import other_tokenizer_error
from moray.config.schema.base import Proofs
from moray.config.tasks import sequence_length
from moray.console import say
from moray.errors import UserError
from moray.evaluate.batches import Arrays, Batch, BatchResults, bytes_of_batches
from moray.evaluate.driver import start_evaluation_workers
from moray.evaluate.worker import (
    EvaluationJob,
    batch_results,
    files_of_batches,
    may_be_bf16,
)
from moray.model.attention import varlen_if_possible
from moray.model.load import check_length
from moray.proofs.comparison import collect, conclude, write_proof
from moray.provenance.manifest import MANIFEST, atomic_folder, read_manifest, write_manifest
from moray.provenance.space import check_space
from moray.rows.store import Record, Rows, StoredRows, describe, record_of
from moray.tasks.distillation.proofs import compare_with_plain
from moray.tasks.distillation.rows import LOG, has_entry, with_teacher
from moray.tasks.language.cross_entropy import logits_by_chunk
from moray.tasks.language.isolation import check_isolation
from moray.tasks.language.loss import TokenBatch, TokenLoss, has_plain_head, make_batch
from moray.tasks.language.rows import is_trained, num_trained
from moray.tasks.language.tokenizer import load_tokenizer
from moray.workers.entry import Worker
from moray.workers.memory import split_on_out_of_memory

# A run trains on one and computes validation losses on the other.
_SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Likeliest:
    """The tokens that are stored in the place of each trained one.

    Attributes:
        top_k: their number.
        temperature: what the teacher's logits are divided by.
        vocabulary: number of tokens of the tokenizer; a teacher's output layer may have more.
    """

    top_k: int
    temperature: float
    vocabulary: int


def teacher(
    run: str,
    model: Path,
    base: Path,
    tokens: Path,
    output: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    proofs: Proofs = "refuse",
    code: str = "",
) -> None:
    """Write a store: the rows of a token store with the fields of `rows`; its manifest last.

    The batches that a killed process has on disk aren't computed again.

    Args:
        run: the first run that uses it.
        model: folder of the teacher.
        base: folder of the run's base model, whose tokenizer made the tokens.
        cfg: `precision`, `temperature` and `top_k`.
        code: the version of what decides on the result.

    Raises:
        UserError: if the teacher has another tokenizer, or takes no rows of this length.
    """
    manifest = read_manifest(tokens)
    path = f"runs.{run}.distillation.teacher"
    vocabulary = _shared_vocabulary(model, base, path)
    likeliest = Likeliest(min(cfg["top_k"], vocabulary), cfg["temperature"], vocabulary)
    splits = {name: StoredRows(tokens, name) for name in _SPLITS}
    most = max(_most_trained(split) for split in splits.values())
    record = with_teacher(record_of(manifest), most, likeliest.top_k)
    facts = {name: manifest["splits"][name] for name in _SPLITS}
    size = sum(map(len, splits.values())) * record.itemsize
    with (
        atomic_folder(output),
        start_evaluation_workers(
            "evaluate", run, output, cfg, execution, code, label=f"teacher {output.name}"
        ) as workers,
    ):
        # What the workers write, and the whole.
        check_space(output, 2 * size - bytes_of_batches(output.absolute()))
        entry_point = partial(predict_on_worker, record=record, likeliest=likeliest, path=path)
        counts = [*map(len, splits.values())]
        workers.run(
            entry_point,
            {"teacher": model.absolute()},
            (tokens.absolute(),),
            *counts,
            files=files_of_batches,
            decided_by=[asdict(likeliest), describe(record)],
        )
        results = BatchResults(workers.batches)
        for name, count in zip(_SPLITS, counts, strict=True):
            _join(results, name, -(-count // workers.job.batch_size), output / f"{name}.rows")
        write_manifest(
            output,
            task="distillation",
            record=describe(record),
            block_size=manifest["block_size"],
            recipe={**manifest["recipe"], **cfg},
            splits=facts,
        )
        if proofs != "off":
            few = StoredRows(output, "train").rows[:4]
            seconds, bf16 = workers.seconds, may_be_bf16(cfg["precision"])
            compare = partial(
                compare_with_plain, model, few, likeliest.temperature, vocabulary, seconds, bf16
            )
            proof = conclude(collect("teacher", compare), proofs, path)
            write_proof(output, proof, [output / MANIFEST])
    say(
        f"teacher {output.name}: the {likeliest.top_k} likeliest of {vocabulary:,} tokens for "
        f"{facts['train']['weight'] + facts['validation']['weight']:,} trained ones, "
        f"{size / 1e6:,.0f} MB"
    )


def _shared_vocabulary(model: Path, base: Path, path: str) -> int:
    """Number of tokens of a tokenizer, each of which has to be the teacher's too."""
    student, other = (load_tokenizer(folder).get_vocab() for folder in (base, model))
    for token, number in student.items():
        if other.get(token) != number:
            raise other_tokenizer_error(path, str(model), str(base))
    last: int = max(student.values())
    return last + 1


def _most_trained(split: StoredRows) -> int:
    numbers = (is_trained(split.rows[batch]).sum(axis=1) for batch in _windows(split))
    return max((int(one.max(initial=0)) for one in numbers), default=0)


def _windows(split: StoredRows) -> Iterator[slice]:
    start = 0
    for size in split.windows:
        yield slice(start, start + size)
        start += size


def predict_on_worker(
    job: EvaluationJob, worker: Worker, record: Record, likeliest: Likeliest, path: str
) -> None:
    """Have the rows of this worker's batches on disk, with the teacher's predictions.

    They are too many to be returned.
    """
    (tokens,) = job.stores
    recipe = read_manifest(tokens)["recipe"]
    splits = {name: StoredRows(tokens, name) for name in _SPLITS}

    def compute(
        model: PreTrainedModel, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        if recipe["packing"]:
            check_isolation(model)
        check_length(model, sequence_length(recipe["format"], recipe["block_size"]))
        module = _Teacher(model, likeliest, path)
        with varlen_if_possible(model) as module.attention:
            for batch in batches:
                rows = np.concatenate(module.predict(splits[part].rows[batch], record))
                yield {"rows": rows.view("u1")}

    parts = {name: np.arange(len(split)) for name, split in splits.items()}
    for _ in batch_results(compute, parts, job, worker):
        pass


class _Teacher(TokenLoss):
    """A model that says which tokens are likely."""

    def __init__(self, model: PreTrainedModel, likeliest: Likeliest, path: str) -> None:
        super().__init__(model, has_plain_head(model))
        self._stored = likeliest
        head: Any = model.get_output_embeddings()
        if head.weight.shape[0] < likeliest.vocabulary:
            raise UserError(
                path,
                f"predicts {head.weight.shape[0]:,} tokens, and the tokenizer has "
                f"{likeliest.vocabulary:,}",
                "choose another model",
            )

    @torch.no_grad()
    def predict(self, rows: Rows, record: Record) -> list[Rows]:
        """Rows with the fields of a record, in parts that memory is enough for."""
        numbers = range(len(rows))
        return split_on_out_of_memory(
            lambda some: [self._predict(rows[np.asarray(some)], record)], numbers
        )

    def _predict(self, rows: Rows, record: Record) -> Rows:
        assert rows.dtype.names
        taught = np.zeros(len(rows), record)
        for field in rows.dtype.names:
            taught[field] = rows[field]
        if not num_trained(rows):
            return taught
        entries = has_entry(rows, record["teacher_logs"].shape[0])
        tokens, logs = self._likeliest(make_batch(rows).to(self.model.device))
        taught["teacher_tokens"][entries] = tokens.cpu().numpy()
        taught["teacher_logs"][entries] = logs.cpu().numpy().astype(LOG)
        return taught

    def _likeliest(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """The likeliest tokens in the place of each trained one, and logs of probabilities."""
        if (weight := self._linear_head()) is None:
            return self._top(self.logits(batch))
        tops = [self._top(logits) for _, logits in logits_by_chunk(self._hidden(batch), weight)]
        count = len(batch.targets)
        tokens, logs = (torch.cat([*part])[:count] for part in zip(*tops, strict=True))
        return tokens, logs

    def _top(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        stored = self._stored
        known = logits[:, : stored.vocabulary].float() / stored.temperature
        values, tokens = known.topk(stored.top_k, -1)
        return tokens, values - known.logsumexp(-1, keepdim=True)


def _join(results: BatchResults, split: str, batches: int, target: Path) -> None:
    """Put the rows of all workers' batches into their order."""
    with target.open("wb") as file:
        for number in range(batches):
            arrays = results.read(Batch("teacher", split, number))
            assert arrays, "the workers have written it"
            file.write(arrays["rows"].data)
