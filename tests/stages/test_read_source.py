"""A dataset is the same wherever its rows are read, and however often that was interrupted."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moray.errors import UserError
from moray.provenance.manifest import DATASET, JOURNAL, sha256_file
from moray.rows.journal import Journal
from moray.stages import read_source
from moray.stages.download import download
from moray.workers.pool import Work

SPLITS = ("train", "validation", "test")
ON_RAY = Work(threads=1, useful_threads=0, bytes_worth_ray=0)
EXECUTION = {"run": "x", "cores": None, "launcher": "ray", "ray": {"address": "local"}}


def rows(number: int) -> list[dict[str, Any]]:
    """Rows with copies, blank ones, bad ones and columns that aren't read."""
    draw = random.Random(0)
    made: list[dict[str, Any]] = []
    for place in range(number):
        row: dict[str, Any] = {"text": f"row {place} " + "é" * draw.randrange(60)}
        if place % 7 == 0 and made:
            row = {"text": draw.choice(made)["text"]}
        elif place % 11 == 0:
            row = {"text": " ", "blank": "yes"}
        elif place % 150 == 149:
            row = {"text": place}
        made.append(row)
    made[number // 2]["late"] = "value"
    return made


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Files of each split, to be read in many parts."""
    monkeypatch.setattr("moray.tasks.language.sources.readers.PART_BYTES", 2000)
    monkeypatch.setattr("moray.corpus.parts.PART_BYTES", 2000)
    some = rows(900)
    for name, own in (("a", some[:400]), ("b", some[400:800]), ("test", some[700:])):
        lines = (json.dumps(row) + "\n" for row in own)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "test")}
    return {"train": [paths["a"], paths["b"]], "test": [paths["test"]]}


def section(files: dict[str, Any], **keys: Any) -> dict[str, Any]:
    shares = {"validation_share": 0.2}
    return {"source": "files", "path": files, "bad_rows": "drop", **shares, **keys}


def results(folder: Path) -> dict[str, Any]:
    """The digests of a dataset's files, of which no others are there."""
    names = {DATASET, *(f"{split}.parquet" for split in SPLITS)}
    assert {path.name for path in folder.iterdir()} == names
    return {name: sha256_file(folder / name) for name in sorted(names)}


def stop_after(patch: pytest.MonkeyPatch, lines: int) -> None:
    """Interrupt the process when the journal has got so many lines more."""
    add, number = Journal.add, 0

    def stop(self: Journal, *line: Any) -> None:
        nonlocal number
        if number == lines:
            raise KeyboardInterrupt
        number += 1
        add(self, *line)

    patch.setattr(Journal, "add", stop)


def stop_in(patch: pytest.MonkeyPatch, name: str) -> None:
    def stop(*args: Any, **keys: Any) -> None:
        raise KeyboardInterrupt

    patch.setattr(f"moray.stages.download.{name}", stop)


# Numbers of parts after which a process is stopped, or a function in which it is.
MOMENTS: dict[str, list[int | str]] = {
    "first part": [1],
    "first file": [11],
    "three times": [3, 9, 17],
    "last split": [75],
    "all are read": ["by_hash"],
    "all is written": ["describe"],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_download_goes_on_to_the_same_dataset(
    moment: str, files: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same lines about it, too."""
    cfg = section(files)
    download(tmp_path / "whole/mine", cfg, files, "off")
    said = capsys.readouterr().err
    assert "bad row" in said
    assert "columns that are not used: blank, late" in said
    output = tmp_path / "stopped/mine"
    for stop in MOMENTS[moment]:
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(stop, int):
                stop_after(patch, stop)
            else:
                stop_in(patch, stop)
            with pytest.raises(KeyboardInterrupt):
                download(output, cfg, files, "off")
        assert (output / JOURNAL).is_file()
    capsys.readouterr()
    download(output, cfg, files, "off")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("mine: continues after ")
    assert others == said.splitlines()
    assert results(output) == results(tmp_path / "whole/mine")


@pytest.mark.parametrize("changed", ["settings", "code", "file"])
def test_what_decides_on_rows_begins_a_new_dataset(
    changed: str, files: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mine"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 20)
        with pytest.raises(KeyboardInterrupt):
            download(output, section(files), files, "off", "code 1")
    keys = {"test_share": 0.0, "validation_share": 0.3} if changed == "settings" else {}
    if changed == "file":
        with Path(files["train"][1]).open("a") as file:
            file.write('{"text": "one more"}\n')
    code = "code 2" if changed == "code" else "code 1"
    capsys.readouterr()
    download(output, section(files, **keys), files, "off", code)
    assert "continues" not in capsys.readouterr().err
    download(tmp_path / "again/mine", section(files, **keys), files, "off")
    assert results(output) == results(tmp_path / "again/mine")


def test_a_row_that_stops_the_download_leaves_nothing(
    files: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl, line 150: got int in column text"):
        download(tmp_path / "mine", section(files, bad_rows="refuse"), files, "off")
    assert not (tmp_path / "mine").exists()


KILLED = """
import json, os, signal, sys
from pathlib import Path
from moray.corpus import parts
from moray.corpus.staging import Staging
from moray.corpus.writer import DatasetWriter
from moray.rows import journal
from moray.stages.download import download
from moray.tasks.language.sources import readers

parts.PART_BYTES = readers.PART_BYTES = 2000
journal._SECONDS_BETWEEN_LINES = 0
output, cfg, files, fatal = map(json.loads, sys.argv[1:])
calls = 0

def count(owner, name):
    called = getattr(owner, name)
    def counted(*args, **keys):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*args, **keys)
    setattr(owner, name, counted)

count(Staging, "__call__")
count(journal.Journal, "add")
count(os, "fsync")
count(DatasetWriter, "add")
count(DatasetWriter, "close")
download(Path(output), cfg, files, "off")
print(calls)
"""


@pytest.mark.long
def test_a_download_that_is_killed_again_and_again_ends_with_the_same_dataset(
    files: dict[str, Any], tmp_path: Path
) -> None:
    """At five random moments, and it goes on with what was on disk before."""
    cfg = section(files)
    download(tmp_path / "whole/mine", cfg, files, "off")

    def start(output: Path, fatal: int) -> subprocess.CompletedProcess[str]:
        words = map(json.dumps, (str(output), cfg, files, fatal))
        return subprocess.run(
            [sys.executable, "-c", KILLED, *words], capture_output=True, text=True
        )

    output, journal, known = tmp_path / "killed/mine", tmp_path / "killed/mine" / JOURNAL, 0
    calls = int(start(tmp_path / "counted/mine", 0).stdout)
    seed = random.randrange(1000)
    draw = random.Random(seed)
    for _ in range(5):
        done = start(output, draw.randrange(2, calls // 6))
        assert done.returncode == -9, seed
        assert not known or f"continues after {known:,} part" in done.stderr, seed
        before, known = known, journal.read_bytes().count(b"\n") - 1
        assert known >= before, seed
    done = start(output, 0)
    assert done.returncode == 0, done.stderr
    assert f"continues after {known:,} part" in done.stderr, seed
    assert results(output) == results(tmp_path / "whole/mine"), seed


@pytest.mark.long
def test_tasks_of_ray_read_the_same_rows(
    files: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that threads began, too, and a row that is refused is named."""
    cfg = section(files)
    download(tmp_path / "threads/mine", cfg, files, "off")
    said = capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            download(tmp_path / "begun/mine", cfg, files, "off")
    monkeypatch.setattr(read_source, "PARSE", ON_RAY)
    for name in ("tasks", "begun"):
        download(tmp_path / name / "mine", cfg, files, "off", execution=EXECUTION)
        assert results(tmp_path / name / "mine") == results(tmp_path / "threads/mine")
    assert capsys.readouterr().err.endswith(said)
    refused = section(files, bad_rows="refuse")
    with pytest.raises(UserError, match=r"a\.jsonl, line 150: got int in column text"):
        download(tmp_path / "refused", refused, files, "off", execution=EXECUTION)
