"""A workflow whose runs keep their state in an object store."""

from pathlib import Path

import pytest
from object_store import CREDENTIALS, object_store
from project import SECRETS, Project

from moray.storage.objects import open_objects

pytestmark = pytest.mark.release


def test_a_workflow_with_its_state_in_an_object_store_ends_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project.create(tmp_path / "project")
    with object_store() as bucket:
        # Any other would be as good to this server.
        monkeypatch.setitem(SECRETS, "AWS_SECRET_ACCESS_KEY", CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
        project.configure(["defaults", "ray", "storage_path"], f"{bucket}/state")
        project.configure(["runs"], {"only": {"model": "tiny", "dataset": "functions"}})
        project.configure(["defaults", "train", "launcher"], "torchrun")
        done = project.snakemake("finetune", "--cores", "2")
        assert done.returncode == 0, done.stderr
        assert (project.folder / "results/runs/only/model/model.safetensors").is_file()
        assert not (project.folder / "results/state").exists()
        assert open_objects(f"{bucket}/state/only").list_objects("")
        # What it stores is of no account to Snakemake.
        assert project.planned("finetune") == set()

        project.configure(["defaults", "ray", "storage_path"], "s3://no-such-bucket/state")
        project.configure(["defaults", "train", "learning_rate"], 0.5)
        refused = project.snakemake("finetune", "--cores", "2")
    assert refused.returncode == 1
    assert "ray.storage_path: can't write to s3://no-such-bucket/state (" in refused.stderr
    assert "Traceback" not in refused.stderr
