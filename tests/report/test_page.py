"""The page as a file: complete, escaped, small, and with nothing to load."""

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_up_results import DIGEST, STEPS, scores, seal, write_run, write_state
from pages import Parsed, runs_in, unpacked

from moray.report.page import render
from moray.results import MODELS, load

IMAGE = "<img src=x onerror='window.hurt = 1'>"
HOSTILE = f"</script></pre><script>window.hurt = 1</script>{IMAGE}"


def page_of(project: Path) -> str:
    return render(load(project / "results"))


def test_each_run_has_a_row_and_details(tmp_path: Path) -> None:
    for run in ("base", "tuned"):
        write_run(tmp_path, run)
    page = page_of(tmp_path)
    text = Parsed(page).text
    assert "2 runs" in text
    assert "tuned" in text
    assert "1.500[1.480, 1.520]" in "".join(text.split("\n")).replace("  ", "")
    details = Parsed(runs_in(page)["tuned"]["html"]).text
    # Facts, a note, a sample, a setting, the software and the lineage.
    for shown in ("3.1 M", "not compiled", "return 2", "train.max_steps", "2.13.0", DIGEST[:12]):
        assert shown in details


def test_curves_have_the_points_of_the_history(tmp_path: Path) -> None:
    write_run(tmp_path, "base")
    curves = runs_in(page_of(tmp_path))["base"]["curves"]
    assert set(curves) == {"loss", "eval_loss", "learning_rate", "grad_norm", "speed"}
    steps, losses = curves["loss"]
    assert steps == list(range(1, STEPS + 1))
    assert losses == pytest.approx([5 / step**0.5 for step in steps], rel=1e-4)
    assert curves["eval_loss"][0] == [10, 20, 30, 40]


def test_the_time_of_a_step_is_that_of_the_steps_before_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    # As if only every fourth step was logged; the time is the mean of four.
    kept = [line for line in lines if line["step"] % 4 == 0]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    steps, seconds = runs_in(page_of(tmp_path))["a"]["times"]
    assert steps == [0, *range(4, STEPS + 1, 4)]
    assert seconds == pytest.approx([0.1 * step for step in steps])


def test_runs_that_differ_in_their_seed_have_a_setting(tmp_path: Path) -> None:
    for name, train in (
        ("a-seed=0", {"seed": 0}),
        ("a-seed=1", {"seed": 1}),
        ("a-seed=2", {"seed": 2, "weight_decay": 0.5}),
        ("b", {"seed": 3}),
    ):
        write_run(tmp_path, name, train=train)
    found = {name: run["setting"] for name, run in runs_in(page_of(tmp_path)).items()}
    assert found == {"a-seed=0": "a", "a-seed=1": "a", "a-seed=2": None, "b": None}


def test_texts_of_data_and_models_are_escaped(tmp_path: Path) -> None:
    sample = dict.fromkeys(("prompt", "reference", "base", "tuned"), HOSTILE)
    write_run(tmp_path, "a", samples=[sample], start=f"results/models/{IMAGE}")
    preview = tmp_path / "results/tokens/functions-tiny-0/preview.txt"
    preview.parent.mkdir(parents=True)
    preview.write_text(f"⟦{HOSTILE}⟧ and ⟦cut")
    page = page_of(tmp_path)
    details = runs_in(page)["a"]["html"]
    for html, scripts in ((page, 0), (details, 5)):
        parsed = Parsed(html)
        assert all(attributes.get("src") != "x" for _, attributes in parsed.tags)
        assert "hurt" not in "".join(parsed.raw.values())
        assert parsed.text.count("<script>window.hurt = 1</script>") == scripts
        assert parsed.text.count(IMAGE) > scripts
    assert details.count("<mark>") == details.count("</mark>")


