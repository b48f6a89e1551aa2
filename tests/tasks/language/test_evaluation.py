"""Figures of a test split, and how sure they are."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from moray.tasks.language import likelihood
from moray.tasks.language.evaluation import compare_scores
from moray.tasks.language.likelihood import Scores

FIGURES = ["loss", "perplexity", "bits_per_byte", "accuracy"]


def scores(
    nll: Any, tokens: Any, size: Any, correct: Any, document: Any = None, group: Any = None
) -> Scores:
    """Scores of documents of one piece each, unless it is said of which document each is."""
    document = range(len(nll)) if document is None else document
    group = document if group is None else group
    columns = (document, group, nll, tokens, size, correct)
    return Scores(*(np.asarray(column) for column in columns))


def draw(documents: int, seed: int, shift: float = 0.0) -> Scores:
    random = np.random.default_rng(seed)
    tokens = random.integers(1, 200, documents)
    nll = tokens * (2.0 + shift + random.normal(0, 0.3, documents))
    return scores(nll, tokens, 4 * tokens, random.binomial(tokens, 0.4))


def figures(of: Scores) -> dict[str, float]:
    return likelihood.figures(of.sums().sum(0))


def intervals(result: dict[str, Any]) -> list[dict[str, float]]:
    parts = (result[name] for name in ("base", "tuned", "difference"))
    return [interval for part in parts for interval in part.values()]


def test_figures_are_ratios_of_sums_not_means_of_ratios() -> None:
    got = figures(scores([3.0, 9.0], [1, 5], [2, 22], [1, 2]))
    assert got == {
        "loss": pytest.approx(2.0),
        "perplexity": pytest.approx(7.389056, abs=1e-6),
        "bits_per_byte": pytest.approx(0.721348, abs=1e-6),  # 12 / ln 2 / 24
        "accuracy": pytest.approx(0.5),
    }


def test_values_are_those_of_all_documents_and_lie_in_their_intervals() -> None:
    base, tuned = draw(60, seed=1), draw(60, seed=2, shift=-0.5)
    result = compare_scores(base, tuned, samples=500, confidence=0.95)
    first, second = figures(base), figures(tuned)
    for name in FIGURES:
        assert result["base"][name]["value"] == first[name]
        assert result["tuned"][name]["value"] == second[name]
        assert result["difference"][name]["value"] == second[name] - first[name]
    assert all(one["low"] < one["value"] < one["high"] for one in intervals(result))


def test_a_model_differs_from_itself_by_nothing() -> None:
    one = draw(40, seed=1)
    result = compare_scores(one, draw(40, seed=1), samples=100, confidence=0.95)
    assert result["base"] == result["tuned"]
    nothing = {"value": 0.0, "low": 0.0, "high": 0.0}
    assert result["difference"] == dict.fromkeys(FIGURES, nothing)


def test_differences_are_paired() -> None:
    base = draw(40, seed=1)
    better = scores(base.nll - 0.25 * base.tokens, base.tokens, base.bytes, base.correct)
    result = compare_scores(base, better, samples=200, confidence=0.95)
    loss = result["difference"]["loss"]
    assert [loss["low"], loss["high"]] == pytest.approx([-0.25, -0.25], abs=1e-12)
    assert result["base"]["loss"]["high"] - result["base"]["loss"]["low"] > 0.01


@pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.960), (0.8, 1.282)])
def test_the_interval_of_a_mean_is_that_of_the_normal_distribution(
    confidence: float, deviations: float
) -> None:
    documents = 400
    nll = np.random.default_rng(7).normal(5.0, 1.0, documents)
    ones = np.ones(documents, np.int64)
    one = scores(nll, ones, ones, ones)
    loss = compare_scores(one, one, samples=4000, confidence=confidence)["base"]["loss"]
    half = deviations * nll.std() / math.sqrt(documents)
    assert loss["low"] == pytest.approx(nll.mean() - half, abs=0.1 * half)
    assert loss["high"] == pytest.approx(nll.mean() + half, abs=0.1 * half)


def test_figures_do_not_move_on_a_rerun() -> None:
    np.random.seed(1)
    first = compare_scores(draw(20, seed=1), draw(20, seed=2), samples=50, confidence=0.9)
    np.random.seed(2)
    assert compare_scores(draw(20, seed=1), draw(20, seed=2), samples=50, confidence=0.9) == first


def test_documents_are_resampled_whole() -> None:
    """A document's pieces are alike: taken for independent, they would seem to say more."""
    one, other = draw(30, seed=1), draw(30, seed=2)

    def in_pieces(whole: Scores) -> Scores:
        columns = (whole.document, whole.nll / 4, whole.tokens, whole.bytes, whole.correct)
        document, nll, *counts = (np.tile(column, 4).tolist() for column in columns)
        tokens, size, correct = ([*column[:30], *[0] * 90] for column in counts)
        return scores(nll, tokens, size, correct, document)

    whole = compare_scores(one, other, samples=100, confidence=0.9)
    assert whole["resampled"] == "documents"
    cut = compare_scores(in_pieces(one), in_pieces(other), samples=100, confidence=0.9)
    for got, expected in zip(intervals(cut), intervals(whole), strict=True):
        assert got == pytest.approx(expected)


