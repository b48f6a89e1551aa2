"""Base and tuned on tasks of lm-evaluation-harness, against the harness's own command.

All are long: importing the harness takes seconds.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_tasks import write_tasks
from jobs import execution_of

from moray.errors import ConfigError, UserError
from moray.extras.lm_eval.stage import benchmark

pytestmark = pytest.mark.long

CFG = {
    "tasks": ["puzzles", "text"],
    "num_fewshot": None,
    "limit": None,
    "chat_template": False,
    "precision": "auto",
    "bootstrap_samples": 30,
    "confidence": 0.9,
}
EXECUTION = execution_of("benchmarks")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("benchmarks") / "tasks")


@pytest.fixture
def run(tmp_path: Path, tasks: Path, model_folder: Path, tuned_folder: Path) -> Any:
    """Run the stage with changed keys; returns what it wrote."""

    def run(execution: dict[str, Any] = EXECUTION, **changes: Any) -> dict[str, Any]:
        output = tmp_path / "benchmarks.json"
        cfg = {"include_path": str(tasks), **CFG, **changes}
        files = sorted(tasks.iterdir())
        benchmark("tuned", model_folder, tuned_folder, files, output, cfg, execution)
        result: dict[str, Any] = json.loads(output.read_text())
        return result

    return run


def of_command(folder: Path, tasks: Path, output: Path, *options: str) -> dict[str, Any]:
    """What `lm_eval` says of a model, with what it logged of each document."""
    subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu"),
            *("--model_args", f"pretrained={folder}", "--tasks", "puzzles,text"),
            *("--include_path", str(tasks), "--batch_size", "4"),
            *("--output_path", str(output), "--log_samples", *options),
        ],
        check=True,
        capture_output=True,
    )
    (file,) = output.rglob("results_*.json")
    found: dict[str, Any] = json.loads(file.read_text())["results"]
    return found | {
        "documents": {
            file.name.split("_")[1]: [json.loads(line) for line in file.read_text().splitlines()]
            for file in output.rglob("samples_*.jsonl")
        }
    }


def figures(result: dict[str, Any], model: str) -> dict[tuple[str, str], float]:
    return {
        (task, metric): figure["value"]
        for task, found in result["tasks"].items()
        for metric, figure in found[model].items()
    }


def expected(command: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {
        (task, key.removesuffix(",none")): pytest.approx(value, rel=1e-5)
        for task, found in command.items()
        if task != "documents"
        for key, value in found.items()
        if "," in key and "stderr" not in key
    }


@pytest.mark.release
def test_figures_are_those_of_the_harness_s_own_command(
    tmp_path: Path, tasks: Path, model_folder: Path, tuned_folder: Path, run: Any
) -> None:
    result = run(bootstrap_samples=2000)
    base = of_command(model_folder, tasks, tmp_path / "base")
    tuned = of_command(tuned_folder, tasks, tmp_path / "tuned")
    assert figures(result, "base") == expected(base)
    assert figures(result, "tuned") == expected(tuned)
    assert set(result["tasks"]) == {"words", "order", "puzzles", "text"}
    assert figures(result, "base") != figures(result, "tuned")
    assert {*map(str, tasks.iterdir())} <= set(result["inputs"])
    # Means of 30 documents; the difference is of pairs. An interval of 90 % has 1.645 standard
    # errors on each side, of a normal distribution.
    scores = [
        np.array([one["acc"] for one in sorted(found, key=lambda one: one["doc_id"])])
        for found in (base["documents"]["words"], tuned["documents"]["words"])
    ]
    for name, values in zip(
        ("base", "tuned", "difference"), [*scores, scores[1] - scores[0]], strict=True
    ):
        interval = result["tasks"]["words"][name]["acc"]
        width = 2 * 1.645 * values.std() / len(values) ** 0.5
        assert interval["value"] == pytest.approx(values.mean())
        assert interval["high"] - interval["low"] == pytest.approx(width, abs=0.05)


@pytest.mark.release
def test_examples_and_limit_are_those_of_the_command(
    tmp_path: Path, tasks: Path, tuned_folder: Path, run: Any
) -> None:
    plain = run(limit=11)
    assert plain["tasks"]["words"]["documents"] == 11
    assert plain["tasks"]["puzzles"]["documents"] == 22
    result = run(num_fewshot=2, limit=11)
    options = ("--num_fewshot", "2", "--limit", "11")
    command = of_command(tuned_folder, tasks, tmp_path / "tuned", *options)
    assert figures(result, "tuned") == expected(command)
    assert result["tasks"]["words"]["num_fewshot"] == 2
    assert plain["tasks"]["words"]["num_fewshot"] == 0


TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.mark.release
def test_both_models_get_prompts_in_the_chat_template_of_the_run(
    tmp_path: Path, tasks: Path, model_folder: Path, tuned_folder: Path
) -> None:
    folders = {"base": model_folder, "tuned": tuned_folder}
    chats = {name: shutil.copytree(folder, tmp_path / name) for name, folder in folders.items()}
    for folder in chats.values():
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    output, cfg = tmp_path / "benchmarks.json", {**CFG, "include_path": str(tasks)}
    cfg |= {"num_fewshot": 2, "chat_template": True}
    # The base has no template of its own.
    arguments = ([*tasks.iterdir()], output, cfg, EXECUTION)
    benchmark("tuned", model_folder, chats["tuned"], *arguments)
    result = json.loads(output.read_text())
    options = ("--num_fewshot", "2", "--apply_chat_template")
    for name, folder in chats.items():
        command = of_command(folder, tasks, tmp_path / f"of {name}", *options)
        assert figures(result, name) == expected(command)
    with pytest.raises(UserError, match=r"^runs\.tuned\.benchmarks\.chat_template: got true, but"):
        benchmark("tuned", model_folder, tuned_folder, *arguments)


def test_only_the_tasks_of_the_config_run(run: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert set(run(tasks=["words"])["tasks"]) == {"words"}
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tuned: ")]
    assert [line.split()[1:3] for line in said] == [["words", "acc"], ["words", "acc_norm"]]


@pytest.mark.release
def test_two_workers_find_the_same(run: Any) -> None:
    assert run(execution_of("benchmarks", num_workers=2))["tasks"] == run()["tasks"]


def test_models_compute_in_the_precision_that_the_config_names(run: Any) -> None:
    fp32, bf16 = (
        run(tasks=["text"], precision=precision)["tasks"]["text"]["tuned"]["bits_per_byte"]
        for precision in ("fp32", "bf16")
    )
    assert fp32["value"] != bf16["value"]
    assert fp32["value"] == pytest.approx(bf16["value"], rel=0.05)


def test_unknown_tasks_and_a_missing_package_cost_one_line(
    run: Any, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as error:
        run(tasks=["wrods"])
    assert str(error.value).startswith(
        f"runs.tuned.benchmarks.tasks: got wrods, expected a task, group or tag in {tasks} or of "
        "lm-evaluation-harness; did you mean words?"
    )
    monkeypatch.setattr("moray.extras.lm_eval.requirements.find_spec", lambda name: None)
    missing = r"lm-eval is not installed; pip install 'moray\[benchmarks\]'$"
    with pytest.raises(ConfigError, match=missing):
        run()


def test_a_task_whose_data_is_missing_costs_one_line(tmp_path: Path, run: Any) -> None:
    folder = write_tasks(tmp_path / "broken")
    (folder / "words-test.jsonl").unlink()
    with pytest.raises(UserError, match=r"^runs\.tuned\.benchmarks\.tasks: can't load the tasks"):
        run(tasks=["words"], include_path=str(folder))
    assert not (tmp_path / "benchmarks.json").exists()


def test_code_in_a_task_file_runs(tmp_path: Path, run: Any) -> None:
    """As the documentation warns."""
    folder, trace = write_tasks(tmp_path / "tasks"), tmp_path / "trace"
    (folder / "own.py").write_text(
        f"def question(doc):\n    open({str(trace)!r}, 'w').close()\n    return doc['question']\n"
    )
    file = folder / "words.yaml"
    file.write_text(file.read_text().replace("'{{question}}'", "!function own.question"))
    changed = run(tasks=["words"], include_path=str(folder))
    assert trace.exists()
    assert changed["tasks"] == run(tasks=["words"])["tasks"]
