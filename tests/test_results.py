"""The data frames of results, finished or not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_results import STEPS, scores, seal, write_run, write_state

from moray.errors import UserError
from moray.results import MODELS, load


def test_a_finished_run_has_a_row_of_facts(tmp_path: Path) -> None:
    write_run(tmp_path, "tuned", start="results/runs/base/model")
    runs = load(tmp_path / "results").runs
    assert len(runs) == 1
    facts = runs.iloc[0]
    assert (facts["run"], facts["status"], facts["task"]) == ("tuned", "finished", "language")
    assert (facts["base"], facts["datasets"]) == ("base", "functions")
    assert (facts["parameters"], facts["steps"], facts["seconds"]) == (3_100_000, STEPS, 12.5)
    # Steps take the same time, with 1,000 and 2,000 tokens a second in turn.
    assert (facts["throughput"], facts["unit"]) == (pytest.approx(1500), "tokens")


def test_an_unfinished_run_has_the_history_and_settings_of_its_newest_state(tmp_path: Path) -> None:
    write_state(tmp_path, "killed", until=30, fingerprint="old")
    write_state(tmp_path, "killed", until=12, fingerprint="new")
    (tmp_path / "results/state/.compiled/x").mkdir(parents=True)
    results = load(tmp_path / "results")
    facts = results.runs.iloc[0]
    assert list(results.runs["run"]) == ["killed"]
    assert (facts["status"], facts["task"]) == ("unfinished", "preference")
    assert (facts["steps"], facts["num_steps"]) == (12, STEPS)
    assert results.history["step"].max() == 12
    assert results.settings["train.max_steps"].tolist() == [STEPS]
    assert results.scores.empty
    assert results.samples.empty


def test_the_state_can_be_elsewhere(tmp_path: Path) -> None:
    write_state(tmp_path / "disk", "killed", until=3)
    (tmp_path / "results").mkdir()
    results = load(tmp_path / "results", state=tmp_path / "disk/results/state")
    assert results.runs["steps"].tolist() == [3]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("error: train.learning_rate: got a gradient norm of nan; lower it", "failed"),
        ("runs.a: stopped at step 9 as requested, and saved; run it again", "unfinished"),
        # As earlier versions wrote it.
        ("error: runs.a: stopped at step 9 as requested, and saved; run it again", "unfinished"),
        ("step 9", "unfinished"),
    ],
)
def test_a_run_failed_if_its_log_ends_with_an_error(tmp_path: Path, last: str, status: str) -> None:
    log = tmp_path / "logs/finetune/a.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"error: of an earlier start\nstep 1\n{last}\n")
    write_state(tmp_path, "a", until=9)
    facts = load(tmp_path / "results").runs.iloc[0]
    assert facts["status"] == status
    assert (facts["error"] or "") in last
    write_run(tmp_path, "a")
    assert load(tmp_path / "results").runs["status"].tolist() == ["finished"]


def test_histories_are_tidy(tmp_path: Path) -> None:
    for run in ("a", "b"):
        write_run(tmp_path, run)
    history = load(tmp_path / "results").history
    assert history.groupby("run")["kind"].value_counts().to_dict() == {
        (run, kind): count
        for run in ("a", "b")
        for kind, count in (("train", STEPS), ("evaluation", 4), ("note", 1))
    }
    held_out = history[(history["run"] == "b") & (history["kind"] == "evaluation")]
    assert held_out["step"].tolist() == [10, 20, 30, 40]
    assert held_out["eval_loss"].tolist() == [5.5 / step**0.5 for step in (10, 20, 30, 40)]
    assert held_out["loss"].isna().all()


def test_scores_of_a_mixture_are_there_for_each_dataset(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "mixed")
    whole = scores() | {"datasets": {"modules": scores(shift=0.25)}}
    (folder / "eval.json").write_text(json.dumps(whole))
    found = load(tmp_path / "results").scores
    tuned = found[(found["model"] == "tuned") & (found["metric"] == "bits_per_byte")]
    together, alone = tuned[tuned["dataset"].isna()], tuned[tuned["dataset"] == "modules"]
    assert together[["value", "low", "high"]].to_numpy().tolist() == [[1.5, 1.48, 1.52]]
    assert alone["value"].tolist() == [1.75]


def test_benchmarks_are_scores_of_their_tasks(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    (folder / "benchmarks.json").write_text(json.dumps({"tasks": {"words": scores(shift=0.25)}}))
    found = load(tmp_path / "results").scores
    mine = found[(found["dataset"] == "words") & (found["model"] == "tuned")]
    assert mine.set_index("metric")["value"].to_dict() == {"bits_per_byte": 1.75, "accuracy": 0.375}


def test_metrics_of_continuations_are_scores(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    means = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in scores() if name in MODELS}
    record = {"temperature": 0.0, "metrics": {"chrf": {"samples": 2, **means}}}
    (folder / "generation.json").write_text(json.dumps(record))
    found = load(tmp_path / "results").scores
    mine = found[found["metric"] == "chrf"]
    assert mine["model"].tolist() == list(MODELS)
    assert mine[["value", "low", "high"]].to_numpy().tolist() == [[0.5, 0.4, 0.6]] * 3
    assert mine["dataset"].isna().all()


def changed_model(folder: Path) -> None:
    (folder / "model/manifest.json").write_text(json.dumps({"parameters": 1, "files": {}}))


def changed_training(folder: Path) -> None:
    record = json.loads((folder / "train.json").read_text())
    (folder / "train.json").write_text(json.dumps(record | {"steps": 3}))


def failed_training(folder: Path) -> None:
    """Snakemake removes what a stage makes before it makes it again."""
    (folder / "train.json").unlink()


@pytest.mark.parametrize("again", [changed_model, changed_training, failed_training])
def test_figures_of_an_earlier_model_are_not_read(
    tmp_path: Path, again: Callable[[Path], None]
) -> None:
    folder = write_run(tmp_path, "a")
    means = {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in scores() if name in MODELS}
    record = {"temperature": 0.0, "metrics": {"chrf": {"samples": 2, **means}}}
    (folder / "generation.json").write_text(json.dumps(record))
    (folder / "benchmarks.json").write_text(json.dumps({"tasks": {"words": scores()}}))
    seal(tmp_path, "a")
    before = load(tmp_path / "results")
    assert before.runs["outdated"].tolist() == [None]
    assert (len(before.scores), len(before.samples)) == (15, 2)
    again(folder)
    after = load(tmp_path / "results")
    assert after.runs["outdated"].tolist() == ["eval.json, benchmarks.json, generation.json"]
    assert (len(after.scores), len(after.samples)) == (0, 0)


def test_inputs_that_were_removed_make_no_figure_an_earlier_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    gone = {"results/tokens/functions-tiny-0/manifest.json": "0" * 64}
    (folder / "eval.json").write_text(json.dumps(scores() | {"inputs": gone}))
    seal(tmp_path, "a")
    # Also of results that were copied to a folder of another name.
    copied = (tmp_path / "results").rename(tmp_path / "old")
    assert not load(copied).scores.empty


def test_stages_have_their_time_and_memory(tmp_path: Path) -> None:
    for run, memory in (("a", "995.5"), ("b", "NA")):
        file = tmp_path / f"results/benchmarks/finetune/{run}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\th:m:s\tmax_rss\tcpu_time\n61.5\t0:01:01\t{memory}\t15.2\n")
    stages = load(tmp_path / "results").stages
    assert stages["name"].tolist() == ["a", "b"]
    assert stages["seconds"].tolist() == [61.5, 61.5]
    assert stages["max_rss"].fillna(-1).tolist() == [995.5, -1]


def test_some_runs_can_be_chosen(tmp_path: Path) -> None:
    for run in ("a", "b"):
        write_run(tmp_path, run)
    assert load(tmp_path / "results", runs=["b"]).runs["run"].tolist() == ["b"]


def test_without_any_run_the_frames_have_their_columns(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    results = load(tmp_path / "results")
    assert results.runs.empty
    assert list(results.history)[:2] == ["run", "kind"]


def test_a_wrong_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"elsewhere: folder not found; give the folder"):
        load(tmp_path / "elsewhere")
