"""The overlays for data of one's own, run on data of the shapes that they are for."""

import json
import shutil
from pathlib import Path

import pytest
from project import ROOT, Project

ANSWERED = [
    {
        "from": "human",
        "value": "What is the weather in {place}?",
    },
    {"from": "function_call", "value": '{{"name": "weather", "arguments": {{"at": "{place}"}}}}'},
    {"from": "observation", "value": '{{"sky": "blue"}}'},
    {"from": "gpt", "value": "In {place} the sky is blue."},
]

pytestmark = pytest.mark.release

# So many that some are in the test split, which is previewed.
PLACES = [f"place {number}" for number in range(200)]


@pytest.fixture
def project(fresh: Project, model_folder: Path) -> Project:
    """With a model folder and files at the paths that the overlays name."""
    shutil.copytree(model_folder, fresh.folder / "data/model")
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    conversations = [
        {
            "conversations": [
                {"from": said["from"], "value": said["value"].format(place=place)}
                for said in ANSWERED
            ],
            "tools": json.dumps([{"name": "weather", "parameters": {}}]),
        }
        for place in PLACES
    ]
    # All alike, because few of them are previewed.
    instructions = [
        {"instruction": f"Name {place}", "input": "in full", "output": place} for place in PLACES
    ]
    for name, rows in (("conversations", conversations), ("instructions", instructions)):
        (fresh.folder / f"data/{name}.json").write_text(json.dumps(rows))
    return fresh


@pytest.mark.parametrize(
    ("overlay", "marked"),
    [
        (
            "chat",
            [
                'Tools: [{"type": "function", "function": {"name": "weather", "parameters": {}}}]\n'
                "User:\nWhat is the weather in place ",
                'Assistant:\n⟦[{"name": "weather", "arguments": {"at": "place ',
                '"}}]<|endoftext|>⟧\nTool:\n{"sky": "blue"}\nAssistant:\n⟦In place ',
                " the sky is blue.<|endoftext|>⟧\n",
            ],
        ),
        (
            "instruction",
            [
                "### Instruction:\nName place ",
                "\n\nin full\n\n### Response:\n⟦place ",
                "<|endoftext|>⟧\n",
            ],
        ),
    ],
)
def test_a_preview_shows_that_only_what_the_assistant_says_is_trained(
    overlay: str, marked: list[str], project: Project
) -> None:
    done = project.snakemake("preview", "--configfile", f"config/{overlay}.yaml")
    assert done.returncode == 0, done.stderr
    for text in marked:
        assert text in done.stdout
    # Shown again, though nothing is made again.
    again = project.snakemake("preview", "--configfile", f"config/{overlay}.yaml")
    assert again.stdout == done.stdout
    assert "tokenize" not in again.stderr
