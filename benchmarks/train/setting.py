"""What all contestants share: a Llama of 7 M parameters, real text in packed rows, a batch."""

from pathlib import Path
from typing import Any

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data, Ray
from moray.config.schema.train import Train
from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.stages.base_model import base_model
from moray.tasks.language.sources.python_stdlib import functions, modules
from moray.tasks.language.tokenize import tokenize
from moray.train.spec import Part, RunSpec

BLOCK_SIZE = 256
BATCH_SIZE = 16
# Steps of a measurement, and those before it that don't count: what compiles, compiles in them.
STEPS, WARM_UP = 24, 8

MODEL = {
    "source": "scratch",
    "architecture": "llama",
    "tokenizer": {"train_on": "modules", "vocab_size": 8192},
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": None,
    "max_position_embeddings": BLOCK_SIZE,
    "tie_word_embeddings": True,
    "seed": 0,
}


def prepare(folder: Path) -> None:
    """Make a model, rows of every fourth module of the standard library, and rows of functions."""
    some = (module for number, module in enumerate(modules()) if number % 4 == 0)
    pairs = (
        ("validation" if number == 0 else "test" if number == 1 else "train", Document(**module))
        for number, module in enumerate(some)
    )
    write_dataset(folder / "dataset", pairs, "text", {"source": "benchmark"})
    base_model(folder / "model", MODEL, folder / "dataset")
    cfg = {"format": "text", **result_keys(Data(block_size=BLOCK_SIZE))}
    tokenize(folder / "dataset", folder / "model", folder / "tokens", cfg)
    pairs = (
        ("validation" if number == 0 else "test" if number == 1 else "train", Document(**row))
        for number, row in enumerate(functions())
    )
    write_dataset(folder / "functions", pairs, "prompt-completion", {"source": "benchmark"})
    cfg = {"format": "prompt-completion", **result_keys(Data(block_size=BLOCK_SIZE))}
    tokenize(folder / "functions", folder / "model", folder / "functions-tokens", cfg)


def spec_of(folder: Path, work: Path, ray: Ray, tokens: str = "tokens", **settings: Any) -> RunSpec:
    """A run on it, which logs at each step after the warm-up's and evaluates at the end alone."""
    keys = {
        "max_steps": WARM_UP + STEPS,
        "global_batch_size": BATCH_SIZE,
        "micro_batch_size": BATCH_SIZE,
        "learning_rate": 1e-3,
        "logging_steps": WARM_UP,
        "eval_steps": 10**6,
        "eval_rows": 1,
        "save_steps": 10**6,
        "compile": True,
        **settings,
    }
    return RunSpec(
        "benchmark",
        start=folder / "model",
        parts=(Part("data", folder / tokens),),
        settings=Train(**keys),
        ray=ray,
        work=work,
        cache=folder / "compiled",
    )
