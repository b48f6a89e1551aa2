"""Which code decides a stage's result, and the name by which the workflow knows that code.

A stage runs again when the code that decides its result changes. What else it imports can't change
the result: messages, checks, launching, storage, supervision, progress, tracking.
"""

import ast
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from moray.config.tasks import TASKS

PACKAGE = Path(__file__).parents[1]
# Digests of this version's code that stand for those of an earlier one, because both make the same
# bytes: by stage, this version's and the earlier one's. `make equivalents` writes it.
EQUIVALENTS = Path(__file__).with_name("equivalents.json")
# Lines of the SHA-256 of a file and the digest of what it means. Parsing all files takes a quarter
# of a second, which each start of the workflow would cost. Named by the version of `_spell`.
_CACHE = Path(".snakemake/moray-code-1")


def _in(room: str, names: str) -> tuple[str, ...]:
    return tuple(f"{room}/{name}" for name in names.split())


_DATASET = ("config/formats", "corpus/dataset")
_STDLIB = _in(
    "corpus", "bad_rows columns dataset sources/__init__ sources/text_python_stdlib split"
)
_COLUMNS = _in("corpus", "class_labels conversation formats tables values")
# Prompts and conversations as tokens; documents as rows of tokens.
_PROMPTS = (
    "corpus/dataset",
    *_in("tasks/language", "alterations chat encode pieces tokenizer turns"),
)
_TOKENS = (*_PROMPTS, "rows/groups", "tasks/language/rows")
_CAUSAL_LM = _in("model", "adapter attention folder forward load loss quantization")
# A model and its loss, as training and scoring compute them.
_LANGUAGE = (
    *_TOKENS,
    *_CAUSAL_LM,
    *_in("tasks", "interface language/loss"),
    "rows/store",
)
_ANSWERS = (*_LANGUAGE, "tasks/preference/rows")
_PREFERENCE = (*_ANSWERS, "tasks/preference/task")
_IMAGES = (
    "model/classifier",
    "rows/store",
    *_in("tasks", "interface images/task"),
)
_TRAINING = (
    *_in("rows", "loader order store"),
    *_in("model", "adapter attention forward targets"),
    *_in("tasks", "__init__ interface"),
    *_in("train", "adamw_8bit engine kernels loop optimizer schedule statistics step"),
    *_in("train", "stochastic_rounding strategies/*"),
    "workers/collectives",
)

