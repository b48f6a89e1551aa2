"""Send a finished run to its trackers, with its results."""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moray.console import say
from moray.errors import ConfigError, UserError, first_line
from moray.lines import whole_lines
from moray.provenance.lineage import LINEAGE
from moray.provenance.manifest import read_manifest, sha256_file, write_json
from moray.tracking.following import send
from moray.tracking.interface import Results, missing_packages, open_tracker, run_of_record


def track(
    train: Path,
    history: Path,
    scores: Path,
    samples: list[Path],
    benchmarks: list[Path],
    model: Path,
    output: Path,
    cfg: dict[str, Any],
) -> None:
    """Send everything that a tracker doesn't have yet.

    Raises:
        ConfigError: naming the trackers that couldn't be reached; the others have everything.
    """
    record = json.loads(train.read_text())
    run = run_of_record(record)
    if missing := list(missing_packages(run.name, cfg["trackers"])):
        raise ConfigError(missing)
    files = [scores, *samples, *benchmarks, model / LINEAGE]
    figures = dict(_figures("test", json.loads(scores.read_text())))
    for file in benchmarks:
        for task, task_figures in json.loads(file.read_text())["tasks"].items():
            figures |= _figures(f"benchmarks/{task}", task_figures)
    model_files = read_manifest(model)["files"]
    results = Results(
        step=record["steps"],
        scores=figures,
        samples=[json.loads(line) for file in samples for line in file.read_text().splitlines()],
        digests={
            **{f"model/{name}": entry["sha256"] for name, entry in model_files.items()},
            **{file.name: sha256_file(file) for file in files},
        },
        files=files,
    )
    faults: list[UserError] = []
    for name in cfg["trackers"]:
        try:
            with open_tracker(name, run) as tracker:
                send(tracker, whole_lines(history), lambda: None)
                tracker.add_results(results)
                tracker.finish()
        # Whatever a tracker raises must not keep the others from getting theirs.
        except Exception as error:
            traceback.print_exc()
            what = f"not all metrics reached {name}: {first_line(error)}"
            faults.append(
                UserError(f"runs.{run.name}.tracking", what, "run the same command again")
            )
    if faults:
        raise ConfigError(faults)
    write_json(output, {"run": run.name, "id": run.id, "trackers": cfg["trackers"]})
    say(f"uploaded {run.name} to {', '.join(cfg['trackers'])}")


def _figures(place: str, scores: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for model in ("base", "tuned"):
        for metric, figure in scores[model].items():
            # The name of a benchmark's filter follows a comma, which MLflow doesn't take.
            name = f"{place}/{model}/{metric.replace(',', '/')}"
            yield name, figure["value"]
            yield f"{name}_low", figure["low"]
            yield f"{name}_high", figure["high"]
