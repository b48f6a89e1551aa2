"""Results of the stages around the main job, made from those of small runs."""

import base64
import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up_results
from hub_server import Hub, hub_server
from jobs import execution_of
from run_stage import stage_command
from trackers import in_tensorboard

from moray.config import extras, plan
from moray.config.schema.base import execution_keys
from moray.config.schema.experiment import Experiment
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Train
from moray.stages.card import card
from moray.stages.choose import choose
from moray.stages.report import report
from moray.stages.track import track

RUNS = Path("results/runs")
# A stand-in for llama.cpp's converter, which writes what it is asked for.
_CONVERTER = """
import sys
_, _, kind, _, file, _ = sys.argv
open(file, "w").write(kind)
"""


def folders_around(experiment: Experiment) -> dict[str, Path]:
    """Run the stages around the main job; returns the folder of the result of each."""
    made = {}
    for stage, make in AROUND.items():
        if not is_there(stage):
            continue
        made[stage] = Path("around", stage)
        made[stage].mkdir(parents=True)
        make(experiment, made[stage])
    return made


def is_there(stage: str) -> bool:
    """Whether a stage is one of the core, or of an extra that hasn't been deleted."""
    return stage not in extras.STAGES or extras.is_there(extras.STAGES[stage])


def _stage(name: str) -> Any:
    return getattr(extras.part(extras.STAGES[name], "stage"), name)


def _models(experiment: Experiment, run: str) -> tuple[Path, Path]:
    return Path(plan.start_folder(experiment, run)), RUNS / run / "model"


def _benchmark(experiment: Experiment, output: Path) -> None:
    cfg = {
        "include_path": "data/tasks",
        "tasks": ["puzzles", "text"],
        "num_fewshot": None,
        "limit": None,
        "chat_template": False,
        "precision": "fp32",
        "bootstrap_samples": 20,
        "confidence": 0.9,
    }
    models, files = _models(experiment, "texts"), sorted(Path("data/tasks").iterdir())
    execution = execution_of("benchmarks")
    _stage("benchmark")("texts", *models, files, output / "benchmarks.json", cfg, execution)


def _card(experiment: Experiment, output: Path) -> None:
    model, scores = Path("made-up/model"), Path("made-up/eval.json")
    model.mkdir(parents=True)
    (model / "README.md").write_text("---\nlibrary_name: transformers\n---\n\n# texts\n")
    lineage = {"inputs": {"results/models/tiny": "01ab"}, "training": {}}
    (model / "lineage.json").write_text(json.dumps(lineage))
    scores.write_text(json.dumps(made_up_results.scores()))
    cfg = {"run": "texts", "datasets": ["texts"], "place": "user/texts"}
    card(model, scores, [], output / "README.md", cfg)


def _choose(experiment: Experiment, output: Path) -> None:
    runs = [RUNS / "texts", RUNS / "answers"]
    cfg = {"sweep": "tried", "runs": [run.name for run in runs]}
    model = Path("results/best/tried/model")
    model.parent.mkdir(parents=True)
    choose(runs, model, output / "choice.json", cfg)
    names = sorted(path.relative_to(model).as_posix() for path in model.rglob("*.*"))
    (output / "files.json").write_text(json.dumps(names))


def _gguf(experiment: Experiment, output: Path) -> None:
    tools = Path("llama.cpp")
    tools.mkdir()
    (tools / "convert_hf_to_gguf.py").write_text(_CONVERTER)
    os.environ["LLAMA_CPP_DIR"] = str(tools.absolute())
    _stage("gguf")("talks", RUNS / "talks/model", output / "gguf", {"types": ["q8_0", "f16"]})


def _push(experiment: Experiment, output: Path) -> None:
    cfg = {"private": True, "repo": "user/texts", "run": "texts"}
    folder = RUNS / "texts/model"
    command = stage_command(
        "push", model=folder, card=folder / "README.md", output=output / "pushed.json", cfg=cfg
    )
    with hub_server(Hub(tokens={"hf_write": "write"})) as hub:
        # The server knows LFS alone.
        own = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_write", "HF_HUB_DISABLE_XET": "1"}
        subprocess.run(command, env=os.environ | own, check=True)
        (repository,) = hub.repositories.values()
        (output / "repository.json").write_text(json.dumps(sorted(repository.files)))


def _report(experiment: Experiment, output: Path) -> None:
    made_up_results.write_run(Path("made-up"), "tuned")
    page = Path("made-up/report.html")
    report(Path("made-up/results"), page, {"runs": ["tuned"]})
    before, packed, after = re.split(r'(?<=id="data">)([^<]*)', page.read_text())
    # How well it is packed depends on the machine's zlib.
    (output / "page.html").write_text(before + after)
    (output / "runs.json").write_bytes(gzip.decompress(base64.b64decode(packed)))


def _search(experiment: Experiment, output: Path) -> None:
    cfg = plan.train_config(experiment, "texts")
    del cfg["train"]["learning_rate"]
    rate = {"high": 0.1, "integer": False, "log": True, "low": 1e-5}
    cfg["search"] = {"seed": 0, "space": {"train.learning_rate": rate}, "trials": 2}
    execution = {
        "data": execution_keys(Data()),
        "ray": execution_keys(Ray(storage_path="results/state", num_workers=1)),
        "train": execution_keys(Train(launcher="torchrun", save_steps=3)),
        "proofs": "refuse",
        "tracking": [],
    }
    start, stores = plan.start_folder(experiment, "texts"), plan.store_folders(experiment, "texts")
    best, trials = output / "best.yaml", output / "trials.jsonl"
    _stage("search")(
        "texts", Path(start), [Path(store) for store in stores], best, trials, cfg, execution
    )
    # The last digits of a loss depend on the processor; trials.jsonl has it too.
    best.write_text(re.sub(r"(validation loss) [\d.]+", r"\1", best.read_text()))


def _track(experiment: Experiment, output: Path) -> None:
    run = made_up_results.write_run(Path("made-up"), "tracked")
    (run / "train.json").write_text(
        json.dumps(json.loads((run / "train.json").read_text()) | {"id": "0123456789ab"})
    )
    train, history, scores, samples = (
        run / name for name in ("train.json", "history.jsonl", "eval.json", "samples.jsonl")
    )
    tracked, cfg = output / "tracked.json", {"trackers": ["tensorboard"]}
    track(train, history, scores, [samples], [], run / "model", tracked, cfg)
    figures = ("loss", "eval_loss", "test/tuned/accuracy", "test/tuned/accuracy_high")
    points = {name: in_tensorboard(Path(), name) for name in figures}
    (output / "points.json").write_text(json.dumps(points))


# By name, what runs a stage; its results go to a folder.
AROUND: dict[str, Callable[[Experiment, Path], None]] = {
    "benchmark": _benchmark,
    "card": _card,
    "choose": _choose,
    "gguf": _gguf,
    "push": _push,
    "report": _report,
    "search": _search,
    "track": _track,
}
