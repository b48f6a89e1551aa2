"""Answers of a model to the harness, of which some are on disk, against the harness's own model.

All are long: importing the harness takes seconds.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from resumed import interrupted_after

from moray.evaluate.batches import BatchResults
from moray.evaluate.worker import BatchStore, EvaluationJob, for_each_model
from moray.tasks.language.tokenizer import load_tokenizer
from moray.workers.entry import Worker

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

pytestmark = pytest.mark.long

SIZE = 3
GREEDY = {"until": ["\n"], "max_gen_toks": 5, "do_sample": False}
SAMPLED = {"until": ["\n"], "max_gen_toks": 7, "do_sample": True, "temperature": 1.0}
Answers = dict[str, list[Any]]


def instances(kind: str, *arguments: Any) -> list["Instance"]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, number) for number, one in enumerate(arguments)]


def requests(texts: list[str]) -> dict[str, list["Instance"]]:
    """Of each kind, some of them twice, in lengths that differ."""
    contexts = [text[: 5 + 4 * number] for number, text in enumerate(texts[:7])]
    pairs = [(context, end) for context in ["", *contexts] for end in (" a", " b", "def x", " a")]
    prompts = [(context, kind) for kind in (GREEDY, SAMPLED, SAMPLED) for context in contexts]
    return {
        "loglikelihood": instances("loglikelihood", *pairs),
        # The longest don't fit into the model.
        "loglikelihood_rolling": instances("loglikelihood_rolling", *((text,) for text in texts)),
        "generate_until": instances("generate_until", *prompts),
    }


def answers(model: "HFLM", asked: dict[str, list["Instance"]]) -> Answers:
    torch.manual_seed(5)
    return {kind: getattr(model, kind)(some) for kind, some in asked.items()}


@pytest.fixture
def asked(texts: list[str]) -> dict[str, list["Instance"]]:
    return requests(["".join(texts)[:900], *texts[1:9]])


@pytest.fixture(scope="module")
def plain(tuned_folder: Path) -> "HFLM":
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(tuned_folder), device="cpu", batch_size=SIZE, dtype="float32")


def stored(
    folder: Path,
    model: Path,
    asked: dict[str, list["Instance"]],
    name: str = "tuned",
    size: int = SIZE,
) -> Answers:
    job = EvaluationJob(folder, size, "key", "fp32", 1, {name: model}, batches=folder / "batches")

    def ask(name: str, loaded: Any, store: BatchStore) -> Answers:
        from moray.extras.lm_eval.model import ResumableModel

        return answers(ResumableModel(name, store, loaded, load_tokenizer(model), size), asked)

    return for_each_model(ask, job, Worker(0, 1, torch.device("cpu")))[name]


def done(folder: Path) -> int:
    return len(BatchResults(folder / "batches"))


def test_answers_are_those_of_the_harness_to_the_bit(
    tmp_path: Path, tuned_folder: Path, asked: dict[str, list["Instance"]], plain: "HFLM"
) -> None:
    found, expected = stored(tmp_path, tuned_folder, asked), answers(plain, asked)
    assert found == expected
    assert len({*expected["generate_until"]}) > 7
    # All are on disk.
    count = done(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.models.huggingface.HFLM._model_call", None)
        patch.setattr("lm_eval.models.huggingface.HFLM._model_generate", None)
        assert stored(tmp_path, tuned_folder, asked) == expected
    assert done(tmp_path) == count


def test_answers_are_the_same_after_an_interruption_at_any_batch(
    tmp_path: Path, tuned_folder: Path, asked: dict[str, list["Instance"]], plain: "HFLM"
) -> None:
    expected = answers(plain, asked)
    stored(tmp_path, tuned_folder, asked)
    total = done(tmp_path)
    assert total > 15
    for count in range(total):
        folder = tmp_path / str(count)
        with interrupted_after(count):
            stored(folder, tuned_folder, asked)
        assert done(folder) == count
        assert stored(folder, tuned_folder, asked) == expected
        assert done(folder) == total


def test_answers_to_other_requests_of_other_models_or_in_other_batches_do_not_count(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    texts: list[str],
    asked: dict[str, list["Instance"]],
) -> None:
    stored(tmp_path, tuned_folder, asked)
    others: list[dict[str, Any]] = [
        {"asked": requests(texts[10:20])},
        {"name": "base", "model": model_folder},
        {"size": SIZE + 1},
    ]
    for number, other in enumerate(others):
        keywords = {"model": tuned_folder, "asked": asked, **other}
        assert stored(tmp_path, **keywords) == stored(tmp_path / str(number), **keywords)
