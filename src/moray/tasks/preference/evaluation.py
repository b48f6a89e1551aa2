"""Preference runs: compare how models prefer the chosen answers of held-out pairs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from moray.config.schema.losses import Preference
from moray.config.schema.train import Adapter
from moray.evaluate.batches import Arrays
from moray.evaluate.bootstrap import compare, sums_of_units, units_to_resample
from moray.evaluate.worker import (
    Evaluation,
    EvaluationJob,
    batch_results,
    may_be_bf16,
)
from moray.model.folder import DTYPES, base_of_adapter
from moray.model.forward import autocast
from moray.model.load import load_model
from moray.model.quantization import Bits, Quantization
from moray.proofs.comparison import Comparison
from moray.provenance.manifest import read_manifest
from moray.tasks.language.likelihood import (
    Scores,
    figures,
    score_batches,
    select_documents,
    total,
)
from moray.tasks.language.proofs.scores import compare_scores_with_plain
from moray.tasks.language.rows import StoredSplit
from moray.tasks.preference.losses import margins, preference_losses
from moray.tasks.preference.rows import as_sequences, has_halves
from moray.workers.entry import Worker


@dataclass(frozen=True)
class Policy:
    """How a run holds its model while it is trained, and computes with it.

    Attributes:
        adapter: the section of a run that trains its start's adapter further.
    """

    precision: str
    base_dtype: str
    quantize_base: Bits | None
    adapter: Mapping[str, Any] | None = None

    def load(self, folder: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Load a model as the run does, whatever the type of an evaluation's models."""
        quantization = Quantization(self.quantize_base) if self.quantize_base else None
        start = base_of_adapter(folder) if self.adapter else folder
        model = load_model(start, DTYPES[self.base_dtype], device, quantization)
        if self.adapter:
            # Takes a while to import.
            from moray.model.adapter import add_to_base_of_run

            # Merged, it would be rounded otherwise than where it is trained.
            add_to_base_of_run(model, Adapter(**self.adapter), seed=0, start=folder)
        return model.eval()


def score_pairs_on_worker(
    job: EvaluationJob,
    worker: Worker,
    splits: Sequence[str],
    max_pairs: int | None = None,
    policy: Policy | None = None,
) -> dict[str, dict[str, Scores]]:
    """Score both answers of this worker's pairs with each model; returns scores by model and split.

    Args:
        splits: those of the token store to score.
        max_pairs: number of pairs to score in each split; None for all.
        policy: of runs whose reference the models are; None to evaluate them.
    """
    (tokens,) = job.stores
    packing = not has_halves(read_manifest(tokens))

    sequences = partial(as_sequences, packing=packing)
    stored = {name: StoredSplit(tokens, name) for name in splits}
    selections = {
        name: select_documents(
            split, max_pairs, split.block_size if packing else split.block_size // 2
        )
        for name, split in stored.items()
    }

    def compute(
        model: PreTrainedModel, part: str, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[Arrays]:
        with autocast(policy.precision, worker.device) if policy else nullcontext():
            yield from score_batches(model, stored[part], selections[part], batches, sequences)

    scores = {
        model: {name: Scores.of_nothing(stored[name], selections[name]) for name in splits}
        for model in job.models
    }
    parts = {name: selection.rows for name, selection in selections.items()}
    load = policy.load if policy else load_model
    for batch, arrays in batch_results(compute, parts, job, worker, load):
        scores[batch.model][batch.part].add(arrays)
    return scores


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the pairs of one dataset, with bootstrap intervals over groups of pairs.

    With a reference, that is the base, so its margins are 0.

    - `loss`: mean loss of the pairs, as in training.
    - `reward_margin`: mean of `losses.margins`.
    - `reward_accuracy`: share of the pairs with a margin above 0; ties count half.
    - `chosen_loss`, `chosen_bits_per_byte`, `chosen_accuracy`: a language model's figures on the
      chosen answers; see `likelihood.figures`.
    """
    (store,) = stores
    rows = len(select_documents(StoredSplit(store, "test"), cfg["max_documents"]).rows)

    def scores_of(results: list[dict[str, dict[str, Scores]]]) -> dict[str, Any]:
        base, tuned = (
            total([result[name]["test"] for result in results]) for name in ("base", "tuned")
        )
        settings = Preference(**cfg["preference"])
        before, after = (_sums(scores, base, settings) for scores in (base, tuned))
        samples, confidence = cfg["bootstrap_samples"], cfg["confidence"]
        name, units = units_to_resample({"groups": base.group[::2], "pairs": base.document[::2]})
        return {
            "rows": rows,
            "pairs": len(base.tokens) // 2,
            "tokens": int(base.tokens.sum()),
            "confidence": confidence,
            "resampled": name,
            **compare(
                sums_of_units(before, units),
                sums_of_units(after, units),
                _figures,
                samples,
                confidence,
            ),
        }

    def proof(results: list[dict[str, dict[str, Scores]]], seconds: float) -> Iterator[Comparison]:
        split = StoredSplit(store, "test")
        segments = select_documents(split, cfg["max_documents"]).segments
        nll = {name: total([result[name]["test"] for result in results]).nll for name in models}
        bf16 = may_be_bf16(cfg["precision"])
        return compare_scores_with_plain(models, split.rows, segments, nll, seconds, bf16)

    return Evaluation(
        figures=("reward_margin", "reward_accuracy", "chosen_bits_per_byte"),
        rows=[rows],
        entry_point=partial(
            score_pairs_on_worker, splits=("test",), max_pairs=cfg["max_documents"]
        ),
        scores=scores_of,
        proof=proof,
    )


def _sums(scores: Scores, base: Scores, settings: Preference) -> NDArray[np.float64]:
    """Sums that figures are computed from, shape (pairs, 8).

    One, loss, margin and win; and `Scores.sums` of the chosen answer. Pieces alternate between
    chosen and rejected.
    """
    answers, reference = (torch.from_numpy(-one.nll.reshape(-1, 2)) for one in (scores, base))
    if not settings.has_reference:
        reference = torch.zeros_like(answers)
    lengths = torch.from_numpy(scores.tokens.reshape(-1, 2))
    pairs = answers, reference, lengths, settings
    losses, rewards = preference_losses(*pairs).numpy(), margins(*pairs).numpy()
    wins = (np.sign(rewards) + 1) / 2
    columns = np.ones(len(losses)), losses, rewards, wins, *scores.sums()[::2].T
    return np.stack(columns, axis=1)


def _figures(sums: NDArray[np.float64]) -> dict[str, float]:
    pairs, loss, margin, wins = sums[:4].tolist()
    chosen = figures(sums[4:])
    return {
        "loss": loss / pairs,
        "reward_margin": margin / pairs,
        "reward_accuracy": wins / pairs,
        **{f"chosen_{name}": chosen[name] for name in ("loss", "bits_per_byte", "accuracy")},
    }
