import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel

from moray.config import reference
from moray.config.load import load_experiment
from moray.config.schema.base import execution_keys, is_execution_only
from moray.config.schema.experiment import Experiment, Run, Sections
from moray.config.schema.train import Train

ROOT = Path(__file__).parents[2]
# Nearly every test reads one of them.
markdown, json_schema = cache(reference.markdown), cache(reference.json_schema)
FILES = {"docs/configuration.md": markdown, "config/schema.json": json_schema}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All models that the schema consists of, from this one down."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for argument in get_args(annotation):
        yield from models_in(argument)


MODELS = dict.fromkeys(models_in(Experiment))
KEYS = [(model, key) for model in MODELS for key in model.model_fields]


@pytest.mark.parametrize("file", FILES)
def test_the_files_are_up_to_date(file: str) -> None:
    made = FILES[file]()
    assert (ROOT / file).read_text() == made, "run python -m moray.config.reference"


def test_the_command_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES:
        Path(file).parent.mkdir()
    reference.main()
    assert {file: Path(file).read_text() for file in FILES} == {f: FILES[f]() for f in FILES}


def test_each_key_says_what_it_means() -> None:
    sentence = re.compile(r"[A-Z0-9`].*\.", re.S)
    unclear = [
        (model, key)
        for model, key in KEYS
        if not sentence.fullmatch(model.model_fields[key].description or "")
    ]
    assert not unclear, unclear


def stands_in_the_reference(model: type[BaseModel], key: str) -> bool:
    page = markdown()
    if key in ("proofs", "tracking"):
        # Sections of one value, in the table of runs.
        return re.search(rf"^\| `{key}` †", page, re.M) is not None
    if model in (Experiment, Sections) or (model is Run and key in Sections.model_fields):
        return re.search(rf"^##+ `{key}`$", page, re.M) is not None
    table = page.partition(f"\n\n{model.__doc__}\n")[2].partition("\n#")[0]
    field = model.model_fields[key]
    mark = " †" if is_execution_only(field) else ""
    row = rf"^\| `{key}`{mark} \|.*\| {re.escape(str(field.description))} \|$"
    return re.search(row, table, re.M) is not None


def test_each_key_stands_in_the_reference() -> None:
    missing = [(model, key) for model, key in KEYS if not stands_in_the_reference(model, key)]
    assert not missing, missing


# Rooms that pass on, describe or refuse keys, whatever they are.
WITHOUT_EFFECT = ("schema", "reference.py", "importing")


@cache
def read_by_code() -> set[str]:
    """The attributes and the keys of mappings that code reads, outside of the schema."""
    found = set()
    for path in (ROOT / "src/moray").rglob("*.py"):
        if not set(path.parts) & set(WITHOUT_EFFECT):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
                elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    found.add(str(node.slice.value))
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                    ("get", "getattr")
                ):
                    found |= {str(key.value) for key in node.args if isinstance(key, ast.Constant)}
    return found


def test_code_reads_each_key() -> None:
    """A key that nothing reads has no effect. What its effect is, its own test says."""
    # Taken whole by the config of Transformers' ResNet.
    elsewhere = {"depths", "embedding_size", "hidden_sizes"}
    unread = [(model, key) for model, key in KEYS if key not in read_by_code() | elsewhere]
    assert not unread, unread


def test_the_reference_tells_in_words_what_a_key_takes() -> None:
    rows = [
        "| `source` | `files` | required | Selects this source. |",
        "| `path` | text, or list of text, or mapping of `train`, `validation`, `test` | requir",
        "| `train` | text or list of text | required | Location of the train split. |",
        "| `validation` | text or list of text or `null` | `null` | Location of the validation",
        "| `split` | text, or mapping of `train`, `validation`, `test` | `train` | Split or split ",
        "| `columns` | mapping of names to: text | `{}` | Column names that differ from the ",
        "| `sha256` | text, of the form `^[0-9a-f]{64}$`, or `null` | `null` | SHA-256 that the ",
        "| `size_gb` | number, more than 0 | required | Size of the text in GB (10^9 bytes). |",
        "| `stream_from` † | text, of the form `^[a-z0-9+]+://`, or `null` | `null` | Folder in ",
        "| `vocab_size` | whole number, at least 258 | `4096` |",
        "| `tokenizer` | mapping of `train_on`, `vocab_size` | required |",
        "| `train_on` | name | required |",
        "| `max_steps` | whole number, more than 0, or `null` | `null` |",
        "| `learning_rate` | number, more than 0 | `5e-5` | Peak learning rate. |",
        "| `num_epochs` | number, more than 0 | `1` |",
        "| `warmup_ratio` | number, at least 0, less than 1 | `0.03` |",
        "| `precision` | `auto`, `bf16` or `fp32` | `auto` |",
        "| `use_gpu` † | `auto` or true or false | `auto` |",
        "| `include_dashboard` † | true or false | `false` |",
        "| `resources_per_worker` † | mapping of names to: `auto`, or number, more than 0 | `{CPU",
        "| `model` | name or mapping of `run` or mapping of `best` | required | A name",
    ]
    missing = [row for row in rows if f"\n{row}" not in markdown()]
    assert not missing, missing


