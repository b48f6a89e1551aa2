"""A run whose fingerprint changed says why it starts over, and goes on if the config says so."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from jobs import job_maker, train_run
from present import needs

from moray.config.schema.train import Adapter
from moray.errors import ConfigError, UserError
from moray.provenance.manifest import MANIFEST, sha256_file
from moray.storage.folder import FolderStorage
from moray.tasks.language.rows import StoredSplit
from moray.train.checkpoint.continuation import continued_from
from moray.train.history import HISTORY, read_history
from moray.train.identity import identity_of, read_identity, write_identity
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker

# Steps 2, 4, 6 and 8 of a run whose code was another.
SETTINGS: dict[str, Any] = {"save_total_limit": 4, "launcher": "torchrun"}


@pytest.fixture(scope="module")
def trained(small: Path, alone: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with the checkpoints and the identity of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    job = job_maker(small, folder)("state", **SETTINGS)
    identity = identity_of(RunSpec("name", job.start, job.parts, job.settings, code="before"))
    job = replace(job, work=job.work / "name" / identity.fingerprint)
    write_identity(identity, FolderStorage(job.work).records)
    train(job, alone)
    return folder / "state"


NOWHERE = {"address": "nowhere.invalid:6379"}


class Case:
    """A run whose storage folder has the checkpoints of another fingerprint."""

    def __init__(self, folder: Path, small: Path, make_job: Any, capsys: Any) -> None:
        self.storage = folder / "work"
        self._folder, self._small, self._make_job, self._capsys = folder, small, make_job, capsys
        self._number = 0

    def checkpoint(self, step: int) -> Path:
        (path,) = self.storage.glob(f"name/*/checkpoints/step-{step:08d}")
        return path

    def job(self, given: Path | None = None, **settings: Any) -> RunSpec:
        resume = None if given is None else str(given)
        job: RunSpec = self._make_job(**SETTINGS, resume_from_checkpoint=resume, **settings)
        return job

    def train(self, job: RunSpec, code: str = "after") -> Path:
        """Train as the stage does; returns the folder of the results."""
        self._number += 1
        output = self._folder / f"output {self._number}"
        train_run(job, self._small, output, job.settings, code, num_workers=1)
        return output

    def said(self, job: RunSpec, code: str = "after") -> list[str]:
        """What the driver says besides that it starts workers."""
        return [line for line in self.lines(job, code) if "; starting " not in line]

    def lines(self, job: RunSpec, code: str) -> list[str]:
        """What the driver says before it would start workers."""
        self._capsys.readouterr()
        self._number += 1
        settings = job.settings.model_copy(update={"launcher": "ray"})
        output = self._folder / f"output {self._number}"
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("RAY_AUTH_MODE", raising=False)
            with pytest.raises(UserError, match="whose host is unknown"):
                train_run(job, self._small, output, settings, code, **NOWHERE)
        lines = self._capsys.readouterr().err.splitlines()
        return [line for line in lines if line.startswith("run name: ")]

    def refusal(self, job: RunSpec, error: type[Exception] = UserError) -> str:
        with pytest.raises(error) as caught:
            self.train(job)
        line = str(caught.value)
        assert line.startswith("runs.name.train.resume_from_checkpoint: ")
        assert "\n" not in line
        return line


@pytest.fixture
def case(
    trained: Path, small: Path, make_job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Case:
    shutil.copytree(trained, tmp_path / "work")
    return Case(tmp_path, small, make_job, capsys)


def test_a_run_that_starts_over_says_what_differs_and_how_to_continue(case: Case) -> None:
    job, last = case.job(learning_rate=0.5), case.checkpoint(8)
    assert case.said(job) == [
        "run name: starting at step 0, because its checkpoint at step 8 was made with different "
        "inputs: train.learning_rate (0.01 → 0.5), code; to continue from that checkpoint anyway, "
        f"set runs.name.train.resume_from_checkpoint: {last}"
    ]


def test_a_run_that_resumes_or_is_new_says_nothing(case: Case) -> None:
    job = case.job()
    assert case.said(job, code="before") == []
    shutil.rmtree(case.storage / "name")
    assert case.said(job) == []


@needs("adamw_8bit", "bf16_weights")
def test_a_run_that_continues_in_fewer_bits_says_that_it_rounds(case: Case) -> None:
    given = case.checkpoint(6)
    job = case.job(given, optimizer="adamw_8bit", weights="bf16")
    assert case.said(job) == [
        f"run name: continuing from {given}, whose optimizer state is in fp32; "
        "train.optimizer: adamw_8bit rounds it to 8 bits",
        f"run name: continuing from {given}, whose weights are in fp32; "
        "train.weights: bf16 rounds them to bf16",
    ]
    # From then on, it has checkpoints of its own.
    assert case.said(job) == []


def test_a_checkpoint_of_another_optimizer_is_refused(case: Case) -> None:
    given = case.checkpoint(6)
    assert case.refusal(case.job(given, optimizer="muon")) == (
        f"runs.name.train.resume_from_checkpoint: {given} has the state of adamw, and "
        "train.optimizer is muon; use a checkpoint of muon, or set train.optimizer to adamw"
    )


def test_a_run_says_at_its_start_how_far_it_goes(case: Case) -> None:
    assert case.lines(case.job(), "before") == [
        "run name: 8 steps, resuming from step 8; starting Ray and its workers"
    ]
    job = case.job(max_steps=None, num_epochs=2, global_batch_size=16)
    num_rows = len(StoredSplit(job.parts[0].store, "train"))
    assert case.lines(job, "new")[-1] == (
        f"run name: {math.ceil(2 * num_rows / 16)} steps for 2 epochs of {num_rows} rows; starting "
        "Ray and its workers"
    )


@pytest.mark.long
@pytest.mark.parametrize("best", [False, True])
def test_a_run_continues_from_a_checkpoint_of_another_fingerprint_and_records_it(
    case: Case, best: bool
) -> None:
    """The code alone is another one: it ends with the bytes of the run that wasn't interrupted."""
    given, before = case.checkpoint(6), tensors_of(case.checkpoint(8))
    earlier = list(read_history(given.parents[1] / "history.jsonl"))
    job = case.job(given, load_best_model_at_end=best)
    output = case.train(job)

    record = json.loads((output / "train.json").read_text())
    assert record["resumed_from"] == 6
    expected = ["train.load_best_model_at_end (false → true)", "code"]
    assert record["continued_from"] == {
        "checkpoint": str(given),
        "step": 6,
        "fingerprint": given.parents[1].name,
        "differences": expected[0 if best else 1 :],
    }
    work = case.storage / "name" / record["fingerprint"]
    after = tensors_of(work / "checkpoints/step-00000008")
    assert all(torch.equal(after[name], before[name]) for name in before)
    history = list(read_history(output / "history.jsonl"))
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (earlier, history)]
    assert losses[0] == losses[1]
    # The other run is as it was.
    assert len(list(given.parent.iterdir())) == 4

    # From then on, the run has checkpoints of its own, and still knows where they are from.
    assert case.said(job) == []
    assert continued_from(FolderStorage(work)) == record["continued_from"]
    # Without the key, it is another run.
    job = case.job(load_best_model_at_end=best)
    (line,) = case.said(job)
    assert line.startswith("run name: starting at step 0")
    assert "train.resume_from_checkpoint (" in line


