"""Find the code of the previous release that this version's code makes the same bytes as.

    python tests/equivalents.py [COMMIT]

Runs a small matrix of datasets, models and runs under the previous release and under the working
tree, in `build/equivalents`. Where all results of a stage are equal, the digest of its code here
stands for the digest there, in `src/moray/config/equivalents.json`, so that an upgrade runs
nothing again. Without a commit, the previous release is the one that set the version before this
one. Takes a quarter of an hour on two cores.
"""

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import yaml
from benchmark_tasks import write_tasks
from conversations import MARKED, chat_tokenizer
from hub_server import Hub, Repository, hub_server
from pictures import VIT, image_folder, write_idx
from project import ROOT, SECRETS, Project

from moray.config.identity import EQUIVALENTS
from moray.model.scratch import save_llama

FOLDER = ROOT / "build/equivalents"
TARGETS = ("eval", "generate", "data", "search", "benchmark", "cards", "report")

# Differ between two executions of the same code, or say which code it was.
VOLATILE = {
    "checkpoint",
    "code",
    "earlier_libraries",
    "fingerprint",
    "id",
    "inputs",
    "machine",
    "seconds",
    "sha256",
    "software",
    "step_seconds",
    "tflops",
    "time",
}
# So do figures of speed.
SPEED = "_per_second"
# Describes the training, with its fingerprint.
CARD = "README.md"

TABLE = {"source": "files", "test_share": 0.2, "validation_share": 0.1}
HOSTED = {"source": "hub", "repo_id": "user/lines", "revision": "0" * 40}
FETCHED = {"source": "url"}
MATRIX: dict[str, Any] = {
    "datasets": {
        "made": {"source": "synthetic", "size_gb": 1e-4},
        "stdlib": {"source": "python-stdlib"},
        "hosted": HOSTED,
        "fetched": FETCHED,
        "asked": {**TABLE, "path": "data/asked.jsonl", "format": "instruction"},
        "talks": {**TABLE, "path": "data/talks.jsonl", "format": "messages"},
        "digits": {"source": "digits", "format": "images"},
        "coloured": {"source": "image-folder", "path": "data/coloured", "test_share": 0.2},
        "indexed": {
            "source": "idx",
            "train": {"images": "data/images.idx", "labels": "data/labels.idx"},
            "test_share": 0.2,
        },
        "tabled": {**TABLE, "path": "data/tabled.parquet", "format": "images"},
    },
    "models": {
        "chat": {"source": "path", "path": "data/chat"},
        "vit": {
            "source": "scratch-vision",
            "classes_of": "digits",
            **VIT,
        },
    },
    "runs": {
        "text": {"model": "tiny", "dataset": "modules"},
        "tuned": {"model": {"run": "text"}, "dataset": "functions"},
        "lora": {"model": "tiny", "dataset": "functions", "adapter": {"rank": 4}},
        "mixture": {"model": "tiny", "dataset": {"modules": 1, "functions": 2}},
        "streamed": {
            "model": "tiny",
            "dataset": "functions",
            "data": {"tokenize": "on-the-fly", "loader": "stream"},
            "train": {"launcher": "ray"},
        },
        "asked": {"model": "chat", "dataset": "asked", "data": {"chat_template": MARKED}},
        "talks": {"model": "chat", "dataset": "talks", "data": {"chat_template": MARKED}},
        "preferred": {"model": {"run": "text"}, "dataset": "pairs"},
        "images": {
            "model": "vit",
            "dataset": "digits",
            "data": {"augmentation": {"shift": 1, "flip": True}},
        },
    },
}
# Each of these is trained under FSDP2 too, and the first under DeepSpeed.
SHARDED = ("text", "lora", "mixture", "streamed", "preferred", "images")


def main() -> None:
    """Compare the working tree with the previous release, and write the table."""
    previous = sys.argv[1] if len(sys.argv) > 1 else previous_release()
    shutil.rmtree(FOLDER, ignore_errors=True)
    with served():
        table, differing = compared(checked_out(previous), ROOT, FOLDER)
    EQUIVALENTS.write_text(json.dumps(table, indent=2) + "\n")
    print(f"the same bytes as {previous}: {', '.join(table)}")
    for rule, paths in differing.items():
        print(f"runs again: {rule}, because of {', '.join(paths)}")


