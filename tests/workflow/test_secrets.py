"""What the environment holds for the libraries stays there."""

import pytest
from project import SECRETS, Project


@pytest.mark.long
def test_secrets_of_the_environment_are_in_no_file_of_the_project(finished: Project) -> None:
    files = [path for path in finished.folder.rglob("*") if path.is_file()]
    looked_into = {path.relative_to(finished.folder).parts[0] for path in files}
    assert {".snakemake", "logs", "results"} <= looked_into
    found = [
        (str(path), name)
        for path in files
        for content in [path.read_bytes()]
        for name, value in SECRETS.items()
        if value.encode() in content
    ]
    assert found == []