def test_a_page_refers_only_to_itself(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    page = page_of(tmp_path)
    for html in (page, runs_in(page)["a"]["html"]):
        assert all(address.startswith(("#", "data:image/")) for address in Parsed(html).addresses())
    own = Parsed(page).raw
    assert not re.search(r"https?://|url\(|@import", own["style"] + own["script"])


def test_the_policy_allows_the_scripts_of_the_page_and_no_network(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    parsed = Parsed(page_of(tmp_path))
    policies = [facts for _, facts in parsed.tags if "http-equiv" in facts]
    (policy,) = (str(facts["content"]) for facts in policies)
    assert policy.startswith("default-src 'none'; ")
    scripts = (parsed.raw["script"], unpacked(parsed.raw["library"]))
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    assert page_of(tmp_path) == page_of(tmp_path)


def test_unfinished_and_failed_runs_are_shown_as_far_as_they_got(tmp_path: Path) -> None:
    write_state(tmp_path, "killed", until=12)
    write_state(tmp_path, "failed", until=3)
    log = tmp_path / "logs/finetune/failed.log"
    log.parent.mkdir(parents=True)
    log.write_text("error: train.learning_rate: got a gradient norm of nan; lower it\n")
    page = page_of(tmp_path)
    assert "1 unfinished · 1 failed" in Parsed(page).text
    details = runs_in(page)
    assert details["killed"]["curves"]["loss"][0] == list(range(1, 13))
    assert "got a gradient norm of nan" in Parsed(details["failed"]["html"]).text


def test_a_trained_run_without_evaluation_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    for name in ("eval.json", "samples.jsonl", "generation.json", "model/lineage.json"):
        (folder / name).unlink()
    assert "3.1 M" in Parsed(page_of(tmp_path)).text


@pytest.mark.parametrize("exported", [False, True])
def test_figures_of_an_earlier_training_are_not_shown_as_current(
    tmp_path: Path, exported: bool
) -> None:
    folder = write_run(tmp_path, "a")
    seal(tmp_path, "a")
    changed = folder / ("model/manifest.json" if exported else "train.json")
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"software": {}}))
    page = page_of(tmp_path)
    details = Parsed(runs_in(page)["a"]["html"]).text
    for text in (Parsed(page).text, details):
        assert not re.search(r"1\.500|return 2|better", text)
    assert "evaluated before the last training; run snakemake eval" in Parsed(page).text
    assert "because it was evaluated before the last training: a." in Parsed(page).text
    # The model itself, its size and what it was made from are current if it was exported again.
    assert ("of an earlier training" in details) != exported
    assert ("3.1 M" in details) == exported
    assert ("Lineage of the earlier model" in details) != exported


def test_a_page_without_runs_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert "0 runs" in Parsed(page_of(tmp_path)).text