# By stage: modules of the package, by their paths. Rows of a stage and a name hold for that task,
# modality, source or metric, and `{}` stands for the name.
DECIDING: dict[str, tuple[str, ...]] = {
    "base_model": ("model/obtain", *_in("stages", "base_model base_model_{}")),
    "base_model text": (
        *_DATASET,
        *_in("model", "dequantize isolation scratch"),
        *_in("tasks/language", "tokenizer tokenizer_files"),
    ),
    "base_model images": _in("model", "classifier image_processor output_layers"),
    "benchmark": (
        "stages/benchmark",
        *_in("evaluate", "bootstrap execution harness"),
        *_in("model", "adapter folder load"),
        "tasks/language/tokenizer",
    ),
    "card": ("stages/card", "corpus/overlap", *_in("config", "formats tasks")),
    "choose": ("stages/choose", "model/folder"),
    "decode": (
        "stages/decode",
        *_DATASET,
        "corpus/image",
        "model/image_processor",
        *_in("rows", "groups store"),
    ),
    "download": (
        "stages/download",
        *_DATASET,
        "config/splits",
        *_in("corpus", "bad_rows columns split"),
        *_in("corpus/sources", "__init__ {}"),
    ),
    "download text_files": _COLUMNS,
    "download text_hub": _COLUMNS,
    "download text_url": (*_COLUMNS, "corpus/sources/text_files"),
    "download images_digits": ("corpus/image",),
    "download images_files": _in("corpus", "class_labels image values"),
    "download images_hub": _in(
        "corpus", "class_labels image sources/images_files sources/text_hub values"
    ),
    "download images_idx": ("corpus/image",),
    "download images_image_folder": (
        *_in("config", "image_folder split_names"),
        "corpus/image",
    ),
    "evaluate": (
        "stages/evaluate",
        *_DATASET,
        "corpus/overlap",
        *_in("evaluate", "bootstrap execution {}"),
    ),
    "evaluate language": (*_LANGUAGE, "evaluate/likelihood"),
    "evaluate preference": (*_PREFERENCE, "evaluate/likelihood"),
    "evaluate images": (*_IMAGES, "rows/groups", *_in("model", "folder load")),
    "export": (
        *_in("stages", "export export_{}"),
        *_in("train", "optimizer restore statistics"),
        *_in("model", "folder load"),
    ),
    "export text": (
        *_in("model", "adapter obtain targets"),
        *_in("tasks/language", "tokenizer tokenizer_files"),
    ),
    "export images": _in("model", "classifier image_processor"),
    "finetune": ("stages/finetune", "model/folder", *_TRAINING),
    "finetune language": (
        *_DATASET,
        *_LANGUAGE,
        "tasks/language/task",
    ),
    "finetune preference": (
        *_DATASET,
        *_PREFERENCE,
        "tasks/language/task",
    ),
    "finetune images": _IMAGES,
    "generate": (
        "stages/generate",
        *_DATASET,
        *_PROMPTS,
        *_in("evaluate", "bootstrap execution generation metrics"),
        *_in("model", "adapter folder load"),
    ),
    "generate doctests": ("corpus/sources/text_python_stdlib", "evaluate/doctests"),
    "gguf": (
        "stages/gguf",
        *_in("serving", "llama_cpp ollama"),
        "corpus/dataset",
        *_in("tasks/language", "alterations chat tokenizer turns"),
    ),
    "predict": (
        "stages/predict",
        *_IMAGES,
        *_in("evaluate", "execution images"),
        *_in("model", "folder load"),
    ),
    "push": ("stages/push",),
    "reference": (
        "stages/reference",
        *_ANSWERS,
        *_in("evaluate", "execution likelihood preference"),
    ),
    "report": ("stages/report", "corpus/overlap", "report/*", "report/templates/*", "results"),
    "search": ("stages/search", "sweeps"),
    "smoke_test": ("stages/smoke_test", *_TRAINING),
    "tokenize": (
        "stages/tokenize",
        *_DATASET,
        *_TOKENS,
        "rows/store",
        "tasks/language/tokens",
    ),
    "tokenize language": (),
    "tokenize preference": _in("tasks/preference", "rows tokens"),
    "track": ("stages/track", "tracking/interface"),
}
# What stages import without using it for their result: to check something (a base model is loaded
# once, so that it fails early), or because it shares a module with what they need.
IMPORTED_ONLY: dict[str, tuple[str, ...]] = {
    "base_model": (
        *_in("corpus", "dataset image"),
        *_in("model", "adapter folder forward image_comparison load quantization targets"),
    ),
    "benchmark": (*_STDLIB, "evaluate/doctests", *_in("model", "forward quantization targets")),
    "card": ("corpus/dataset",),
    "decode": _in("model", "classifier folder image_comparison"),
    "download": ("corpus/image", *_COLUMNS),
    "evaluate": (
        *_in("model", "adapter forward isolation quantization targets"),
        *_in("rows", "loader order"),
        "tasks/language/task",
    ),
    "export": (
        *_in("train", "adamw_8bit stochastic_rounding"),
        *_in(
            "model",
            "adapter attention forward image_comparison isolation loss quantization targets",
        ),
        *_in("corpus", "bad_rows class_labels columns conversation dataset formats tables values"),
        *_in("rows", "groups loader order store"),
        *_in("tasks", "__init__ interface images/* language/* preference/*"),
    ),
    "finetune": _in("model", "isolation load quantization"),
    "generate": (*_STDLIB, "evaluate/doctests", *_in("model", "forward quantization targets")),
    "predict": (
        "evaluate/bootstrap",
        *_in("model", "adapter forward quantization targets"),
        *_in("rows", "groups loader order"),
    ),
    "reference": (
        "evaluate/bootstrap",
        *_in("model", "isolation targets"),
        *_in("rows", "loader order"),
        *_in("tasks", "language/task preference/task"),
    ),
    "report": ("corpus/dataset",),
    "smoke_test": _in("model", "folder load quantization"),
    "tokenize": (
        *_COLUMNS,
        *_in("corpus", "bad_rows columns split"),
        *_in("corpus/sources", "__init__ text_files"),
    ),
}
# What stages import to say, start, keep or watch something; for the rest, rows of other stages.
NEVER_DECIDING = (
    *_in(".", "background console errors hub lines machine project"),
    *_in("config", "file_names formats image_folder layout schema/* split_names splits tasks"),
    *_in("corpus", "remarks sources/json_tables"),
    "evaluate/requirements",
    *_in("model", "rounding shapes size"),
    "planning/*",
    "proofs/*",
    "provenance/*",
    *_in("stages", "boundary evaluation"),
    "storage/*",
    "tracking/*",
    *_in("train", "checkpoints checks driver entry failures history identity job"),
    *_in("train", "memory micro_batch performance proof restore saver supervision trained"),
    "workers/*",
)