@pytest.mark.long
@pytest.mark.parametrize(("prompts", "coverage"), [(60, 0.95), (5, 0.83)])
def test_the_interval_of_correlated_documents_covers_the_truth(
    prompts: int, coverage: float
) -> None:
    """Of 4 documents a prompt, whose losses mostly follow from the prompt.

    With few prompts, the percentile bootstrap is too narrow, but less so than with documents.
    """
    repeats, covered = 200, Counter[str]()
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        nll = np.repeat(random.normal(5, 1, prompts), 4) + random.normal(0, 0.2, 4 * prompts)
        ones = np.ones(4 * prompts, np.int64)
        for unit, group in (("groups", np.repeat(range(prompts), 4)), ("documents", None)):
            one = scores(nll, ones, ones, ones, group=group)
            result = compare_scores(one, one, samples=200, confidence=0.95)
            assert result["resampled"] == unit
            loss = result["base"]["loss"]
            covered[unit] += loss["low"] <= 5 <= loss["high"]
    assert covered["groups"] / repeats == pytest.approx(coverage, abs=0.045)
    assert covered["documents"] / repeats < coverage - 0.1


def test_pieces_are_resampled_where_documents_are_few() -> None:
    one = draw(60, seed=1)
    columns = (one.nll, one.tokens, one.bytes, one.correct)
    of_one_document = scores(*columns, document=0 * one.document)
    result = compare_scores(of_one_document, of_one_document, samples=100, confidence=0.9)
    assert result.pop("resampled") == "pieces"
    whole = compare_scores(one, one, samples=100, confidence=0.9)
    assert whole.pop("resampled") == "documents"
    assert result == whole


def test_resamples_without_text_have_no_bits_per_byte() -> None:
    """A quarter of the resamples are the piece with nothing but the stop token, twice."""
    base, tuned = (scores(nll, [5, 1], [20, 0], [2, 1], [0, 0]) for nll in ([10, 1], [6, 1]))
    result = compare_scores(base, tuned, samples=200, confidence=0.95)
    found = [result[name]["bits_per_byte"] for name in ("base", "tuned", "difference")]
    # Of the others, most are both pieces, and the rest are the piece with the text, twice.
    per_nat = 1 / math.log(2) / 20
    assert [(one["low"], one["high"]) for one in found] == [
        pytest.approx((10 * per_nat, 11 * per_nat)),
        pytest.approx((6 * per_nat, 7 * per_nat)),
        pytest.approx((-4 * per_nat, -4 * per_nat)),
    ]


def test_a_figure_that_is_not_a_number_has_no_interval() -> None:
    """Though some resamples leave out the document that it is because of."""
    broken = draw(40, seed=1)
    broken.nll[0] = np.nan
    result = compare_scores(draw(40, seed=1), broken, samples=100, confidence=0.9)
    assert np.isnan([*result["tuned"]["loss"].values()]).all()
    assert np.isnan([*result["difference"]["loss"].values()]).all()
    assert np.isfinite([*result["base"]["loss"].values()]).all()


def test_a_single_piece_leaves_nothing_to_resample() -> None:
    one = scores([6.0], [3], [4], [1])
    for interval in intervals(compare_scores(one, one, samples=10, confidence=0.9)):
        assert interval["low"] == interval["value"] == interval["high"]
