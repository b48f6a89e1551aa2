"""A run whose fingerprint changed says why it starts over, and goes on if the config says so."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tensors_of
from jobs import job_maker, train_run

from moray.config.schema.train import Adapter
from moray.errors import ConfigError, UserError
from moray.provenance.manifest import MANIFEST
from moray.storage.folder import FolderStorage
from moray.train.continuation import continued_from
from moray.train.history import read_history
from moray.train.identity import identity_of, read_identity, write_identity
from moray.train.job import Job, RunSpec
from moray.train.loop import train
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


@pytest.fixture
def storage(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "work"))


def checkpoint_of(storage: Path, step: int) -> Path:
    (path,) = storage.glob(f"name/*/checkpoints/step-{step:08d}")
    return path


def job_with(make_job: Any, given: Path | None = None, **settings: Any) -> Job:
    resume = None if given is None else str(given)
    job: Job = make_job(**SETTINGS, resume_from_checkpoint=resume, **settings)
    return job


NOWHERE = {"address": "nowhere.invalid:6379"}


def said(
    job: Job, small: Path, output: Path, capsys: pytest.CaptureFixture[str], code: str = "after"
) -> list[str]:
    """What the driver says before it would start workers."""
    capsys.readouterr()
    settings = job.settings.model_copy(update={"launcher": "ray"})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_AUTH_MODE", raising=False)
        with pytest.raises(UserError, match="whose host is unknown"):
            train_run(job, small, output, settings, code, **NOWHERE)
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("run name: ")]


def test_a_run_that_starts_over_says_what_differs_and_how_to_continue(
    make_job: Any, small: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, last = job_with(make_job, learning_rate=0.5), checkpoint_of(storage, 8)
    assert said(job, small, tmp_path / "output", capsys) == [
        "run name: starting at step 0, because its checkpoint at step 8 was made with different "
        "inputs: train.learning_rate (0.01 → 0.5), code; to continue from that checkpoint anyway, "
        f"set runs.name.train.resume_from_checkpoint: {last}"
    ]


def test_a_run_that_resumes_or_is_new_says_nothing(
    make_job: Any, small: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_with(make_job)
    assert said(job, small, tmp_path / "resumed", capsys, code="before") == []
    shutil.rmtree(storage / "name")
    assert said(job, small, tmp_path / "new", capsys) == []


@pytest.mark.long
@pytest.mark.parametrize("best", [False, True])
def test_a_run_continues_from_a_checkpoint_of_another_fingerprint_and_records_it(
    make_job: Any,
    small: Path,
    storage: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    best: bool,
) -> None:
    """The code alone is another one: it ends with the bytes of the run that wasn't interrupted."""
    given, before = checkpoint_of(storage, 6), tensors_of(checkpoint_of(storage, 8))
    earlier = list(read_history(given.parents[1] / "history.jsonl"))
    job = job_with(make_job, given, load_best_model_at_end=best)
    train_run(job, small, tmp_path / "output", job.settings, "after", num_workers=1)

    record = json.loads((tmp_path / "output/train.json").read_text())
    assert record["resumed_from"] == 6
    expected = ["train.load_best_model_at_end (false → true)", "code"]
    assert record["continued_from"] == {
        "checkpoint": str(given),
        "step": 6,
        "fingerprint": given.parents[1].name,
        "differences": expected[0 if best else 1 :],
    }
    work = storage / "name" / record["fingerprint"]
    after = tensors_of(work / "checkpoints/step-00000008")
    assert all(torch.equal(after[name], before[name]) for name in before)
    history = list(read_history(tmp_path / "output/history.jsonl"))
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (earlier, history)]
    assert losses[0] == losses[1]
    # The other run is as it was.
    assert len(list(given.parent.iterdir())) == 4

    # From then on, the run has checkpoints of its own, and still knows where they are from.
    assert said(job, small, tmp_path / "again", capsys) == []
    assert continued_from(FolderStorage(work)) == record["continued_from"]
    # Without the key, it is another run.
    job = job_with(make_job, load_best_model_at_end=best)
    (line,) = said(job, small, tmp_path / "without", capsys)
    assert line.startswith("run name: starting at step 0")
    assert "train.resume_from_checkpoint (" in line


