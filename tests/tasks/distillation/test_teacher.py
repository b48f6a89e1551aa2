"""What is stored of a teacher, and which teachers are refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from resumed import check_batches_resumption, interrupted_after
from taught import CFG, write_taught, write_teacher
from transformers import AutoModelForCausalLM, AutoTokenizer

from moray.errors import UserError
from moray.evaluate.batches import Batch, BatchResults
from moray.evaluate.worker import EvaluationJob
from moray.proofs.comparison import read_proof
from moray.provenance.manifest import damaged_files, read_manifest
from moray.rows.store import StoredRows, record_of
from moray.tasks.distillation.teacher import Likeliest, predict_on_worker
from moray.tasks.language.proofs.plain import pieces_of
from moray.workers.entry import Worker

SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """A folder with `teacher` and `store`."""
    folder = tmp_path_factory.mktemp("taught")
    write_teacher(folder, small)
    write_taught(folder, small, folder / "store")
    return folder


def test_rows_have_the_likeliest_tokens_that_plain_transformers_finds(
    taught: Path, small: Path
) -> None:
    store = taught / "store"
    manifest, given = read_manifest(store), read_manifest(small / "tokens")
    assert damaged_files(store) == []
    assert manifest["task"] == "distillation"
    assert manifest["splits"] == {name: given["splits"][name] for name in SPLITS}
    model = AutoModelForCausalLM.from_pretrained(taught / "teacher").eval()
    for name in SPLITS:
        rows, before = StoredRows(store, name).rows, StoredRows(small / "tokens", name).rows
        for field in ("tokens", "flags"):
            np.testing.assert_array_equal(rows[field], before[field])
        for row in rows[:4]:
            entry = 0
            for tokens, mask in pieces_of(np.array([row])):
                with torch.no_grad():
                    logits = model(torch.tensor([tokens])).logits[0, :-1][torch.tensor(mask[1:])]
                expected = torch.log_softmax(logits / CFG["temperature"], -1).topk(8)
                part = slice(entry, entry + len(logits))
                entry = part.stop
                np.testing.assert_array_equal(row["teacher_tokens"][part], expected.indices)
                np.testing.assert_allclose(row["teacher_logs"][part], expected.values, rtol=1e-3)
            assert not row["teacher_logs"][entry:].any()
    (proof,) = read_proof(store)
    assert proof["holds"]
    assert proof["here"] == pytest.approx(proof["plain"], rel=1e-3)


def test_a_store_has_room_for_the_row_with_most_trained_tokens(taught: Path) -> None:
    rows = np.concatenate([StoredRows(taught / "store", name).rows for name in SPLITS])
    most = int((rows["flags"] & 1).sum(axis=1).max())
    assert rows.dtype["teacher_tokens"].shape == (most, 8)
    assert rows.dtype["teacher_tokens"].base == np.dtype("<u2")
    assert rows.dtype["teacher_logs"].base == np.dtype("<f2")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torchrun", marks=pytest.mark.long),
        pytest.param("ray", marks=pytest.mark.release),
    ],
)
def test_the_number_of_workers_changes_nothing_but_rounding(
    launcher: str, taught: Path, small: Path, tmp_path: Path
) -> None:
    evaluate = {"batch_size": 4}
    stores = []
    for workers in (1, 2):
        stores.append(tmp_path / str(workers))
        section = {**evaluate, "num_workers": workers}
        write_taught(taught, small, stores[-1], evaluate=section, launcher=launcher)
    for name in SPLITS:
        one, other = (StoredRows(store, name).rows for store in stores)
        for field in ("tokens", "flags", "teacher_tokens"):
            np.testing.assert_array_equal(one[field], other[field])
        # A thread more or less rounds differently.
        np.testing.assert_allclose(one["teacher_logs"], other["teacher_logs"], rtol=2e-3)
    # What the workers wrote is gone.
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}


def test_an_interrupted_teacher_continues_and_ends_with_the_same_bytes(
    taught: Path, small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def stage(folder: Path) -> None:
        write_taught(taught, small, folder / "store")

    check_batches_resumption(stage, tmp_path, capfd)


@pytest.mark.parametrize("before", [1, 3])
def test_other_workers_go_on_with_a_teacher_s_batches(
    before: int, taught: Path, small: Path, tmp_path: Path
) -> None:
    store, cpu = taught / "store", torch.device("cpu")
    job = EvaluationJob(
        tmp_path,
        4,
        "key",
        "fp32",
        None,
        {"teacher": taught / "teacher"},
        (small / "tokens",),
        tmp_path / "batches",
    )
    vocabulary = len(AutoTokenizer.from_pretrained(small / "model"))
    likeliest = Likeliest(8, 2.0, vocabulary)
    record = record_of(read_manifest(store))
    for rank in range(before):
        with interrupted_after(2):
            predict_on_worker(job, Worker(rank, before, cpu), record, likeliest, "path")
    for rank in range(2):
        predict_on_worker(job, Worker(rank, 2, cpu), record, likeliest, "path")
    results = BatchResults(tmp_path / "batches")
    for name in SPLITS:
        expected = StoredRows(store, name).rows
        for number in range(-(-len(expected) // 4)):
            arrays = results.read(Batch("teacher", name, number))
            assert arrays is not None
            assert arrays["rows"].tobytes() == expected[4 * number :][:4].tobytes()


def test_more_tokens_than_the_tokenizer_has_are_all_of_them(
    taught: Path, small: Path, tmp_path: Path
) -> None:
    write_taught(taught, small, tmp_path / "store", {**CFG, "top_k": 10_000})
    vocabulary = len(AutoTokenizer.from_pretrained(small / "model"))
    row = StoredRows(tmp_path / "store", "train").rows[0]
    assert row["teacher_tokens"].shape[1] == vocabulary
    assert sorted(row["teacher_tokens"][0].tolist()) == list(range(vocabulary))


def test_an_output_layer_may_have_more_tokens_than_the_tokenizer(
    taught: Path, small: Path, tmp_path: Path
) -> None:
    shutil.copytree(taught / "teacher", tmp_path / "teacher")
    model = AutoModelForCausalLM.from_pretrained(taught / "teacher")
    model.resize_token_embeddings(model.config.vocab_size + 20)
    with torch.no_grad():
        # The likeliest of all, if they were taken.
        model.get_output_embeddings().weight[-20:] = 100
    model.save_pretrained(tmp_path / "teacher")
    write_taught(tmp_path, small, tmp_path / "store")
    vocabulary = len(AutoTokenizer.from_pretrained(small / "model"))
    assert StoredRows(tmp_path / "store", "train").rows["teacher_tokens"].max() < vocabulary


def test_a_teacher_with_other_tokens_is_refused(taught: Path, small: Path, tmp_path: Path) -> None:
    shutil.copytree(taught / "teacher", tmp_path / "teacher")
    path = tmp_path / "teacher/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError) as caught:
        write_taught(tmp_path, small, tmp_path / "store")
    assert str(caught.value) == (
        f"runs.name.distillation.teacher: its tokenizer, {tmp_path}/teacher, differs from "
        f"{small}/model, so it predicts other tokens; choose a teacher of the same family"
    )
    assert not (tmp_path / "store").exists()


def test_a_teacher_that_takes_no_rows_of_this_length_is_refused(
    small: Path, tmp_path: Path
) -> None:
    write_teacher(tmp_path, small, max_position_embeddings=32)
    with pytest.raises(UserError, match="makes sequences of 64 tokens, expected at most 32"):
        write_taught(tmp_path, small, tmp_path / "store")
    assert not (tmp_path / "store").exists()
