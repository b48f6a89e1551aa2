from pathlib import Path

import pytest
from small_model import MODEL, write_small


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `small`, with matrices that are large enough for 8 bits, on each of two workers too."""
    folder = tmp_path_factory.mktemp("wide")
    write_small(folder, MODEL | {"hidden_size": 96, "intermediate_size": 200})
    return folder
