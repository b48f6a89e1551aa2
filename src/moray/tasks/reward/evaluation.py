"""Compare the rewards that base and tuned give to held-out pairs.

A base whose output layer is random says nothing, so it stands for a model that gives every text
the same reward.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from moray.config.schema.losses import Reward
from moray.evaluate.bootstrap import compare, sums_of_units, units_to_resample
from moray.evaluate.classification import (
    COMPARED,
    Answers,
    Classifier,
    collect_answers,
    compare_losses,
    rows_to_classify,
)
from moray.evaluate.worker import Evaluation
from moray.proofs.comparison import Comparison
from moray.rows.store import Rows, StoredRows, groups_of
from moray.tasks.classification.classifier import load
from moray.tasks.classification.evaluation import classify_with, says_nothing
from moray.tasks.reward.proofs import TOKENS, mean_loss
from moray.tasks.reward.task import make_pair_batch, pair_losses, rewards_of

Array = NDArray[Any]


def rewards(model: PreTrainedModel, rows: Rows, manifest: dict[str, Any]) -> Tensor:
    """Rewards of the texts of pairs, shape (pairs, 2)."""
    return rewards_of(model, make_pair_batch(rows).to(model.device))


def _as_they_are(rewards: Tensor) -> Tensor:
    return rewards


def judge(coefficient: float | None = None) -> Classifier:
    """How models give rewards to pairs."""
    plain = partial(mean_loss, coefficient=coefficient)
    return Classifier("pairs", load, rewards, plain, TOKENS, _as_they_are)


def evaluation(
    models: dict[str, Path], stores: tuple[Path, ...], cfg: dict[str, Any]
) -> Evaluation:
    """Compare models on the pairs of one dataset, with bootstrap intervals over groups of pairs.

    - `loss`: mean loss of the pairs, as in training.
    - `accuracy`: share of the pairs whose chosen text gets more; ties count half.
    - `margin`: mean difference of the rewards, chosen minus rejected.

    And `longer_is_chosen`, the share of pairs whose chosen text has more tokens: what a model that
    only counts them would have right.
    """
    (store,) = stores
    split, coefficient = (
        StoredRows(store, "test"),
        Reward(**cfg["reward"]).center_rewards_coefficient,
    )
    numbers, classifier = rows_to_classify(split, cfg["max_documents"]), judge(coefficient)
    rows = split.rows[numbers]
    asked = {of: model for of, model in models.items() if of == "tuned" or not says_nothing(model)}
    name, units = units_to_resample(
        {"groups": groups_of(store, "test", numbers), "pairs": np.arange(len(numbers))}
    )
    settings = cfg["bootstrap_samples"], cfg["confidence"]

    def loss_of(answers: Array) -> Array:
        margins = torch.from_numpy(rows["margin"][: len(answers)].astype(np.float64))
        losses: Array = pair_losses(
            torch.from_numpy(answers.astype(np.float64)), margins, coefficient
        ).numpy()
        return losses

    def sums(answers: Array) -> Array:
        differences = np.subtract(*answers.astype(np.float64).T)
        wins = (np.sign(differences) + 1) / 2
        columns = np.ones(len(answers)), loss_of(answers), wins, differences
        return sums_of_units(np.stack(columns, axis=1), units)

    def scores(results: list[dict[str, Answers]]) -> dict[str, Any]:
        answers = {of: collect_answers([result[of] for result in results]) for of in asked}
        answers = {"base": np.zeros((len(rows), 2), np.float32), **answers}
        before, after, longer = map(sums, (answers["base"], answers["tuned"], rows["length"]))
        by_length = compare(longer, longer, _figures, *settings)["tuned"]["accuracy"]
        return {
            "pairs": len(rows),
            "confidence": cfg["confidence"],
            "resampled": name,
            **compare(before, after, _figures, *settings),
            "longer_is_chosen": by_length,
            **({} if "base" in asked else {"base_is": "a model that gives all texts one reward"}),
        }

    def proof(results: list[dict[str, Answers]], seconds: float) -> Iterator[Comparison]:
        def loss(answers: NDArray[np.float32]) -> float:
            return float(loss_of(answers).mean())

        some = rows[:COMPARED]
        return compare_losses(classifier, asked, some, results, loss, seconds, cfg["precision"])

    return Evaluation(
        figures=("accuracy", "margin"),
        rows=[len(rows)],
        entry_point=partial(
            classify_with, asked=[*asked], classifier=classifier, max_rows=cfg["max_documents"]
        ),
        scores=scores,
        proof=proof,
    )


def _figures(sums: Array) -> dict[str, float]:
    pairs, loss, wins, margin = sums.tolist()
    return {"loss": loss / pairs, "accuracy": wins / pairs, "margin": margin / pairs}