def test_a_run_continues_where_only_the_name_of_the_folder_differs(
    make_job: Any, small: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As other versions of moray make other fingerprints, perhaps under other libraries."""
    (made,) = storage.glob("name/*")
    identity = json.loads((made / "identity.json").read_text())
    identity["libraries"]["torch"] = "2.12.9"
    (made / "identity.json").write_text(json.dumps(identity))
    made.rename(storage / "name/0123456789abcdef")
    last, job = checkpoint_of(storage, 8), job_with(make_job)
    assert said(job, small, tmp_path / "output", capsys, code="before") == [
        f"run name: continuing from {last}, which was made with the same inputs"
    ]
    assert (made / "checkpoints/step-00000008" / MANIFEST).is_file()
    assert continued_from(FolderStorage(made)) is None
    found = read_identity(FolderStorage(made).records)
    assert found is not None
    (earlier,) = found.earlier_libraries
    assert (earlier["until_step"], earlier["libraries"]["torch"]) == (8, "2.12.9")


def test_an_import_that_is_cut_off_is_repeated(
    make_job: Any,
    small: Path,
    storage: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record of where a checkpoint is from isn't there before the checkpoint is."""
    job = job_with(make_job, checkpoint_of(storage, 6))

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    places = ("moray.storage.folder.FolderStorage.adopt", "moray.train.continuation.as_json")
    for place in places:
        monkeypatch.setattr(place, killed)
        with pytest.raises(KeyboardInterrupt):
            train_run(job, small, tmp_path / place, job.settings, "after", num_workers=1)
        monkeypatch.undo()
        identity = identity_of(RunSpec("name", job.start, job.parts, job.settings, code="after"))
        state = FolderStorage(storage / "name" / identity.fingerprint)
        assert continued_from(state) is None
    assert said(job, small, tmp_path / "output", capsys) == []
    record = continued_from(state)
    assert record is not None
    assert (record["step"], record["differences"]) == (6, ["code"])


@pytest.mark.long
def test_a_run_continues_under_other_libraries_and_says_so(
    make_job: Any, small: Path, storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_with(make_job)
    (work,) = storage.glob("name/*")
    shutil.rmtree(checkpoint_of(storage, 8))
    file = work / "identity.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"libraries": before["libraries"] | {"torch": "2.12.9"}}))
    train_run(job, small, tmp_path / "output", job.settings, "before", num_workers=1)
    record = json.loads((tmp_path / "output/train.json").read_text())
    assert (record["resumed_from"], record["steps"]) == (6, 8)
    (earlier,) = record["earlier_libraries"]
    assert (earlier["until_step"], earlier["libraries"]["torch"]) == (6, "2.12.9")
    note = (
        "continues at step 6 under other versions of libraries: "
        f"torch (2.12.9 → {before['libraries']['torch']})"
    )
    history = read_history(tmp_path / "output/history.jsonl")
    assert note in [line.get("note") for line in history]
    assert note in capsys.readouterr().err


def refusal(job: Job, small: Path, output: Path, error: type[Exception] = UserError) -> str:
    with pytest.raises(error) as caught:
        train_run(job, small, output, job.settings, "after", num_workers=1)
    line = str(caught.value)
    assert line.startswith("runs.name.train.resume_from_checkpoint: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", ["none/step-00000002", "checkpoints"])
def test_a_folder_that_is_no_checkpoint_is_refused(
    make_job: Any, small: Path, storage: Path, tmp_path: Path, name: str
) -> None:
    job = job_with(make_job, checkpoint_of(storage, 2).parents[1] / name)
    assert "expected a checkpoint folder" in refusal(job, small, tmp_path / "output", ConfigError)


def test_a_checkpoint_beyond_the_last_step_is_refused(
    make_job: Any, small: Path, storage: Path, tmp_path: Path
) -> None:
    job = job_with(make_job, checkpoint_of(storage, 8), max_steps=7)
    assert "past the last step of this run (7)" in refusal(job, small, tmp_path / "output")


def test_a_checkpoint_of_other_tensors_is_refused(
    make_job: Any, small: Path, storage: Path, tmp_path: Path
) -> None:
    job = job_with(make_job, checkpoint_of(storage, 8))
    job = replace(job, adapter=Adapter())
    assert "model.embed_tokens.weight is [300, 32] there and missing here" in refusal(
        job, small, tmp_path / "output"
    )


def test_a_damaged_checkpoint_is_refused(
    make_job: Any, small: Path, storage: Path, tmp_path: Path
) -> None:
    given = checkpoint_of(storage, 8)
    (given / ".metadata").write_bytes(b"")
    job = job_with(make_job, given)
    assert "missing or damaged files: .metadata;" in refusal(job, small, tmp_path / "output")


def test_a_checkpoint_without_its_best_is_refused_where_that_is_exported(
    make_job: Any, small: Path, storage: Path, tmp_path: Path
) -> None:
    shutil.rmtree(checkpoint_of(storage, 4))
    job = job_with(make_job, checkpoint_of(storage, 6), load_best_model_at_end=True)
    line = refusal(job, small, tmp_path / "output")
    assert "step-00000004, the best checkpoint" in line
    assert f"damaged files: {MANIFEST}; set train.load_best_model_at_end to false" in line


def test_a_refused_checkpoint_leaves_those_of_the_run_as_they_are(
    make_job: Any, small: Path, storage: Path, alone: Worker, tmp_path: Path
) -> None:
    job = job_with(make_job, checkpoint_of(storage, 8), max_steps=7)
    identity = identity_of(RunSpec("name", job.start, job.parts, job.settings, code="after"))
    own = storage / "name" / identity.fingerprint
    own.mkdir()
    train(replace(job, work=own, settings=job.settings.model_copy(update={"max_steps": 2})), alone)
    refusal(job, small, tmp_path / "output")
    assert [path.name for path in (own / "checkpoints").iterdir()] == ["step-00000002"]
