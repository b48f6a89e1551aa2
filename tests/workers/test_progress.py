from pathlib import Path

import pytest

from moray.workers.progress import BatchCounter, shown_batches


def test_the_batches_of_all_workers_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int, int]] = []

    def progress(items: object, label: str, unit: str, total: int) -> object:
        for item in items:  # type: ignore[attr-defined]
            shown.append((label, item, total))
            yield item

    monkeypatch.setattr("moray.workers.progress.progress", progress)
    with shown_batches(tmp_path, "evaluate tuned", 3):
        for rank in (0, 1, 0):
            BatchCounter(tmp_path, rank).add()
        while len(shown) < 3:
            pass
    assert shown == [("evaluate tuned", number, 3) for number in (1, 2, 3)]
