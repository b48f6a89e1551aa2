"""What the page says, against computations of its own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_up_results import DIGEST, STEPS, scores, seal, write_run

from moray.proofs.comparison import Comparison, conclude, write_proof
from moray.provenance.manifest import sha256_file, write_manifest
from moray.report.columns import differing_settings
from moray.report.curves import spread
from moray.report.details import Limits, changed_settings, details_of_run, remarks
from moray.report.lineage import Node, lineage_of
from moray.report.overview import over_seeds, overview, verdict
from moray.report.quantities import count, duration, figure, memory
from moray.results import load
from moray.stages.choose import choose


@pytest.mark.parametrize(
    ("shifts", "best"),
    [
        # Intervals are 0.04 wide.
        ({"a": 0.0, "b": 0.1}, ["a"]),
        ({"a": 0.0, "b": 0.03}, []),
        ({"a": 0.2, "b": 0.1, "c": 0.0}, ["c"]),
        ({"a": 0.2, "b": 0.02, "c": 0.0}, []),
        ({"a": 0.0}, []),
    ],
)
def test_a_run_is_best_if_no_interval_overlaps_with_its_own(
    shifts: dict[str, float], best: list[str], tmp_path: Path
) -> None:
    for run, shift in shifts.items():
        write_run(tmp_path, run, shift=shift)
    rows = overview(load(tmp_path / "results"))
    assert [row.facts["run"] for row in rows if row.best] == best


def test_a_run_that_was_trained_again_is_not_best(tmp_path: Path) -> None:
    for run, shift in (("a", 0.0), ("b", 0.1)):
        write_run(tmp_path, run, shift=shift)
        seal(tmp_path, run)
    assert [row.best for row in overview(load(tmp_path / "results"))] == [True, False]
    (tmp_path / "results/runs/a/model/manifest.json").write_text("{}")
    first, second = overview(load(tmp_path / "results"))
    assert (first.tuned, first.verdict, first.outdated) == (None, None, True)
    assert not first.best
    assert not second.best
    assert remarks(load(tmp_path / "results").files["a"], [])[0] == (
        "warning",
        "eval.json was made before the last training and isn't shown; run snakemake eval",
    )


def test_comparisons_with_plain_libraries_are_shown_with_both_figures(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    compared = [
        Comparison("loss", 2.5, 2.25, "transformers 5", 4),
        Comparison("text", skipped="no time"),
    ]
    write_proof(folder / "model", conclude(compared, "warn", "runs.a"), [])
    evaluation = scores(0.0) | {"proof": conclude(compared[:1], "warn", "runs.a")}
    (folder / "eval.json").write_text(json.dumps(evaluation))
    results = load(tmp_path / "results")
    found = details_of_run(results, results.files["a"], [], [], Limits.of(1))["checks"]
    shown = [(one["what"], one["here"], one["plain"], one["holds"]) for one in found]
    assert shown == [("loss", "2.5", "2.25", False)] * 2


def test_runs_with_other_held_out_data_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    other = write_run(tmp_path, "b", shift=0.4)
    (other / "eval.json").write_text(json.dumps(scores(0.4) | {"documents": 7}))
    assert not any(row.best for row in overview(load(tmp_path / "results")))


@pytest.mark.parametrize(
    ("metric", "low", "high", "expected"),
    [
        ("bits_per_byte", -0.2, -0.1, "better"),
        ("bits_per_byte", 0.1, 0.2, "worse"),
        ("accuracy", 0.1, 0.2, "better"),
        ("chosen_loss", 0.1, 0.2, "worse"),
        ("reward_margin", -0.1, 0.2, None),
    ],
)
def test_a_difference_counts_if_its_interval_excludes_zero(
    metric: str, low: float, high: float, expected: str | None
) -> None:
    assert verdict(metric, {"low": low, "high": high}) == expected


def test_long_curves_keep_their_ends_and_spikes() -> None:
    values = np.sin(np.arange(10_000) / 500)
    values[1234], values[8765] = 50.0, -50.0
    kept = spread(values, 100)
    assert len(kept) <= 100
    assert {0, 1234, 8765, 9_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    # The outline: nowhere is a part of the curve left out.
    assert np.diff(kept).max() < 2 * 10_000 / 49
    assert spread(values[:100], 100).tolist() == list(range(100))


def test_settings_are_compared_with_the_defaults_and_with_each_other(tmp_path: Path) -> None:
    write_run(tmp_path, "a", train={"seed": 1})
    write_run(tmp_path, "b", train={"seed": 2, "learning_rate": 1e-3})
    results = load(tmp_path / "results")
    assert changed_settings(results.files["b"].settings) == [
        ("train.learning_rate", 1e-3, 5e-5),
        ("train.max_steps", 40, None),
        ("train.seed", 2, 0),
    ]
    found = differing_settings(results.settings)
    assert list(found) == ["run", "train.learning_rate", "train.seed"]
    assert found["train.seed"].tolist() == [1, 2]


def names(node: Node, kind: str) -> list[str]:
    own = [node.name] if node.kind == kind else []
    return own + [name for source in node.sources for name in names(source, kind)]


def test_the_lineage_goes_through_other_runs_back_to_the_files(tmp_path: Path) -> None:
    dataset = tmp_path / "results/datasets/functions/dataset.json"
    dataset.parent.mkdir(parents=True)
    files = {f"data/{number}.jsonl": DIGEST for number in range(9)}
    dataset.write_text(json.dumps({"source": "files", "files": files, "splits": {}}))
    write_run(tmp_path, "base")
    tuned = write_run(tmp_path, "tuned", start="results/runs/base/model")
    lineage = json.loads((tuned / "model/lineage.json").read_text())
    lineage["inputs"] |= dict.fromkeys(("results/runs/base/model/manifest.json",), "b" * 64)
    base = json.loads((tmp_path / "results/runs/base/model/lineage.json").read_text())
    for recorded, folder, digest in ((lineage, "tuned", "t"), (base, "base", "b")):
        recorded["inputs"][f"results/runs/{folder}/model/manifest.json"] = digest * 64
        path = tmp_path / f"results/runs/{folder}/model/lineage.json"
        path.write_text(json.dumps(recorded))
    runs = load(tmp_path / "results").files
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert tree.digest == "t" * 64
    assert names(tree, "model") == ["tuned", "base"]
    assert names(tree, "base model") == ["tiny"]
    assert names(tree, "tokens") == ["functions-tiny-0"] * 2
    assert names(tree, "file")[:4] == [f"data/{number}.jsonl" for number in range(4)]
    assert names(tree, "files") == ["5 more"] * 2

    # A base that was trained again since is not what the model was made from.
    base["inputs"]["results/runs/base/model/manifest.json"] = "n" * 64
    (tmp_path / "results/runs/base/model/lineage.json").write_text(json.dumps(base))
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert names(tree, "base model") == []

    # Nor are the rows of a dataset that was made again.
    dataset.write_text(json.dumps({"source": "files", "files": {"b.jsonl": DIGEST}, "splits": {}}))
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert names(tree, "dataset") == ["functions"]
    assert names(tree, "file") == []


def test_the_lineage_goes_through_the_best_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    losses, results = {"a": 2.0, "b": 1.0}, Path("results")
    for run, loss in losses.items():
        folder = write_run(Path(), run)
        line = {"step": 1, "num_steps": STEPS, "eval_loss": loss}
        (folder / "history.jsonl").write_text(json.dumps(line) + "\n")
        (folder / "model/weights.safetensors").write_text(run)
        lineage = (folder / "model/lineage.json").rename("lineage.json")
        write_manifest(folder / "model")
        lineage.rename(folder / "model/lineage.json")
        record_digest(folder / "model")
    best = Path("results/best/sweep/model")
    best.parent.mkdir(parents=True)
    folders = [results / "runs" / run for run in losses]
    choose(folders, best, best.parent / "choice.json", {"sweep": "sweep", "runs": [*losses]})
    tuned = write_run(Path(), "tuned", start=str(best))
    record_digest(best, of=tuned / "model")
    runs = load("results").files
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert names(tree, "best of") == ["sweep"]
    assert names(tree, "model") == ["tuned", "b"]
    assert names(tree, "base model") == ["tiny"]

    # If the sweep was trained again since, its models are not what this one was made from.
    record_digest(Path("results/runs/b/model"), digest=DIGEST)
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert (names(tree, "model"), names(tree, "base model")) == (["tuned", "b"], [])
    record_digest(best, of=tuned / "model", digest=DIGEST)
    tree = lineage_of(runs["tuned"], files=4)
    assert tree is not None
    assert (names(tree, "best of"), names(tree, "model")) == (["sweep"], ["tuned"])


def record_digest(model: Path, of: Path | None = None, digest: str | None = None) -> None:
    """Have a model, or another one, say of which manifest it was made."""
    lineage = (of or model) / "lineage.json"
    recorded = json.loads(lineage.read_text())
    manifest = model / "manifest.json"
    recorded["inputs"][str(manifest)] = digest or sha256_file(manifest)
    lineage.write_text(json.dumps(recorded))


def test_what_a_reader_should_know_is_said(tmp_path: Path) -> None:
    store = tmp_path / "results/tokens/functions-tiny-0"
    store.mkdir(parents=True)
    counts = {"train": {"dropped_documents": 14}, "test": {"dropped_documents": 0}}
    (store / "manifest.json").write_text(json.dumps({"task": "language", "splits": counts}))
    folder = write_run(tmp_path, "a")
    record = json.loads((folder / "train.json").read_text())
    (folder / "train.json").write_text(json.dumps(record | {"resumed_from": 20}))
    found = {"dataset": "functions", "split": "test", "documents": 10, "trained": 6, "related": 0}
    found |= {"by": "modules", "runs": ["base"]}
    (folder / "eval.json").write_text(json.dumps(scores() | {"overlaps": [found]}))
    said = remarks(
        load(tmp_path / "results").files["a"],
        ["skipped checkpoint step-9: damaged x", "warning: no checkpoint is better"],
    )
    assert [kind for kind, _ in said] == [*["warning"] * 4, "note", "warning"]
    texts = " | ".join(text for _, text in said)
    for part in (
        "resumed from step 20",
        "skipped",
        "| no checkpoint is better",
        "3 duplicates",
        "14 documents of train dropped",
        "6 of 10 test documents of functions were trained on, in modules (run base)",
    ):
        assert part in texts


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(3_100_000), "3.1 M"),
        (count(7169.9), "7,170"),
        (count(15_169.9), "15.2 k"),
        (count(None), "\N{EN DASH}"),
        (duration(9.96), "10.0 s"),
        (duration(91), "1 min 31 s"),
        (duration(7322), "2 h 2 min"),
        (figure(1.81432), "1.814"),
        (figure(123456.7), "123,457"),
        (figure(0.00012345), "0.000123"),
        (figure(float("inf")), "inf"),
        (figure(float("nan")), "\N{EN DASH}"),
        (count(float("inf")), "inf"),
        (duration(float("-inf")), "-inf"),
        (memory(float("inf")), "inf"),
    ],
)
def test_numbers_have_few_digits(shown: str, expected: str) -> None:
    assert shown == expected


def test_settings_are_compared_over_seeds(tmp_path: Path) -> None:
    shifts = {"a": [0.0, 0.02, 0.01], "b": [0.1, 0.13, 0.14, 0.5]}
    for setting, values in shifts.items():
        for seed, shift in enumerate(values):
            write_run(tmp_path, f"{setting}-seed={seed}", shift=shift, train={"seed": seed})
    write_run(tmp_path, "alone-seed=0")
    write_run(tmp_path, "a-seed=7", train={"seed": 7, "learning_rate": 1e-3})
    write_run(tmp_path, "other")
    results = load(tmp_path / "results")
    first, second = over_seeds(results, overview(results))
    assert (first.name, first.seeds, first.best) == ("a", (0, 1, 2), True)
    assert (second.name, second.seeds, second.best) == ("b", (0, 1, 2, 3), False)
    assert first.tuned.mean == pytest.approx(1.51)
    assert first.tuned.deviation == pytest.approx(0.01)
    assert first.base.deviation == 0
    assert first.from_base.value == pytest.approx(-0.49)
    assert first.from_best is None
    found = second.from_best
    assert found
    # Of the three seeds that both have. By hand: t = mean / (deviation / sqrt(3)); with two degrees
    # of freedom, p = 1 - t / sqrt(t ** 2 + 2), and the quantile of 97.5 % is 4.302653.
    differences = np.array([0.1, 0.11, 0.13])
    error = differences.std(ddof=1) / 3**0.5
    statistic = differences.mean() / error
    assert found.value == pytest.approx(differences.mean())
    assert found.p == pytest.approx(1 - statistic / (statistic**2 + 2) ** 0.5)
    assert found.high - found.value == pytest.approx(4.302653 * error, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_setting_with_a_seed_that_diverged_is_not_the_best(tmp_path: Path, value: float) -> None:
    for setting, shift in (("a", 0.0), ("b", 0.1)):
        for seed in (0, 1):
            folder = write_run(
                tmp_path, f"{setting}-seed={seed}", shift=shift, train={"seed": seed}
            )
            if (setting, seed) == ("a", 1):
                evaluation = scores()
                figures = dict.fromkeys(("value", "low", "high"), value)
                evaluation["tuned"]["bits_per_byte"] = figures
                (folder / "eval.json").write_text(json.dumps(evaluation))
    results = load(tmp_path / "results")
    diverged, other = over_seeds(results, overview(results))
    assert (diverged.best, other.best) == (False, True)
    assert not math.isfinite(diverged.tuned.mean)
    assert math.isnan(diverged.tuned.deviation)
