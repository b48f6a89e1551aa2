"""A tiny model, a dataset and token stores that tests share; all made by the package itself."""

import random
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import chat_tokenizer
from jobs import Make, job_maker
from small_model import write_small, write_stores
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.corpus.dataset import SPLITS, Document
from moray.corpus.documents import write_dataset
from moray.model.load import load_model
from moray.provenance.manifest import write_manifest
from moray.tasks.language.scratch import save_llama, train_tokenizer
from moray.tasks.language.sources.python_stdlib import pairs
from moray.tasks.language.tokenize import tokenize
from moray.tasks.language.tokenizer import load_tokenizer
from moray.workers.entry import Worker

_WORDS = """
def return self value for in if not None import class lambda yield with as from naïve café Straße
東京 данные 🐍 👩‍👩‍👧 ∑ ½ → … 'quoted' (x, y) a[0] += 1 # note
"""
_BLOCK_SIZE = 32

_TESTS = Path(__file__).parent
# The first runs a whole workflow, which others in its folder wait for.
_SLOWEST_FIRST = (
    "golden",
    "workflow/test_whole.py",
    "train/test_equality.py",
    "extras/quantized_base/test_training.py",
    "workflow/test_kill.py",
    "train",
    "tasks",
    "workers",
    "extras",
    "stages",
    "rows",
    "workflow",
)


def _texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 80 words: a few fit into a row of tokens, one, or several rows."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words = draw.choices(_WORDS.split(), k=draw.randint(1, draw.choice([3, 10, 80])))
        texts.append("".join(word + draw.choice("    \n") for word in words))
    return texts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that two processes end at about the same time.

    What needs a GPU is skipped without one.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    items.sort(key=lambda item: _order(item.path.relative_to(_TESTS).as_posix()))


def _order(path: str) -> int:
    slow = (number for number, start in enumerate(_SLOWEST_FIRST) if path.startswith(start))
    return next(slow, len(_SLOWEST_FIRST))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Threads cost such small models more than they bring, most of all on busy cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts with letters of one to four bytes and characters of several code points."""
    return _texts(40, seed=1)


@pytest.fixture(scope="session")
def scratch() -> dict[str, Any]:
    """A model's section of the config."""
    return {
        "source": "scratch",
        "architecture": "llama",
        "tokenizer": {"train_on": "texts", "vocab_size": 320},
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "seed": 0,
    }


@pytest.fixture(scope="session")
def model_folder(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], scratch: dict[str, Any]
) -> Path:
    """A fresh Llama with its tokenizer."""
    folder = tmp_path_factory.mktemp("fresh")
    save_llama(folder, train_tokenizer(texts, scratch["tokenizer"]["vocab_size"]), scratch)
    write_manifest(folder, architecture="llama", isolates_documents=True)
    return folder


@pytest.fixture(scope="session")
def chat_folder(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], scratch: dict[str, Any]
) -> Path:
    """A fresh Llama whose tokenizer has the tokens of ChatML, but no template."""
    folder = tmp_path_factory.mktemp("chat")
    save_llama(folder, chat_tokenizer(texts), scratch)
    write_manifest(folder, architecture="llama", isolates_documents=True)
    return folder