def test_a_run_continues_where_only_the_name_of_the_folder_differs(case: Case) -> None:
    """As other versions of moray make other fingerprints, perhaps under other libraries."""
    (made,) = case.storage.glob("name/*")
    identity = json.loads((made / "identity.json").read_text())
    identity["libraries"]["torch"] = "2.12.9"
    (made / "identity.json").write_text(json.dumps(identity))
    made.rename(case.storage / "name/0123456789abcdef")
    last, job = case.checkpoint(8), case.job()
    assert case.said(job, code="before") == [
        f"run name: continuing from {last}, which was made with the same inputs"
    ]
    assert (made / "checkpoints/step-00000008" / MANIFEST).is_file()
    assert continued_from(FolderStorage(made)) is None
    found = read_identity(FolderStorage(made).records)
    assert found is not None
    (earlier,) = found.earlier_libraries
    assert (earlier["until_step"], earlier["libraries"]["torch"]) == (8, "2.12.9")


def test_a_run_continues_where_an_equal_one_of_another_name_is(case: Case) -> None:
    before = case.train(case.job(), code="before")
    (case.storage / "name").rename(case.storage / "other")
    (made,) = case.storage.glob("other/*")
    last, job = made / "checkpoints/step-00000008", case.job()
    with FolderStorage(made).sole_driver():
        assert case.said(job, code="before") == [
            "run name: other, which has the same settings, data and start, is being trained too"
        ]
    assert case.said(job, code="before") == [
        f"run name: continuing from {last}: other has the same settings, data and start"
    ]
    after = case.train(job, code="before")
    assert (after / HISTORY).read_bytes() == (before / HISTORY).read_bytes()
    record = json.loads((after / "train.json").read_text())
    assert record["resumed_from"] == record["steps"] == 8
    digest = sha256_file(last / "__0_0.distcp")
    # Its files are its own, so they stay if those of the other run are removed.
    shutil.rmtree(case.storage / "other")
    assert sha256_file(Path(record["checkpoint"], "__0_0.distcp")) == digest


