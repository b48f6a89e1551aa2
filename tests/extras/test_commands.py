"""What the commands of extras have in common."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from moray.cli import app


@pytest.mark.parametrize("text", ["a: " + "[" * 2000 + "]" * 2000, "a: 2024-13-45", "a: \xff"])
def test_a_damaged_config_is_one_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    Path("config/config.yaml").write_text(text, encoding="latin-1")
    for arguments in (["import", "config/config.yaml"], ["plan", "tuned"]):
        done = CliRunner().invoke(app, arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: config/config.yaml")
