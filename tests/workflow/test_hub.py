"""`config/gpt2-rust.yaml` end to end, against a hub of the tests."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import yaml
from hub_server import Hub, hub_server
from project import ROOT, Project
from rust_hub import CODEGEN_COMMIT, TOKEN, rust_hub

pytestmark = pytest.mark.long

# What two cores without a GPU lack.
HERE = {
    "ray": {"use_gpu": False, "resources_per_worker": {"CPU": 1}},
    "evaluate": {"bootstrap_samples": 20},
    "generate": {"num_samples": 2, "max_new_tokens": 8, "prompt_tokens": 8},
}
CODEGEN = {
    "models": {
        "codegen": {
            "source": "hub",
            "repo_id": "Salesforce/codegen-350M-mono",
            "revision": CODEGEN_COMMIT,
        }
    },
    "runs": {
        "gpt2-rust": {
            "model": "codegen",
            # Quicker than Ray, with which the other one is started.
            "train": {"launcher": "torchrun"},
            "push": {"repo": "user/rust"},
        }
    },
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with hub_server(rust_hub(tmp_path_factory.mktemp("hub"))) as serving:
        yield serving


@pytest.fixture
def project(fresh: Project) -> Project:
    """With the project's own config, and overlays for this machine and for CodeGen."""
    shutil.copy(ROOT / "config/config.yaml", fresh.config)
    for name, overlay in (("here", {"runs": {"gpt2-rust": HERE}}), ("codegen", CODEGEN)):
        (fresh.folder / f"config/{name}.yaml").write_text(yaml.safe_dump(overlay))
    return fresh


def run(project: Project, hub: Hub, token: str | None, *arguments: str) -> tuple[int, str]:
    """Run Snakemake with a token; it must not be in the arguments of any process meanwhile."""
    environment = project.environment() | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(project.folder / "hub-cache"),
        # The server knows LFS alone.
        "HF_HUB_DISABLE_XET": "1",
    }
    del environment["HF_TOKEN"]
    if token:
        environment["HF_TOKEN"] = token
    command = ["snakemake", "--cores", "2", *arguments]
    output = project.folder / "output.txt"
    with (
        output.open("w") as said,
        subprocess.Popen(
            command, cwd=project.folder, env=environment, stdout=said, stderr=subprocess.STDOUT
        ) as running,
    ):
        while running.poll() is None:
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    assert not any(TOKEN in argument for argument in process.cmdline())
            with suppress(subprocess.TimeoutExpired):
                running.wait(1)
    return running.returncode, output.read_text()


@pytest.mark.release
@pytest.mark.parametrize("overlay", ["here", "codegen"])
def test_the_overlay_runs_end_to_end_and_its_token_stays_secret(
    overlay: str, project: Project, hub: Hub
) -> None:
    hub.cut = {"model.safetensors": 5000, "data/rust/data.json": 5000}
    files = ["config/gpt2-rust.yaml", "config/here.yaml", f"config/{overlay}.yaml"]
    targets = ["eval", "generate", "push"]
    status, said = run(project, hub, TOKEN, *targets, "--configfile", *files)
    assert status == 0, said
    assert hub.cut == {}, "both downloads were cut once"
    results = project.folder / "results"
    splits = json.loads((results / "datasets/rust/dataset.json").read_text())["splits"]
    assert sum(split["rows"] for split in splits.values()) == 100
    model_type = {"here": "gpt2", "codegen": "codegen"}[overlay]
    config = json.loads((results / "runs/gpt2-rust/model/config.json").read_text())
    assert config["model_type"] == model_type
    assert json.loads((results / "runs/gpt2-rust/train.json").read_text())["steps"] >= 3
    scores = json.loads((results / "runs/gpt2-rust/eval.json").read_text())
    assert scores["tuned"]["loss"]["value"] != scores["base"]["loss"]["value"]
    pushed = hub.repositories.get(("models", "user/rust"))
    assert (pushed is not None) == (overlay == "codegen")
    if pushed:
        receipt = json.loads((results / "runs/gpt2-rust/pushed.json").read_text())
        assert receipt["commit"] == pushed.commit
        assert b"model-index" in pushed.files["README.md"]
    files_with_token = [
        path
        for path in project.folder.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    assert files_with_token == []


@pytest.mark.parametrize(
    ("token", "line"),
    [
        (
            "hf_wrong",
            "error: datasets.rust: the Hub doesn't accept the token; run `hf auth login`, or set "
            "HF_TOKEN to a valid one",
        ),
        (
            "hf_stranger",
            "error: datasets.rust: bigcode/the-stack-smol is gated, and the token's account has no "
            "access to it; accept its terms on its page of the Hub",
        ),
        (
            None,
            "error: datasets.rust: bigcode/the-stack-smol is gated, and there is no token; accept "
            "its terms on its page of the Hub; then run `hf auth login`, or set HF_TOKEN",
        ),
    ],
)
def test_a_token_that_does_not_open_the_dataset_costs_one_line(
    token: str | None, line: str, project: Project, hub: Hub
) -> None:
    hub.tokens["hf_stranger"] = "nothing"
    target = "results/datasets/rust/dataset.json"
    status, said = run(project, hub, token, target, "--configfile", "config/gpt2-rust.yaml")
    assert status == 1
    assert [each for each in said.splitlines() if "error: " in each] == [line]
    assert not (project.folder / target).exists()


def test_without_a_token_nothing_is_started_for_an_upload(fresh: Project, hub: Hub) -> None:
    fresh.configure(["runs", "tuned", "push"], {"repo": "user/tuned"})
    status, said = run(fresh, hub, None, "push")
    assert status == 1
    line = "runs.tuned.push: pushing to the Hub needs a token; run `hf auth login`"
    assert line in said
    assert not (fresh.folder / "results/datasets").exists()
    assert "push tuned" in fresh.planned("push")
    fresh.configure(["runs", "tuned", "push"], None)
    assert fresh.planned("push") == set()
