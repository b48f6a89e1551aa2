"""A copy of the project with an experiment that runs in seconds, and ways to run it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import yaml

from moray.tasks.language.sources.python_stdlib import functions, pairs

ROOT = Path(__file__).parents[1]

EXPERIMENT = """
datasets:
  modules: {source: files, path: data/modules.jsonl, test_share: 0.2, validation_share: 0.1}
  functions:
    source: files
    path: data/functions.jsonl
    format: prompt-completion
    test_share: 0.2
    validation_share: 0.1
  # For the runs that a test adds.
  pairs:
    source: files
    path: data/pairs.jsonl
    format: preference
    test_share: 0.2
    validation_share: 0.1
  answers:
    source: files
    path: data/answers.jsonl
    format: unpaired-preference
    test_share: 0.2
    validation_share: 0.1
models:
  tiny:
    source: scratch
    tokenizer: {train_on: modules, vocab_size: 300}
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 2
    max_position_embeddings: 128
defaults:
  data: {block_size: 64}
  train: {max_steps: 4, global_batch_size: 4, learning_rate: 1e-2, logging_steps: 1, save_steps: 2}
  ray: {num_workers: 2}
  evaluate: {bootstrap_samples: 20}
  generate: {num_samples: 2, max_new_tokens: 8, prompt_tokens: 8}
runs:
  base: {model: tiny, dataset: modules, train: {launcher: torchrun}}
  # Long enough to be killed in its middle.
  tuned: {model: {run: base}, dataset: functions, train: {max_steps: 200, save_steps: 20}}
"""


# What a user's environment holds besides, and what no file may.
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "a-canary-for-the-object-store",
    "HF_TOKEN": "a-canary-for-the-hub",
    "WANDB_API_KEY": "a-canary-for-a-tracker",
}


def copy_of(root: Path, folder: Path) -> Path:
    """The files of a clone that the workflow needs, in another folder."""
    folder.mkdir(exist_ok=True)
    for name in ("Snakefile", "workflow", "src", "envs", "profiles", "config"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, folder / name)
    return folder


class Project:
    """A working copy of the project in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config/config.yaml"

    @classmethod
    def create(cls, folder: Path, root: Path = ROOT) -> "Project":
        """Copy what a clone would bring, with the small experiment in place of the default."""
        copy_of(root, folder)
        project = cls(folder)
        project.config.write_text(EXPERIMENT)
        data = folder / "data"
        data.mkdir()
        rows = [row for row, _ in zip(functions(), range(60), strict=False)]
        texts = [{"text": row["prompt"] + row["completion"]} for row in rows]
        answered = [{"prompt": row["prompt"], "completion": row["completion"]} for row in rows]
        # Short, so that rows of 64 tokens have several of them.
        preferred = [
            {"prompt": row["prompt"][:20], "chosen": chosen, "rejected": rejected}
            for row in islice(pairs(), 80)
            if (chosen := row["chosen"][:40]) != (rejected := row["rejected"][:30])
        ]
        kinds = zip(preferred, cycle(("chosen", "rejected")), strict=False)
        judged = [
            {"prompt": row["prompt"], "completion": row[kind], "label": kind == "chosen"}
            for row, kind in kinds
        ]
        files: dict[str, list[Any]] = {
            "modules": texts,
            "functions": answered,
            "pairs": preferred,
            "answers": judged,
        }
        for name, lines in files.items():
            (data / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        return project

    def environment(self) -> dict[str, str]:
        """With this copy's package in front of the installed one, and secrets."""
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        own = {"PYTHONPATH": str(self.folder / "src"), "PATH": ":".join(paths)}
        return os.environ | SECRETS | own

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the project's folder."""
        return subprocess.run(
            ["snakemake", *arguments],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def planned(self, *arguments: str) -> set[str]:
        """The jobs that a dry run would run, as their messages name them."""
        done = self.snakemake("--dry-run", *(arguments or ("eval", "generate")))
        assert done.returncode == 0, done.stderr
        jobs = set(re.findall(r"^Job \d+: (.+)$", done.stderr + done.stdout, re.M))
        return {job for job in jobs if not job.startswith("every run")}

    def affected(self, *arguments: str) -> set[str]:
        """The planned jobs, `tokenize functions-tiny-1a2b3c4d` as `tokenize functions`."""
        planned = self.planned(*arguments)
        return {job.partition("-tiny-")[0].partition("-base-")[0] for job in planned}

    def copy(self, folder: Path) -> "Project":
        """The project, results and all, in another folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def configure(self, path: Sequence[str], value: object) -> None:
        """Set a key of the config, or remove it with None."""
        whole = yaml.safe_load(self.config.read_text())
        section = whole
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = value
        self.config.write_text(yaml.safe_dump(whole))


Change = Callable[[Project], None]


def setting(path: str, value: object) -> Change:
    """Set a key, whose path is dotted."""
    return lambda project: project.configure(path.split("."), value)


def code(module: str, line: str = "CHANGED = True") -> Change:
    """Add a line to a module of the package."""

    def change(project: Project) -> None:
        with (project.folder / "src/moray" / module).open("a") as file:
            file.write(f"{line}\n")

    return change