def test_a_table_begins_with_what_an_entry_must_have() -> None:
    tables = markdown().split("|---|---|---|---|\n")[1:]
    rows = [table.partition("\n\n")[0].splitlines() for table in tables]
    required = [["| required |" in row for row in table] for table in rows]
    assert all(table == sorted(table, reverse=True) for table in required)
    assert [True, True, *[False] * 6] in [table[:8] for table in required]


@pytest.mark.parametrize("source", ["files", "url", "hub"])
def test_places_by_split_have_a_table_below_their_source(source: str) -> None:
    section = markdown().partition(f"### `source: {source}`\n")[2].partition("\n### ")[0]
    key = {"files": "path", "url": "url", "hub": "split"}[source]
    table = section.partition(f"\n#### `{key}` as a mapping\n")[2]
    keys = re.findall(r"^\| `(\w+)`", table, re.M)
    assert keys == ["train", "validation", "test"]


def test_the_keys_that_re_run_nothing_are_listed() -> None:
    sentence = markdown().partition("They are:")[2].partition("\n\n")[0]
    listed = {key for key in Train.model_fields if f"`{key}`" in sentence}
    assert listed == set(execution_keys(Train()))
    assert "`loader`, `stream_from` of `data`; " in sentence
    assert "of `train`; all of `ray`; `num_workers`, `batch_size` of `evaluate`; " in sentence


def test_the_example_in_the_reference_is_sound() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", markdown(), re.S)
    assert load_experiment(yaml.safe_load(example)).runs["second"].train.num_epochs == 2


class Yaml(yaml.SafeLoader):
    """Reads numbers as editors do: in YAML 1.2, `1e-4` is one."""


Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def complaints(text: str) -> list[str]:
    """Where an editor would underline something."""
    schema = json.loads(json_schema())
    config = yaml.load(text, Loader=Yaml)
    return [error.json_path for error in Draft202012Validator(schema).iter_errors(config)]


def test_the_json_schema_is_one() -> None:
    schema = json.loads(json_schema())
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


def test_an_editor_accepts_each_config_of_the_project() -> None:
    found = {file: complaints(file.read_text()) for file in ROOT.glob("config/*.yaml")}
    assert found
    assert not any(found.values()), found


def test_an_editor_accepts_a_file_that_changes_another() -> None:
    texts = [
        "runs: {tuned: null}",
        "runs: {tuned: {train: {learning_rate: 1e-4}}}",
        "runs: {tuned: {model: {run: base}}}",
        "models: {tiny: {hidden_size: 128}, other: null}",
        "models: {tiny: {tokenizer: {vocab_size: 300}}}",
        "datasets: {notes: {path: [a.txt, b.txt]}, modules: null}",
        "datasets: {notes: {path: {test: a.txt}, columns: {text: body}}}",
        "datasets: {x: {source: url, url: {train: [a, b], test: c}, format: messages}}",
        "datasets: {x: {source: hub, split: {validation: 'train[:1%]', test: null}}}",
        "datasets: {x: {source: synthetic, size_gb: 1e-3}}",
        "defaults: {data: {loader: stream, stream_from: 's3://bucket/folder'}}",
        "defaults: {train: {max_steps: null}, ray: {use_gpu: false}}",
    ]
    found = {text: complaints(text) for text in texts}
    assert not any(found.values()), found


def test_an_editor_underlines_what_is_wrong() -> None:
    wrong = [
        ("modles: {}", "$"),
        ("runs: {my run: {model: tiny}}", "$.runs"),
        ("runs: {tuned: {trian: {}}}", "$.runs.tuned"),
        ("runs: {tuned: {train: {learnig_rate: 1}}}", "$.runs.tuned"),
        ("defaults: {train: {learnig_rate: 1}}", "$.defaults.train"),
        ("defaults: {train: {learning_rate: 0}}", "$.defaults.train.learning_rate"),
        ("defaults: {ray: {resources_per_worker: {CPU: all}}}", "$.defaults.ray"),
        ("defaults: null", "$.defaults"),
        ("datasets: {notes: {source: file}}", "$.datasets.notes"),
        ("datasets: {modules: {source: python-stdlib, path: x}}", "$.datasets.modules"),
        ("datasets: {x: {source: files, path: {tset: a}}}", "$.datasets.x"),
        ("datasets: {x: {source: synthetic, size_gb: 0}}", "$.datasets.x"),
        ("defaults: {data: {loader: disk}}", "$.defaults.data.loader"),
        ("models: {tiny: {source: path, hidden_size: 8}}", "$.models.tiny"),
    ]
    for text, path in wrong:
        assert [place[: len(path)] for place in complaints(text)] == [path], text