@pytest.fixture(scope="session")
def tuned_folder(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, texts: list[str]
) -> Path:
    """The same Llama after 60 steps on the texts: it is often right, and looks at the context."""
    folder = tmp_path_factory.mktemp("tuned") / "model"
    shutil.copytree(model_folder, folder)
    model, tokenizer = load_model(model_folder), load_tokenizer(model_folder)
    stop = [tokenizer.eos_token_id]
    ids = [token for text in texts for token in stop + tokenizer(text)["input_ids"]]
    rows = torch.tensor(ids[: len(ids) // 64 * 64]).view(-1, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        torch.autograd.backward(model(input_ids=rows, labels=rows).loss)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    write_manifest(folder, architecture="llama", isolates_documents=True)
    return folder


@pytest.fixture
def model(tuned_folder: Path) -> PreTrainedModel:
    return load_model(tuned_folder)


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(model_folder)


@pytest.fixture(scope="session")
def documents(texts: list[str]) -> dict[str, list[Document]]:
    """By format: texts; and the same texts cut into prompt and completion."""
    cut = ((text, len(text) // 3) for text in texts)
    return {
        "text": [Document(text=text) for text in texts],
        "prompt-completion": [Document(prompt=text[:at], completion=text[at:]) for text, at in cut],
    }


@pytest.fixture(scope="session", params=["text", "prompt-completion"])
def dataset(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    documents: dict[str, list[Document]],
) -> Path:
    """A dataset's folder, once of each format."""
    folder = tmp_path_factory.mktemp(request.param)
    rows = ((SPLITS[i % 3], row) for i, row in enumerate(documents[request.param]))
    write_dataset(folder, rows, request.param, {"source": "test"})
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, dataset: Path, model_folder: Path) -> Path:
    """The dataset's token store, of 32 tokens a row, so that most documents are cut."""
    folder = tmp_path_factory.mktemp("store")
    cfg = {"format": "text", **result_keys(Data(block_size=_BLOCK_SIZE))}
    tokenize(dataset, model_folder, folder, cfg)
    return folder


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Put files in the place of the running Python's standard library."""
    folder = tmp_path / "library"

    def fill(files: dict[str, str]) -> None:
        for name, source in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(source, encoding="utf-8")

    monkeypatch.setattr("sysconfig.get_path", lambda name: str(folder))
    return fill


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, a Hugging Face folder, and `tokens`, a store of functions."""
    folder = tmp_path_factory.mktemp("small")
    write_small(folder)
    return folder


@pytest.fixture(scope="session")
def preferences(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """A folder with `model`, `pairs`, a token store, and `reference`, the store to train on."""
    folder = tmp_path_factory.mktemp("preferences")
    (folder / "model").symlink_to(small / "model")
    found: list[tuple[str, Document]] = []
    splits = ["test", "validation", *["train"] * 6]
    # Cut to lengths of all kinds, so that a row has one pair or several.
    for number, row in enumerate(islice(pairs(), 200)):
        prompt, chosen = row["prompt"][: 5 + number % 50], row["chosen"][: 12 + number % 70]
        rejected = row["rejected"][: 10 + number % 30]
        cut = Document(prompt=prompt, chosen=chosen, rejected=rejected, tools=None)
        found.append((splits[number % 8], cut))
    write_dataset(folder / "dataset", iter(found), "preference", {"source": "test"})
    write_stores(folder, folder / "model", Data(block_size=128))
    return folder


@pytest.fixture(scope="session")
def judgements(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """The same for answers that are good or bad, three good ones for two bad ones."""
    folder = tmp_path_factory.mktemp("judgements")
    (folder / "model").symlink_to(small / "model")
    found: list[tuple[str, Document]] = []
    splits = ["test", "validation", *["train"] * 6]
    for number, row in enumerate(islice(pairs(), 200)):
        label = number % 5 < 3
        prompt = row["prompt"][: 5 + number % 50]
        answer = row["chosen"][: 12 + number % 70] if label else row["rejected"][: 10 + number % 30]
        judged = Document(prompt=prompt, completion=answer, tools=None, label=label)
        found.append((splits[number % 8], judged))
    write_dataset(folder / "dataset", iter(found), "unpaired-preference", {"source": "test"})
    write_stores(folder, folder / "model", Data(block_size=128), "unpaired-preference")
    return folder


@pytest.fixture
def make_job(small: Path, tmp_path: Path) -> Make:
    """See `job_maker`; in the test's folder."""
    return job_maker(small, tmp_path)


@pytest.fixture(scope="session")
def alone() -> Worker:
    """The place of a single worker."""
    return Worker(rank=0, world_size=1, device=torch.device("cpu"))
