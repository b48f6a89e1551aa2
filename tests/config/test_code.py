import os
from pathlib import Path

import pytest

from moray.config.code import code_digest, code_of

ROOT = Path(__file__).parents[2]

# A package with each way to import that matters.
PACKAGE = {
    "moray/__init__.py": "",
    "moray/errors.py": "class UserError(Exception): ...",
    "moray/console.py": "",
    "moray/config/__init__.py": "",
    "moray/config/schema.py": "",
    "moray/corpus/__init__.py": "from moray.corpus.rows import read",
    "moray/corpus/rows.py": "import moray.ground\ndef read(): ...",
    "moray/tokens/__init__.py": "",
    "moray/tokens/pack.py": "from moray import ground as floor",
    "moray/tokens/order.py": "from moray.tokens import pack",
    "moray/train/__init__.py": "",
    "moray/train/loop.py": "import os\ndef train():\n    from moray.tokens.order import Order",
    "moray/train/circle.py": "from moray.train.loop import train\nimport moray.train.spiral",
    "moray/train/spiral.py": "import moray.train.circle",
    "moray/ground.py": "import numpy as np\nfrom moray.errors import UserError",
}

GROUND = ["moray/__init__.py", "moray/ground.py"]
TOKENS = ["moray/tokens/__init__.py", "moray/tokens/pack.py"]
ORDER = [*GROUND, "moray/tokens/__init__.py", "moray/tokens/order.py", "moray/tokens/pack.py"]
WORKER = [*ORDER, "moray/train/__init__.py", "moray/train/loop.py"]


def write(folder: Path, script: str) -> Path:
    for name, text in (PACKAGE | {"script.py": script}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "script.py"


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        ("import json, torch", []),
        ("import morays.ground", []),
        ("import moray.ground", GROUND),
        ("import moray.ground as floor", GROUND),
        ("from moray import ground", GROUND),
        ("from moray.ground import thing", GROUND),
        ("from moray.tokens.pack import pack", [*GROUND, *TOKENS]),
        ("from moray.tokens import pack", [*GROUND, *TOKENS]),
        # What a package's __init__ imports is imported too.
        (
            "from moray.corpus import read",
            ["moray/__init__.py", "moray/corpus/__init__.py", "moray/corpus/rows.py", GROUND[1]],
        ),
        ("from moray.tokens.order import Order", ORDER),
        # Imports inside a function or a block count.
        ("from moray.train.loop import train", WORKER),
        ("with open('log'):\n    from moray.train.loop import train", WORKER),
        (
            "import moray.train.circle",
            [*WORKER, "moray/train/circle.py", "moray/train/spiral.py"],
        ),
        # These can't change a result.
        ("from moray.config.schema import Train", []),
        ("from moray import config", ["moray/__init__.py"]),
        ("import moray.errors, moray.console", []),
    ],
)
def test_a_stage_depends_on_the_modules_that_it_imports_directly_or_not(
    script: str, modules: list[str], tmp_path: Path
) -> None:
    found = code_of(write(tmp_path, script), tmp_path)
    assert found == sorted(tmp_path / name for name in [*modules, "script.py"])


def test_moving_the_project_changes_no_digest(tmp_path: Path) -> None:
    folders = [tmp_path / "here", tmp_path / "there/below"]
    scripts = [write(folder, "import moray.train.circle") for folder in folders]
    digests = map(code_digest, scripts, folders)
    assert len(set(digests)) == 1


def test_content_makes_the_digest_and_time_does_not(tmp_path: Path) -> None:
    script = write(tmp_path, "import moray.train.circle")
    before = code_digest(script, tmp_path)
    module = tmp_path / "moray/ground.py"
    os.utime(module, (0, 0))
    assert code_digest(script, tmp_path) == before
    module.write_text(PACKAGE["moray/ground.py"] + "\n# changed")
    os.utime(module, (0, 0))
    assert code_digest(script, tmp_path) != before


# For each script: some of what it depends on, and where nothing of that may lie.
SCRIPTS = {
    "base_model": (["model/scratch.py"], ["train", "evaluate"]),
    "download": (
        ["corpus/split.py", "corpus/readers.py", "corpus/sources/url.py"],
        ["tokens", "model", "train", "evaluate"],
    ),
    "evaluate": (["evaluate/likelihood.py", "tokens/batch.py", "model/loss.py"], ["train"]),
    "export": (
        ["train/checkpoints/trained_model.py", "train/engine/strategies/ddp.py"],
        ["evaluate"],
    ),
    "finetune": (
        ["train/loop.py", "train/driver.py", "tokens/order.py", "model/loss.py"],
        ["evaluate"],
    ),
    "generate": (["evaluate/generation.py", "tokens/encode.py"], ["train"]),
    "tokenize": (["tokens/packing.py", "corpus/dataset.py"], ["model", "train", "evaluate"]),
}


def test_each_script_of_the_workflow_is_held_against_what_it_depends_on() -> None:
    scripts = {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")}
    assert set(SCRIPTS) <= scripts


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_depends_on_the_code_of_its_stage_and_on_no_other(
    script: str,
) -> None:
    files = code_of(ROOT / f"workflow/scripts/{script}.py", ROOT / "src")
    found = [path.relative_to(ROOT).as_posix() for path in files]
    needed, foreign = SCRIPTS[script]
    stage = [f"workflow/scripts/{script}.py", f"src/moray/stages/{script}.py"]
    assert {*stage, *(f"src/moray/{name}" for name in needed)} <= set(found)
    rooms = {Path(path).relative_to("src/moray").parts[0] for path in found if "src" in path}
    assert rooms.isdisjoint([*foreign, "config", "errors.py", "console.py"])
    others = {path.stem for path in (ROOT / "workflow/scripts").glob("*.py")} - {script}
    assert not {f"src/moray/stages/{other}.py" for other in others} & set(found)