def compared(
    previous: Path, current: Path, folder: Path
) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """Run the matrix under two versions.

    Returns:
        By rule, digests of the current version's code with those that they stand for; and results
        that differ, or that the previous version didn't make.
    """
    before = recorded(run_matrix(folder / "previous", previous))
    # By its own digests.
    project = run_matrix(folder / "current", current, table="{}")
    equal: dict[str, dict[str, str]] = defaultdict(dict)
    differing: dict[str, list[str]] = defaultdict(list)
    broken = set()
    for path, (rule, code) in sorted(recorded(project).items()):
        results = [result_of(folder / name, path, rule) for name in ("previous", "current")]
        if path not in before or results[0] != results[1]:
            differing[rule].append(path)
            broken.add(code)
        elif code != before[path][1]:
            equal[rule][code] = before[path][1]
    table = {
        rule: {new: old for new, old in sorted(codes.items()) if new not in broken}
        for rule, codes in sorted(equal.items())
    }
    return {rule: codes for rule, codes in table.items() if codes}, differing


def previous_release() -> str:
    """The commit that set the version before the working tree's."""
    version = _version((ROOT / "pyproject.toml").read_text())
    found = ""
    for commit in _git("log", "--format=%H", "--", "pyproject.toml").split():
        if (there := _version(_git("show", f"{commit}:pyproject.toml"))) != version:
            if found and there != _version(_git("show", f"{found}:pyproject.toml")):
                break
            found = commit
    if not found:
        sys.exit(f"no earlier version than {version} in the history; name a commit")
    return found


