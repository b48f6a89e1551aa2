"""What the page says first."""

import json
from pathlib import Path

import pytest
from made_up_results import scores, write_run
from pages import Parsed

from moray.config.schema.report import Report
from moray.report.answer import Answer, answers
from moray.report.overview import over_seeds, overview
from moray.report.page import render
from moray.results import load


def answers_of(project: Path) -> list[Answer]:
    results = load(project / "results")
    rows = overview(results)
    return answers(results, rows, over_seeds(results, rows))


def first_words(project: Path, about: Report | None = None) -> str:
    """The text of the page before its table."""
    page = render(load(project / "results"), about)
    return " ".join(Parsed(page).text.partition("Plot")[0].split())


@pytest.mark.parametrize(
    ("shifts", "said"),
    [
        # Intervals are 0.04 wide; the base has 2.0.
        ({"a": 0.0}, "a is better than its base: bits per byte 2.000 → 1.500, a difference of"),
        ({"a": 0.7}, "a is worse than its base"),
        ({"a": 0.49}, "a doesn't clearly differ from its base"),
        ({"a": 0.1, "b": 0.0}, "b is the best of 2 runs, and is better than its base"),
        (
            {"a": 0.02, "b": 0.0},
            "None of 2 runs is clearly the best: intervals overlap. The first, b",
        ),
    ],
)
def test_the_page_begins_with_the_answer(
    shifts: dict[str, float], said: str, tmp_path: Path
) -> None:
    for run, shift in shifts.items():
        write_run(tmp_path, run, shift=shift)
    assert said in first_words(tmp_path)


def test_the_answer_has_the_interval_of_the_difference(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    assert "-0.5000 [-0.5200, -0.4800], on 100 documents." in first_words(tmp_path)


def test_seeds_are_one_line_with_their_spread(tmp_path: Path) -> None:
    for setting, shift in (("a", 0.1), ("b", 0.0)):
        for seed in range(3):
            shift_of_seed = shift + 0.01 * seed
            write_run(tmp_path, f"{setting}-seed={seed}", shift=shift_of_seed, train={"seed": seed})
    (found,) = answers_of(tmp_path)
    assert [line.name for line in found.lines] == ["b", "a"]
    assert found.lines[0].tuned == pytest.approx({"low": 1.5, "value": 1.51, "high": 1.52})
    assert found.lead is not None
    assert found.lead["value"] == pytest.approx(0.1)
    said = first_words(tmp_path)
    assert "b has the best mean of 2 settings, and is better than its base" in said
    assert "2.000 → 1.510 ± 0.01000" in said


def test_marks_are_drawn_in_proportion(tmp_path: Path) -> None:
    for run, shift in (("a", 0.0), ("b", 0.25)):
        write_run(tmp_path, run, shift=shift)
    (found,) = answers_of(tmp_path)
    assert found.axis is not None
    low, high = found.axis
    for line, tuned in zip(found.lines, (1.5, 1.75), strict=True):
        assert line.places is not None
        for mark, value in (("tuned", tuned), ("base", 2.0)):
            place = low + (high - low) * line.places[mark]["value"] / 100
            assert place == pytest.approx(value, abs=1e-3)


def test_runs_that_others_start_from_come_last(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a", samples=[])
    (folder / "eval.json").write_text(json.dumps(scores() | {"documents": 7}))
    write_run(tmp_path, "b", start="results/runs/a/model")
    assert [found.lines[0].run for found in answers_of(tmp_path)] == ["b", "a"]


def test_a_run_that_diverged_comes_last_and_is_not_drawn(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    figures = dict.fromkeys(("value", "low", "high"), float("nan"))
    (folder / "eval.json").write_text(
        json.dumps(scores() | {"tuned": {"bits_per_byte": figures, "accuracy": figures}})
    )
    write_run(tmp_path, "b")
    (found,) = answers_of(tmp_path)
    assert [line.run for line in found.lines] == ["b", "a"]
    assert found.lines[1].places is None
    assert "nan" not in first_words(tmp_path)


def test_without_figures_the_page_says_what_makes_them(tmp_path: Path) -> None:
    (write_run(tmp_path, "a") / "eval.json").unlink()
    assert "No run is evaluated yet; run snakemake eval." in first_words(tmp_path)


def test_the_page_has_title_author_text_and_day(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "a")
    line = {"step": 41, "num_steps": 41, "note": "x", "time": 1_700_000_000.0}
    with (folder / "history.jsonl").open("a") as history:
        history.write(json.dumps(line) + "\n")
    text = "Small <b>data</b>.\nStill\n\n\nthe next"
    about = Report(title="Does it <i>learn</i>?", author="A. B.", text=text)
    said = first_words(tmp_path, about)
    assert said.startswith("Does it <i>learn</i>? Does it <i>learn</i>? A. B. · 14 November 2023")
    page = Parsed(render(load(tmp_path / "results"), about))
    assert not {"b", "i"} & {tag for tag, _ in page.tags}
    assert "Small <b>data</b>.\nStill" in page.text
    assert [tag for tag, _ in page.tags].count("h1") == 1


def test_runs_are_shown_beside_each_other_for_the_same_prompts(tmp_path: Path) -> None:
    same = {"prompt": "def f():", "reference": " return 1", "base": " x"}
    write_run(tmp_path, "a", samples=[same | {"tuned": " of a"}])
    other = same | {"prompt": "def g():", "tuned": "alone"}
    write_run(tmp_path, "b", samples=[other, same | {"tuned": " of b"}], shift=0.1)
    page = Parsed(render(load(tmp_path / "results"))).text
    samples = " ".join(page.partition("the best first.")[2].partition("Curves")[0].split())
    assert "Promptdef f(): Expected answer return 1 Base x a of a b of b" in samples
    assert "alone" not in samples
