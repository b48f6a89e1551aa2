"""Room on the disk."""

import errno
import shutil
from pathlib import Path

import pytest

from moray.errors import UserError
from moray.provenance.space import check_space, explain_full_disk


def test_more_than_the_disk_has_free_is_refused_before_it_is_written(tmp_path: Path) -> None:
    absurd = 10 * shutil.disk_usage(tmp_path).total
    with pytest.raises(UserError) as caught:
        check_space(tmp_path, absurd)
    assert str(caught.value).startswith(f"{tmp_path}: its disk has ")
    assert f" bytes free, expected {absurd:,}; free some space" in str(caught.value)


@pytest.mark.parametrize("needed", [0, 1, 4096])
def test_what_fits_passes(tmp_path: Path, needed: int) -> None:
    check_space(tmp_path, needed)


def test_a_full_disk_is_one_line_with_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/file").write_bytes(bytes(2345))
    # The kernel's own device for it: every write says that no space is left.
    with pytest.raises(UserError) as caught, explain_full_disk(tmp_path):
        Path("/dev/full").write_bytes(b"x")
    assert str(caught.value) == (
        f"{tmp_path}: the disk is full after writing 2,345 bytes; "
        "free some space and run the same command again"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_quota_is_reported_as_a_full_disk_is(tmp_path: Path, number: int) -> None:
    with pytest.raises(UserError, match="the disk is full"), explain_full_disk(tmp_path):
        raise OSError(number, "")


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, ""), OSError("no number"), ValueError("no disk")]
)
def test_other_errors_pass_as_they_are(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explain_full_disk(tmp_path):
        raise error
    assert caught.value is error