@cache
def code_of(stage: str, *names: str) -> str:
    """The name of the code that decides a stage's result, which equal results share.

    `names` are those of its task, its modality, its source or its metrics.

    Returns:
        A digest, 16 hexadecimal digits: of this code, or of an earlier version's that is known to
        make the same bytes.
    """
    digest = code_digest(stage, *names)
    return _equivalents().get(digest, digest)


def code_digest(stage: str, *names: str) -> str:
    """Digest of the code that decides a stage's result, hexadecimal, 16 digits.

    Comments, docstrings, formatting and messages don't change it.
    """
    # Code that serves several names may have been of several in an earlier version.
    digest = hashlib.sha256(" ".join(names).encode())
    for path in deciding_files(stage, *names):
        digest.update(f"{path.relative_to(PACKAGE)} {_file_digest(path)}\n".encode())
    return digest.hexdigest()[:16]


def deciding_files(stage: str, *names: str) -> list[Path]:
    """The files of the package that decide a stage's result, sorted."""
    patterns = [*DECIDING[stage]]
    for name in names:
        row = f"{stage} {name}"
        # Each task has one, so that none is forgotten.
        patterns += DECIDING[row] if name in TASKS else DECIDING.get(row, ())
    found: set[Path] = set()
    for pattern in patterns:
        for filled in [pattern.format(name) for name in names] or [pattern]:
            found.update(_matching(filled))
    return sorted(found)


@cache
def _matching(pattern: str) -> list[Path]:
    paths = PACKAGE.glob(pattern) if "*" in pattern else [PACKAGE / f"{pattern}.py"]
    return [path for path in paths if path.is_file()]


def meaning(source: bytes) -> str:
    """Digest of a module's syntax tree, without docstrings and the messages that a user reads."""
    words: list[str] = []
    _spell(ast.parse(source), words.append)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


@cache
def _equivalents() -> dict[str, str]:
    stages: dict[str, dict[str, str]] = json.loads(EQUIVALENTS.read_text())
    return {digest: earlier for stage in stages.values() for digest, earlier in stage.items()}


@cache
def _file_digest(path: Path) -> str:
    content = path.read_bytes()
    whole = hashlib.sha256(content).hexdigest()
    if path.suffix != ".py":
        return whole
    known = _known_digests()
    if whole not in known:
        known[whole] = meaning(content)
        if _CACHE.parent.is_dir():
            with _CACHE.open("a") as file:
                file.write(f"{whole} {known[whole]}\n")
    return known[whole]


@cache
def _known_digests() -> dict[str, str]:
    lines = _CACHE.read_text().splitlines() if _CACHE.is_file() else []
    # Another process may be writing the last line.
    return {line[:64]: line[65:] for line in lines if len(line) == 129}


_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Calls whose arguments a user only reads.
_MESSAGES = ("say", "UserError")


def _spell(value: Any, put: Callable[[str], None]) -> None:
    """Spell out a syntax tree.

    `ast.dump` isn't the same for every Python: versions add fields, which are empty in code that
    doesn't use them.
    """
    if isinstance(value, ast.AST):
        put(type(value).__name__)
        for name, field in _fields(value):
            put(name)
            _spell(field, put)
        put(")")
    elif isinstance(value, list):
        for entry in value:
            _spell(entry, put)
        put("]")
    else:
        put(repr(value))


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    is_message = isinstance(node, ast.Call) and getattr(node.func, "id", None) in _MESSAGES
    for name in node._fields:
        field = getattr(node, name)
        # Whether a name is read or written follows from its position.
        if name == "ctx" or field is None or field == [] or (is_message and name != "func"):
            continue
        has_docstring = name == "body" and isinstance(node, _HAVE_DOCSTRINGS) and _is_text(field[0])
        yield name, field[1:] if has_docstring else field


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
