"""The command `moray`; what it calls is tested with the rooms."""

import json
from pathlib import Path

import pytest
from made_up_results import write_run, write_state
from typer.testing import CliRunner

from moray.cli import app
from moray.provenance.manifest import write_manifest


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the current directory."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results/models/tiny")
    folder.mkdir(parents=True)
    (folder / "weights").write_text("weights")
    write_manifest(folder)
    return folder


def test_verify_prints_what_it_checked(model: Path) -> None:
    for arguments in (["verify"], ["verify", str(model)]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0
        assert done.stdout == "1 result checked, nothing broken\n"


def test_verify_prints_a_line_for_what_is_broken(model: Path) -> None:
    (model / "weights").write_text("other")
    done = CliRunner().invoke(app, ["verify"])
    assert done.exit_code == 1
    assert done.stdout == (
        "broken: results/models/tiny/weights: doesn't match its SHA-256 in "
        "results/models/tiny/manifest.json\n1 result checked, 1 broken\n"
    )


def test_verify_names_some_of_many_sources_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {f"photos/{number:02}.png": "0" * 64 for number in range(25)}
    Path("dataset.json").write_text(
        json.dumps({"source": "image-folder", "files": files, "splits": {}})
    )
    done = CliRunner().invoke(app, ["verify", "dataset.json"])
    assert done.exit_code == 0
    *lines, more, end = done.stdout.splitlines()
    assert lines == [f"not checked: {file} no longer exists" for file in [*files][:10]]
    assert more == "not checked: 15 more files aren't there any more"
    assert end == "1 result checked, nothing broken"


@pytest.mark.usefixtures("model")
def test_verify_refuses_what_is_no_result() -> None:
    done = CliRunner().invoke(app, ["verify", "elsewhere"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: elsewhere: not a result; give a folder")


def test_report_writes_a_page_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "finished")
    write_state(tmp_path / "disk", "running", until=5)
    for arguments, page, runs in (
        ([], "results/report.html", "1 run"),
        (["results", "--state", "disk/results/state", "--output", "a.html"], "a.html", "2 runs"),
    ):
        done = CliRunner().invoke(app, ["report", *arguments])
        assert (done.exit_code, done.stdout) == (0, f"{page}\n")
        assert f"<title>moray: {runs}</title>" in Path(page).read_text()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"step": 1', b"\xff\n", b"[" * 100_000])
def test_report_names_damaged_files_and_shows_the_rest(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "sound")
    folder = write_run(tmp_path, "other")
    (folder / "benchmarks.json").write_text("{}")
    files = ["eval.json", "benchmarks.json", "generation.json", "model/lineage.json"]
    files += ["model/manifest.json", "history.jsonl", "samples.jsonl"]
    # Without a train.json, a run isn't finished.
    for names in (["train.json"], files):
        whole = {name: (folder / name).read_bytes() for name in names}
        for name in names:
            # A line that isn't whole is one that is being written.
            (folder / name).write_bytes(content + b"\n" * name.endswith("l"))
        done = CliRunner().invoke(app, ["report"])
        assert (done.exit_code, done.stdout) == (0, "results/report.html\n"), done.exception
        lines = done.stderr.splitlines()
        for name in names:
            named = [line for line in lines if f"not shown: results/runs/other/{name}" in line]
            # An empty mapping is what some files may be.
            may_be_empty = name in ("generation.json", "model/manifest.json")
            assert len(named) == (content != b"{}" or not may_be_empty), (name, lines)
            (folder / name).write_bytes(whole[name])
        assert "1.500" in Path("results/report.html").read_text()


def test_report_has_the_title_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "a")
    Path("config").mkdir()
    # Nothing else of the config is read.
    Path("config/config.yaml").write_text("report: {title: Of all}\nruns: {a: {model: no}}\n")
    Path("one.yaml").write_text("report: {title: Of one, author: A. B.}\n")
    for arguments, heading in (([], "<h1>Of all</h1>"), (["--configfile", "one.yaml"], "Of one</")):
        done = CliRunner().invoke(app, ["report", *arguments])
        assert done.exit_code == 0, done.output
        assert heading in Path("results/report.html").read_text()
    Path("one.yaml").write_text("report: {titel: Of one}\n")
    done = CliRunner().invoke(app, ["report", "--configfile", "one.yaml"])
    assert "error: report.titel: unknown key; did you mean title?" in done.stderr


def test_report_refuses_what_is_no_folder() -> None:
    done = CliRunner().invoke(app, ["report", "elsewhere"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: elsewhere: folder not found; give the folder")
