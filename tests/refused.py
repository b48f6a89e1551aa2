"""Rows that are refused."""

from typing import Any

import pytest

from moray.corpus.dataset import RowError
from moray.tasks.language.formats import Shape, document


def refusal(row: Any, shape: Shape) -> RowError:
    """What is said to be wrong with a row."""
    with pytest.raises(RowError) as caught:
        pytest.fail(f"{row} makes {document(row, shape)}")
    assert caught.value.remedy
    return caught.value
