"""The tutorial of the documentation, command by command."""

import re
import shutil
from itertools import pairwise

import pytest
import yaml
from project import ROOT, Project

BLOCKS = (ROOT / "docs/tutorial.md").read_text().split("```")[1::2]
# By its first command, what a console block prints: the next block, if that is in no language and
# nothing that is typed.
PRINTED = {
    block.splitlines()[1].removeprefix("$ "): after
    for block, after in pairwise(BLOCKS)
    if block.startswith("console") and after.startswith("\n") and not after.startswith("\n> ")
}
GENERATE, MORE, SWEEP = (
    yaml.safe_load(block.removeprefix("yaml")) for block in BLOCKS if block.startswith("yaml")
)


def shape(line: str) -> str:
    """A line without its numbers and digests."""
    return re.sub(r"-[0-9a-f]{8}\b|[-+]?\d[\d,.]*", "N", line).replace(" ", "")


def test_the_page_shows_what_its_first_two_commands_print() -> None:
    assert PRINTED.keys() == {"make finetune", "snakemake eval"}


@pytest.mark.release
def test_the_commands_do_what_the_page_says(fresh: Project) -> None:
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    for command, text in PRINTED.items():
        done = fresh.snakemake("--cores", "all", command.split()[1])
        assert done.returncode == 0, done.stderr
        printed = [shape(line) for line in (done.stdout + done.stderr).splitlines()]
        places = [
            printed.index(shape(line)) for line in text.split("\n") if line not in ("", "...")
        ]
        # Evaluations don't need each other, so either may be the first.
        assert places == sorted(places) or command == "snakemake eval", done.stderr
    done = fresh.snakemake("--cores", "all", "generate", "report")
    assert done.returncode == 0, done.stderr
    fresh.configure(["defaults", "generate"], GENERATE["defaults"]["generate"])
    assert fresh.planned("generate") == {"generate base", "generate tuned"}
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    fresh.configure(["runs", "tuned", "train", "learning_rate"], 1e-3)
    assert fresh.planned("finetune") == {"finetune tuned", "export tuned"}
    overlay = fresh.folder / "more.yaml"
    overlay.write_text(yaml.safe_dump(MORE))
    planned = fresh.planned("finetune", "--configfile", str(overlay))
    assert {"finetune more", "export more"} <= planned
    overlay = fresh.folder / "sweep.yaml"
    overlay.write_text(yaml.safe_dump(SWEEP))
    trained = {
        job for job in fresh.planned("report", "--configfile", str(overlay)) if "finetune" in job
    }
    assert len(trained) == 6
