"""The choice among runs of a sweep: three folders as training and export leave them."""

import json
import math
from pathlib import Path

import pytest

from moray.errors import UserError
from moray.model.folder import base_reference, whole_model_and_adapters
from moray.provenance.lineage import verify
from moray.provenance.manifest import damaged_files, write_manifest
from moray.stages.choose import choose

BASE, OUTPUT = Path("results/models/base"), Path("results/best/tuned/model")
CHOICE = Path("results/best/tuned/choice.json")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    BASE.mkdir(parents=True)
    write_manifest(BASE)


def trained(name: str, losses: dict[int, float], exported: int, adapter: bool = False) -> Path:
    """The folder of a run with these validation losses, by step, that exported a step."""
    folder = Path("results/runs", name)
    (folder / "model/inner").mkdir(parents=True)
    (folder / "model/inner/weights").write_text(f"weights of {name}")
    write_manifest(
        folder / "model",
        run=name,
        **({"base": base_reference(folder / "model", BASE)} if adapter else {}),
    )
    lines = [{"step": step, "eval_loss": loss} for step, loss in losses.items()]
    lines.insert(1, {"step": 1, "loss": 0.0})
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "train.json").write_text(json.dumps({"exported_step": exported}))
    return folder


def chosen(*runs: Path) -> str:
    cfg = {"sweep": "tuned", "runs": [run.name for run in runs]}
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    choose(list(runs), OUTPUT, CHOICE, cfg)
    best: str = json.loads(CHOICE.read_text())["best"]
    return best


def test_the_lowest_loss_of_an_exported_step_wins_and_its_model_is_copied() -> None:
    runs = [
        # Its lowest loss isn't that of its model, nor is its last one.
        trained("tuned-seed=0", {2: 1.0, 4: 3.0, 6: 0.5}, exported=4),
        trained("tuned-seed=1", {2: 4.0, 4: 2.0}, exported=4),
        trained("tuned-seed=2", {2: 2.5, 4: 2.5}, exported=4),
    ]
    assert chosen(*runs) == "tuned-seed=1"
    assert damaged_files(OUTPUT) == []
    for name in ("manifest.json", "inner/weights"):
        assert (OUTPUT / name).read_bytes() == (runs[1] / "model" / name).read_bytes()
    choice = json.loads(CHOICE.read_text())
    assert choice["validation_loss"] == {
        "tuned-seed=0": 3.0,
        "tuned-seed=1": 2.0,
        "tuned-seed=2": 2.5,
    }


def test_of_equal_runs_the_first_by_name_wins_and_one_without_a_number_never() -> None:
    losses = {"c": 1.0, "b": 1.0, "a": math.nan}
    assert chosen(*(trained(name, {2: loss}, 2) for name, loss in losses.items())) == "b"


def test_the_copy_of_an_adapter_finds_its_base() -> None:
    runs = [trained(name, {2: 1.0}, 2, adapter=True) for name in ("a", "b")]
    assert chosen(*runs) == "a"
    whole, adapters = whole_model_and_adapters(OUTPUT)
    assert (whole, adapters) == (BASE.absolute(), [OUTPUT])


def test_a_run_without_validation_rows_costs_one_line() -> None:
    with pytest.raises(UserError, match=r"^runs\.b: has no validation loss, because no row is in"):
        chosen(trained("a", {2: 1.0}, 2), trained("b", {}, 2))


def test_a_damaged_model_is_not_passed_on() -> None:
    run = trained("a", {2: 1.0}, 2)
    (run / "model/inner/weights").write_text("weights of A")
    with pytest.raises(UserError, match="inner/weights: doesn't match its SHA-256 in "):
        chosen(run)
    assert not OUTPUT.exists()


@pytest.mark.parametrize(
    "file",
    [
        "results/best/tuned/model/inner/weights",
        "results/runs/a/model/inner/weights",
        "results/runs/a/history.jsonl",
        "results/runs/b/train.json",
    ],
)
def test_verification_goes_through_the_choice_to_all_runs(file: str) -> None:
    chosen(trained("a", {2: 1.0}, 2), trained("b", {2: 2.0}, 2))
    assert verify([OUTPUT]).broken == []
    content = bytearray(Path(file).read_bytes())
    content[-3] ^= 1
    Path(file).write_bytes(content)
    (line,) = verify([OUTPUT]).broken
    assert line.startswith(f"{file}: ")
