"""Run the experiment: `python -m benchmarks.startup`."""

import itertools
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import typer
import yaml

from benchmarks.train.contestants import CORES
from benchmarks.train.setting import BATCH_SIZE, BLOCK_SIZE, MODEL
from moray.train.history import HISTORY, read_history

_ROOT = Path(__file__).parents[2]
_RUN, _RESULT = "startup", "results/runs/startup/train.json"
LAUNCHERS = ("ray", "torchrun")
# What ends each of them lies in the run's work folder.
PHASES = {
    "Snakemake; the stage's imports and checks": "driver.lock",
    "starting the workers; their imports": "writer.lock",
    "model, trial of the compiler": HISTORY,
    "the first step": HISTORY,
}


def main(rounds: int = 3) -> None:
    """Time the workflow's training job with each launcher, from the command on.

    Args:
        rounds: turns of each launcher that count.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in LAUNCHERS}
    with tempfile.TemporaryDirectory(prefix="moray-benchmark-") as temporary:
        folders = {name: _prepare(Path(temporary, name), name) for name in LAUNCHERS}
        # The first makes data, model, tokens and compiled code.
        for count in range(1 + rounds):
            for name, folder in folders.items():
                phases = _measure(folder)
                if count:
                    seconds[name].append(phases)
    print(_table(seconds))


def _prepare(folder: Path, launcher: str) -> Path:
    """A working directory with a run of three steps."""
    experiment = {
        "datasets": {"modules": {"source": "python-stdlib", "format": "text"}},
        "models": {"small": MODEL},
        "runs": {
            _RUN: {
                "model": "small",
                "dataset": "modules",
                "data": {"block_size": BLOCK_SIZE},
                "train": {
                    "launcher": launcher,
                    "max_steps": 3,
                    "global_batch_size": BATCH_SIZE,
                    "micro_batch_size": BATCH_SIZE // CORES,
                    "learning_rate": 1e-3,
                    "logging_steps": 1,
                    "eval_rows": 1,
                    "compile": True,
                },
                "ray": {"num_workers": CORES},
            }
        },
    }
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(yaml.safe_dump(experiment))
    return folder


def _measure(folder: Path) -> list[float]:
    """Seconds of each phase of a run from its beginning."""
    shutil.rmtree(folder / "results/state" / _RUN, ignore_errors=True)
    (folder / _RESULT).unlink(missing_ok=True)
    times = [time.perf_counter()]
    command = ["snakemake", "--snakefile", str(_ROOT / "Snakefile"), "--cores", str(CORES), _RESULT]
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        while len(times) <= len(PHASES):
            if process.poll():
                raise RuntimeError((folder / "output.log").read_text()[-2000:])
            if _ended(len(times) - 1, folder):
                times.append(time.perf_counter())
            else:
                time.sleep(0.01)
        process.wait()
    return [end - begin for begin, end in itertools.pairwise(times)]


def _ended(phase: int, folder: Path) -> bool:
    name = list(PHASES.values())[phase]
    paths = list((folder / "results/state" / _RUN).glob(f"*/{name}"))
    if name != HISTORY or not paths:
        return bool(paths)
    lines = list(read_history(paths[0]))
    return any("loss" in line for line in lines) if phase == len(PHASES) - 1 else bool(lines)


def _table(seconds: dict[str, list[list[float]]]) -> str:
    """A Markdown table: the median of each phase, and of the sum with its range."""
    lines = [f"| seconds, median | {' | '.join(seconds)} |", "|---|" + "---|" * len(seconds)]
    for number, phase in enumerate(PHASES):
        medians = (statistics.median(r[number] for r in rounds) for rounds in seconds.values())
        lines.append(f"| {phase} | {' | '.join(f'{median:.1f}' for median in medians)} |")
    sums = [[sum(phases) for phases in rounds] for rounds in seconds.values()]
    told = (f"{statistics.median(each):.1f} ({min(each):.1f}-{max(each):.1f})" for each in sums)
    return "\n".join([*lines, f"| sum | {' | '.join(told)} |"])


if __name__ == "__main__":
    typer.run(main)
