"""Extras that tests of others use, which may have been deleted."""

import pytest

from moray.config import extras


def needs(*folders: str) -> pytest.MarkDecorator:
    """Skip a test, or a case of one, unless these extras are there."""
    missing = [folder for folder in folders if not extras.is_there(folder)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def present(table: dict[str, str]) -> list[str]:
    """The names in a table whose extras are there."""
    return [name for name, folder in table.items() if extras.is_there(folder)]
