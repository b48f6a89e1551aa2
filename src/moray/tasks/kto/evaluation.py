"""Runs on answers that are good or bad: compare what models think of held-out ones."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moray.config.schema.losses import Kto
from moray.evaluate.bootstrap import BootstrapFigures, resampled, units_to_resample, with_intervals
from moray.evaluate.ranks import auroc
from moray.evaluate.worker import Evaluation, may_be_bf16
from moray.proofs.comparison import Comparison
from moray.tasks.kto.losses import kl_of, kto_losses
from moray.tasks.kto.rows import DESIRABLE
from moray.tasks.language.likelihood import Scores, figures, select_documents, total
from moray.tasks.language.proofs.scores import compare_scores_with_plain
from moray.tasks.language.rows import Segment, StoredSplit
from moray.tasks.preference.evaluation import score_pairs_on_worker
from moray.tasks.preference.rows import in_pairs

Array = NDArray[Any]


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the answers of one dataset; intervals are over groups, or answers.

    The reference is the base, so its rewards are 0. The reward of an answer is β times the change
    of its log-probability.

    - `loss`: mean loss of the answers, as in training, with the KL divergence of all of them, which
      `kl` has. Resamples don't estimate it again.
    - `desirable_reward`, `undesirable_reward`: mean rewards; `reward_margin`: their difference.
    - `reward_auroc`: how often a good answer has a higher reward than a bad one; equal ones count
      half.
    - `reward_accuracy`: share of the answers with a reward of the right sign; 0 counts half.
    - `desirable_loss`, `desirable_bits_per_byte`, `desirable_accuracy`: a language model's figures
      on the good answers; see `likelihood.figures`.
    """
    (store,) = stores
    split = StoredSplit(store, "test")
    selection = select_documents(split, cfg["max_documents"], split.block_size // 2)
    rows, settings = len(selection.rows), Kto(**cfg["kto"])

    def scores_of(results: list[dict[str, dict[str, Scores]]]) -> dict[str, Any]:
        base, tuned = (
            total([result[name]["test"] for result in results]) for name in ("base", "tuned")
        )
        own, other = in_pairs(base.document).T
        row, column = np.divmod(selection.segments[own, Segment.START], split.block_size)
        good = split.rows["flags"][row, column] & DESIRABLE != 0
        name, units = units_to_resample({"groups": base.group[own], "answers": base.document[own]})
        units = np.unique(units, return_inverse=True)[1]

        def measured(scores: Scores) -> tuple[float, BootstrapFigures]:
            ratios = base.nll - scores.nll
            kl = kl_of(torch.tensor(ratios[other].sum()), len(other))
            answers = torch.from_numpy(ratios[own]), torch.from_numpy(good)
            losses = kto_losses(*answers, kl, settings).numpy()
            measure = _scorer(settings.beta * ratios[own], good, losses, scores.sums()[own])
            samples = cfg["bootstrap_samples"]
            resamples = resampled(lambda counts: measure(counts[units]), units.max() + 1, samples)
            return float(kl), resamples

        (_, before), (kl, after) = map(measured, (base, tuned))
        return {
            "rows": rows,
            "answers": len(own),
            "desirable": int(good.sum()),
            "tokens": int(base.tokens[own].sum()),
            "kl": kl,
            "confidence": cfg["confidence"],
            "resampled": name,
            **with_intervals(before, after, cfg["confidence"]),
        }

    def proof(results: list[dict[str, dict[str, Scores]]], seconds: float) -> Iterator[Comparison]:
        nll = {name: total([result[name]["test"] for result in results]).nll for name in models}
        bf16 = may_be_bf16(cfg["precision"])
        return compare_scores_with_plain(models, split.rows, selection.segments, nll, seconds, bf16)

    return Evaluation(
        figures=("reward_margin", "reward_auroc", "desirable_bits_per_byte"),
        rows=[rows],
        entry_point=partial(
            score_pairs_on_worker, splits=("test",), max_pairs=cfg["max_documents"]
        ),
        scores=scores_of,
        proof=proof,
    )


def _scorer(
    rewards: Array, good: Array, losses: Array, sums: Array
) -> Callable[[Array], dict[str, float]]:
    """What computes a model's figures from how often each answer counts, shape (answers,).

    Args:
        sums: of a language model's figures, see `Scores.sums`.
    """
    signs = np.sign(rewards) * np.where(good, 1, -1)
    rank = auroc(rewards, good.astype(np.int64))

    def measure(counts: Array) -> dict[str, float]:
        desirable, undesirable = counts * good, counts * ~good
        means = [_mean(rewards, some) for some in (desirable, undesirable)]
        likelihood = (
            figures(desirable @ sums)
            if desirable.any()
            else dict.fromkeys(("loss", "bits_per_byte", "accuracy"), float("nan"))
        )
        return {
            "loss": _mean(losses, counts),
            "desirable_reward": means[0],
            "undesirable_reward": means[1],
            "reward_margin": means[0] - means[1],
            "reward_auroc": rank(counts),
            "reward_accuracy": _mean((signs + 1) / 2, counts),
            **{f"desirable_{name}": likelihood[name] for name in ("loss", "bits_per_byte")},
            "desirable_accuracy": likelihood["accuracy"],
        }

    return measure


def _mean(values: Array, counts: Array) -> float:
    """A mean of what counts; a resample can have none."""
    return float(values @ counts / counts.sum()) if counts.any() else float("nan")
