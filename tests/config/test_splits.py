"""Files and folders that are named after splits."""

from pathlib import Path

import pytest

from moray.config.splits import folders_by_split


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["train/a", "val/a", "test/a"], {"train": "train", "validation": "val", "test": "test"}),
        (["Training/a", "Testing/a"], {"train": "Training", "test": "Testing"}),
        (["training_set/a", "test_set/a"], {"train": "training_set", "test": "test_set"}),
        (["train/a", "train_old/a", "b"], {"train": "train"}),
        (["train/a", "val_backup/a", "zz-test/a", "b"], {"train": "train"}),
        (["train_station/day", "bus_station/day", "airport/day"], {"train": "."}),
        # A class is one, if nothing else is called as a split.
        (["train", "bus", "car"], {"train": "."}),
        (["cat", "dog"], {"train": "."}),
        (["train", "test"], {"train": "train", "test": "test"}),
        (["train/a", "test_tubes", "b"], {"train": "train"}),
    ],
)
def test_folders_of_images_are_splits_by_their_names(
    tmp_path: Path, folders: list[str], expected: dict[str, str]
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    found = folders_by_split(str(tmp_path))
    assert {split: str(one.relative_to(tmp_path)) for split, one in found.items()} == expected