def test_an_import_that_is_cut_off_is_repeated(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of where a checkpoint is from isn't there before the checkpoint is."""
    job = case.job(case.checkpoint(6))

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    places = (
        "moray.storage.folder.FolderStorage.adopt",
        "moray.train.checkpoint.continuation.as_json",
    )
    for place in places:
        monkeypatch.setattr(place, killed)
        with pytest.raises(KeyboardInterrupt):
            case.train(job)
        monkeypatch.undo()
        identity = identity_of(RunSpec("name", job.start, job.parts, job.settings, code="after"))
        state = FolderStorage(case.storage / "name" / identity.fingerprint)
        assert continued_from(state) is None
    assert case.said(job) == []
    record = continued_from(state)
    assert record is not None
    assert (record["step"], record["differences"]) == (6, ["code"])


@pytest.mark.long
def test_a_run_continues_under_other_libraries_and_says_so(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    job = case.job()
    (work,) = case.storage.glob("name/*")
    shutil.rmtree(case.checkpoint(8))
    file = work / "identity.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"libraries": before["libraries"] | {"torch": "2.12.9"}}))
    output = case.train(job, code="before")
    record = json.loads((output / "train.json").read_text())
    assert (record["resumed_from"], record["steps"]) == (6, 8)
    (earlier,) = record["earlier_libraries"]
    assert (earlier["until_step"], earlier["libraries"]["torch"]) == (6, "2.12.9")
    note = (
        "continues at step 6 under other versions of libraries: "
        f"torch (2.12.9 → {before['libraries']['torch']})"
    )
    history = read_history(output / "history.jsonl")
    assert note in [line.get("note") for line in history]
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none/step-00000002", "checkpoints"])
def test_a_folder_that_is_no_checkpoint_is_refused(case: Case, name: str) -> None:
    job = case.job(case.checkpoint(2).parents[1] / name)
    assert "expected a checkpoint folder" in case.refusal(job, ConfigError)


def test_a_checkpoint_beyond_the_last_step_is_refused(case: Case) -> None:
    job = case.job(case.checkpoint(8), max_steps=7)
    assert "past the last step of this run (7)" in case.refusal(job)


def test_a_checkpoint_of_other_tensors_is_refused(case: Case) -> None:
    job = case.job(case.checkpoint(8))
    job = replace(job, adapter=Adapter())
    assert "model.embed_tokens.weight is [300, 32] there and missing here" in case.refusal(job)


def test_a_damaged_checkpoint_is_refused(case: Case) -> None:
    given = case.checkpoint(8)
    (given / ".metadata").write_bytes(b"")
    job = case.job(given)
    assert "missing or damaged files: .metadata;" in case.refusal(job)


def test_a_checkpoint_without_its_best_is_refused_where_that_is_exported(case: Case) -> None:
    shutil.rmtree(case.checkpoint(4))
    job = case.job(case.checkpoint(6), load_best_model_at_end=True)
    line = case.refusal(job)
    assert "step-00000004, the best checkpoint" in line
    assert f"damaged files: {MANIFEST}; set train.load_best_model_at_end to false" in line


def test_a_refused_checkpoint_leaves_those_of_the_run_as_they_are(
    case: Case, alone: Worker
) -> None:
    job = case.job(case.checkpoint(8), max_steps=7)
    identity = identity_of(RunSpec("name", job.start, job.parts, job.settings, code="after"))
    own = case.storage / "name" / identity.fingerprint
    own.mkdir()
    train(replace(job, work=own, settings=job.settings.model_copy(update={"max_steps": 2})), alone)
    case.refusal(job)
    assert [path.name for path in (own / "checkpoints").iterdir()] == ["step-00000002"]