def _version(pyproject: str) -> str:
    version: str = tomllib.loads(pyproject)["project"]["version"]
    return version


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def checked_out(commit: str) -> Path:
    """The files of a commit, in a folder of their own."""
    folder = FOLDER / "source"
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@contextmanager
def served() -> Iterator[None]:
    """A hub and a web server of one's own, with a dataset each."""
    rows = b"".join(b'{"text": "line %d of some text"}\n' % number for number in range(50))
    hub = Hub({("datasets", HOSTED["repo_id"]): Repository({"a.jsonl": rows}, HOSTED["revision"])})
    hub.tokens[SECRETS["HF_TOKEN"]] = "read"
    (FOLDER / "served").mkdir(parents=True)
    (FOLDER / "served/a.jsonl").write_bytes(rows)
    handler = partial(SimpleHTTPRequestHandler, directory=FOLDER / "served")
    with hub_server(hub), ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        os.environ["HF_ENDPOINT"] = hub.endpoint
        FETCHED["url"] = f"http://127.0.0.1:{server.server_port}/a.jsonl"
        Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def run_matrix(folder: Path, source: Path, table: str | None = None) -> Path:
    """Run the matrix under a version, with another table of equivalents if one is given."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    project = Project.create(folder, source)
    if table is not None:
        (folder / "src/moray/config" / EQUIVALENTS.name).write_text(table)
    write_config(project)
    write_data(folder / "data")
    cores = str(2 * (os.cpu_count() or 1))
    # A stage that fails has no result, so it isn't equal.
    done = project.snakemake("--cores", cores, "--keep-going", *TARGETS)
    (folder / "output.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        print(f"not all stages ended: see {folder / 'output.log'}")
    return folder


def recorded(folder: Path) -> dict[str, tuple[str, str]]:
    """The rule and the code of each result, as Snakemake recorded them."""
    found: dict[str, tuple[str, set[str]]] = {}
    for file in (folder / ".snakemake/metadata").iterdir():
        facts = json.loads(file.read_text())
        codes = {param.strip("'") for param in facts["params"] if param.startswith("'code ")}
        path = base64.b64decode(file.name).decode()
        found[path] = facts["rule"], {code.removeprefix("code ") for code in codes}
    # A search has that of its trainings besides.
    training = set().union(*(codes for rule, codes in found.values() if rule == "finetune_run"))
    own = {
        path: (rule, codes if rule == "finetune_run" else codes - training)
        for path, (rule, codes) in found.items()
    }
    return {path: (rule, code) for path, (rule, codes) in own.items() for code in codes}


def result_of(folder: Path, path: str, rule: str) -> Any:
    """What a result says: its bytes, without what differs between two executions."""
    if not (folder / path).is_file():
        return None
    if rule == "finetune_run":
        # The weights.
        model = Path(path).parent / "model/model.safetensors"
        return [content(folder / path), sha256(folder / model)]
    return content(folder / path)


def content(file: Path) -> Any:
    """The bytes of a file or, of JSON, its values."""
    if file.suffix == ".json":
        return stable(json.loads(file.read_text()))
    if file.suffix == ".jsonl":
        return [stable(json.loads(line)) for line in file.read_text().splitlines()]
    return sha256(file)


def sha256(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def stable(value: Any) -> Any:
    """A value without what differs between two executions; files are listed by their digests."""
    if isinstance(value, dict):
        if files := value.get("files"):
            value = {**value, "files": {n: str(f) for n, f in files.items() if n != CARD}}
        kept = {key for key in value if key not in VOLATILE and not key.endswith(SPEED)}
        return {key: stable(value[key]) for key in value if key in kept}
    return [stable(entry) for entry in value] if isinstance(value, list) else value


def write_config(project: Project) -> None:
    """The config of the tests' project with the matrix."""
    whole = yaml.safe_load(project.config.read_text())
    for section in ("datasets", "models"):
        whole[section] |= MATRIX[section]
    whole["defaults"]["train"] |= {"launcher": "torchrun", "logging_steps": 1, "eval_steps": 2}
    runs = whole["runs"] = MATRIX["runs"]
    for run in SHARDED:
        strategies = ["fsdp2", "deepspeed"] if run == "text" else ["fsdp2"]
        for strategy in strategies:
            train = runs[run].get("train", {}) | {"strategy": strategy}
            runs[f"{run}-{strategy}"] = {**runs[run], "train": train}
    tasks = {"tasks": ["puzzles", "text"], "include_path": "data/tasks"}
    runs["tuned"] |= {"benchmarks": tasks, "generate": {"metrics": ["chrf", "exact_match"]}}
    for run, metric in (
        ("lora", "chrf"),
        ("mixture", "exact_match"),
        ("streamed", "python_syntax"),
    ):
        runs[run] = {**runs[run], "generate": {"metrics": [metric]}}
    rates = {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    runs["lora"] |= {"search": {"trials": 2, "space": rates}}
    # Rows of images from each source are made for runs alone.
    for name in ("coloured", "indexed", "tabled"):
        whole["models"][f"vit-{name}"] = {**MATRIX["models"]["vit"], "classes_of": name}
        runs[f"images-{name}"] = {"model": f"vit-{name}", "dataset": name}
    for name in ("made", "stdlib", "hosted", "fetched"):
        runs[name] = {"model": "tiny", "dataset": name}
    project.config.write_text(yaml.safe_dump(whole))


def write_data(folder: Path) -> None:
    """What the datasets and models of the matrix are read from, besides those of the project."""
    rows = [json.loads(line) for line in (folder / "functions.jsonl").read_text().splitlines()]
    asked = [{"instruction": row["prompt"], "output": row["completion"]} for row in rows]
    roles = (("user", "prompt"), ("assistant", "completion"))
    talks = [
        {"messages": [{"role": role, "content": row[key]} for role, key in roles] * 2}
        for row in rows
    ]
    for name, lines in {"asked": asked, "talks": talks}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_tasks(folder / "tasks", documents=8)
    tokenizer = chat_tokenizer([row["prompt"] + row["completion"] for row in rows])
    (folder / "chat").mkdir()
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    fresh = {"architecture": "llama", "tie_word_embeddings": False, "seed": 0}
    save_llama(folder / "chat", tokenizer, {**fresh, **size, **heads})
    image_folder(folder / "coloured", {"red": 12, "green": 12})
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    write_idx(folder / "images.idx", pixels)
    write_idx(folder / "labels.idx", np.arange(24, dtype=np.uint8) % 2)
    images = [path.read_bytes() for path in sorted((folder / "coloured").rglob("*.png"))]
    labels = [number % 2 for number in range(len(images))]
    pd.DataFrame({"image": images, "label": labels}).to_parquet(folder / "tabled.parquet")


if __name__ == "__main__":
    main()
