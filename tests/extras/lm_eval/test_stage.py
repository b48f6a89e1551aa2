"""Base and tuned on tasks of lm-evaluation-harness, against the harness's own command.

All are long: importing the harness takes seconds.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_tasks import add_generated, write_tasks
from jobs import execution_of
from resumed import check_batches_resumption, interrupted_after

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


@pytest.fixture
def small(tmp_path: Path, model_folder: Path, tuned_folder: Path) -> Any:
    """Run the stage on few documents of tasks of all kinds, for `benchmarks.json` of a folder."""
    tasks = write_tasks(tmp_path / "tasks", documents=5)
    generated = add_generated(tasks)

    def small(
        folder: Path,
        tuned: Path = tuned_folder,
        execution: dict[str, Any] = EXECUTION,
        code: str = "",
        **changes: Any,
    ) -> None:
        cfg = {**CFG, "include_path": str(tasks), "tasks": ["puzzles", "text", *generated]}
        arguments = (sorted(tasks.iterdir()), folder / "benchmarks.json", {**cfg, **changes})
        benchmark("tuned", model_folder, tuned, *arguments, execution, code)

    return small


def test_an_interrupted_benchmark_continues_and_ends_with_the_same_bytes(
    tmp_path: Path, small: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    check_batches_resumption(small, tmp_path, capfd)


def test_a_benchmark_continues_where_memory_was_too_small_for_its_batch_size(
    tmp_path: Path, small: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Takes seconds to import.
    from lm_eval.models.huggingface import HFLM

    call, sizes = HFLM._model_call, list[int]()

    def limited(self: HFLM, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = tokens.shape
        # The longest come first, so some batches of four are done before.
        if rows == 4 and length < 8:
            raise MemoryError
        sizes.append(rows)
        result: torch.Tensor = call(self, tokens)
        return result

    monkeypatch.setattr(HFLM, "_model_call", limited)
    check_batches_resumption(small, tmp_path, capfd)
    assert {2, 4} <= {*sizes}


def test_batches_of_other_models_tasks_settings_or_code_do_not_count(
    tmp_path: Path, model_folder: Path, small: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, definition = tmp_path / "own", tmp_path / "tasks/words.yaml"
    folder.mkdir()
    content = definition.read_text()

    def check(change: Callable[[pytest.MonkeyPatch], object] = bool, **other: Any) -> None:
        definition.write_text(content)
        with interrupted_after(2):
            small(folder, tasks=["words"])
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            capfd.readouterr()
            with interrupted_after(1):
                small(folder, tasks=["words"], **other)
            assert "continues" not in capfd.readouterr().err
            # They are the only ones that are kept.
            small(folder, tasks=["words"], **other)
        assert "benchmarks tuned: continues after 1 batch of" in capfd.readouterr().err
        assert [path.name for path in folder.iterdir()] == ["benchmarks.json"]

    check(tuned=model_folder)
    check(num_fewshot=1)
    check(execution=execution_of("benchmarks", batch_size=3))
    check(code="benchmark 2")
    check(lambda _: definition.write_text(f"{content}# Changed.\n"))
    other_harness = {"lm-eval": "0.0"}
    check(
        lambda patch: patch.setattr(
            "moray.extras.lm_eval.stage.version",
            lambda name: other_harness.get(name) or version(name),
        )
    )


_KILLED = """
import json, os, signal, sys
from pathlib import Path
from moray.evaluate import batches
from moray.extras.lm_eval.stage import benchmark

folders, files, count, cfg, execution = json.loads(sys.argv[1])
add = batches.BatchWriter.add
batches._SECONDS_BETWEEN_FLUSHES = 0.0

def killing(self, batch, arrays):
    global count
    add(self, batch, arrays)
    count -= 1
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)

batches.BatchWriter.add = killing
base, tuned, output = map(Path, folders)
benchmark("tuned", base, tuned, list(map(Path, files)), output, cfg, execution)
"""


def test_other_workers_continue_after_a_kill(
    tmp_path: Path, model_folder: Path, tuned_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = write_tasks(tmp_path / "tasks", documents=5)
    cfg = {**CFG, "include_path": str(tasks), "tasks": ["puzzles", *add_generated(tasks)]}
    files = sorted(tasks.iterdir())
    (tmp_path / "killed").mkdir()
    whole, output = tmp_path / "whole.json", tmp_path / "killed/benchmarks.json"
    folders = [str(folder) for folder in (model_folder, tuned_folder, output)]
    arguments = json.dumps([folders, [*map(str, files)], 13, cfg, EXECUTION])
    # Other threads round differently.
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _KILLED, arguments], env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    capfd.readouterr()
    two = execution_of("benchmarks", num_workers=2)
    benchmark("tuned", model_folder, tuned_folder, files, output, cfg, two)
    assert "benchmarks tuned: continues after 13 batches of" in capfd.readouterr().err
    assert [*output.parent.iterdir()] == [output]
    benchmark("tuned", model_folder, tuned_folder, files, whole, cfg, EXECUTION)
    assert output.read_bytes() == whole.read_bytes()