def test_benchmarks_are_shown_with_their_task(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    figure = {"brier_score": {"value": 0.25, "low": 0.2, "high": 0.3}}
    difference = {"brier_score": {"value": -0.1, "low": -0.2, "high": -0.05}}
    task = {"documents": 1234, "higher_is_better": {"brier_score": False}, "base": figure}
    task |= {"tuned": figure, "difference": difference}
    (folder / "benchmarks.json").write_text(json.dumps({"tasks": {"<words>": task}}))
    text = Parsed(runs_in(page_of(tmp_path))["a"]["html"]).text
    shown = text.partition("Benchmark <words>")[2].split()
    assert shown[1] == "1,234"
    # Less of it is better.
    assert shown[shown.index("brier") :][11] == "better"


def test_held_out_references_are_not_said_to_be_trained(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    details = runs_in(page_of(tmp_path))["a"]["html"]
    samples = Parsed(details).text.partition("Samples")[2]
    assert "Expected answer" in samples
    assert "in training" not in samples
    assert "<mark>" not in details


def test_metrics_of_the_samples_are_shown_beside_them(tmp_path: Path) -> None:
    sample = {"prompt": "def f():", "reference": " return 1", "base": " x", "tuned": " return 2"}
    judged = {"base_exact_match": False, "tuned_exact_match": True, "tuned_chrf": 12.34}
    folder = write_run(tmp_path, "a", samples=[sample | judged, sample])
    means = {"value": 0.5, "low": 0.4, "high": 0.6}
    of_models = dict.fromkeys(("base", "tuned", "difference"), means)
    record = {"temperature": 0.25, "metrics": {"exact_match": {"samples": 2, **of_models}}}
    (folder / "generation.json").write_text(json.dumps(record))
    text = Parsed(runs_in(page_of(tmp_path))["a"]["html"]).text
    samples = text.partition("Samples")[2]
    assert "temperature 0.25" in samples
    assert "metrics" not in samples
    of_all, *each = samples.split("Prompt")
    assert "better" in of_all.partition("exact match")[2]
    first, second = (" ".join(text.split()) for text in each)
    assert "Base (exact match: no) x Tuned (exact match: yes, chrf: 12.34) return 2" in first
    assert "exact match" not in second


def with_floats(value: Any, replaced: Iterator[float]) -> Any:
    """A content of a JSON file with other floats."""
    if isinstance(value, dict):
        return {key: with_floats(item, replaced) for key, item in value.items()}
    return next(replaced) if isinstance(value, float) else value


@pytest.mark.long
@pytest.mark.parametrize("numbers", [["nan"], ["inf", "-inf", "nan"]], ids=str)
@pytest.mark.parametrize(
    "file",
    [
        "eval.json",
        "history.jsonl",
        "generation.json",
        "samples.jsonl",
        "benchmarks.json",
        "train.json",
        "model/lineage.json",
    ],
)
def test_a_run_without_finite_figures_hides_no_other(
    tmp_path: Path, file: str, numbers: list[str]
) -> None:
    judged = {"prompt": "def f():", "reference": "", "base": "", "tuned": "", "tuned_chrf": 12.34}
    for seed, run in enumerate(["x-seed=0", "x-seed=1", "y-seed=0", "y-seed=1"]):
        folder = write_run(tmp_path, run, samples=[judged], train={"seed": seed % 2})
        task = {"documents": 9, **{model: scores()[model] for model in MODELS}}
        (folder / "benchmarks.json").write_text(json.dumps({"tasks": {"words": task}}))
        metrics = {"chrf": {"samples": 2, **{model: task[model]["accuracy"] for model in MODELS}}}
        record = {"temperature": 0.25, "confidence": 0.95, "metrics": metrics}
        (folder / "generation.json").write_text(json.dumps(record))
    expected = runs_in(page_of(tmp_path))["y-seed=1"]
    broken = tmp_path / "results/runs/x-seed=0" / file
    lines = broken.read_text().splitlines() if file.endswith("l") else [broken.read_text()]
    replaced = itertools.cycle(map(float, numbers))
    changed = [json.dumps(with_floats(json.loads(line), replaced)) for line in lines]
    broken.write_text("".join(f"{line}\n" for line in changed))
    page = page_of(tmp_path)
    runs = runs_in(page)
    assert runs["y-seed=1"] == expected
    assert "def f():" in Parsed(runs["x-seed=0"]["html"]).text
    # In the comparison, and above its details.
    assert 'href="#run-x-seed=0"' in page
    assert "x, seed 0" in Parsed(page).text


def test_a_run_whose_record_is_damaged_keeps_its_samples(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "damaged")
    (folder / "train.json").write_text("{")
    shown = Parsed(runs_in(page_of(tmp_path))["damaged"]["html"]).text
    assert "Samples" in shown
    assert "def f():" in shown


@pytest.mark.long
def test_a_page_of_a_thousand_runs_is_small(tmp_path: Path) -> None:
    text = " ".join(f"word{number % 97}" for number in range(400))
    sample = dict.fromkeys(("prompt", "reference", "base", "tuned"), text)
    for number in range(1000):
        write_run(tmp_path, f"run-{number}", samples=[sample] * 8, steps=120)
    page = page_of(tmp_path)
    assert len(page.encode()) < 10_000_000
    assert Parsed(page).text.count("bits per byte") >= 1000
    assert len(runs_in(page)) == 1000
