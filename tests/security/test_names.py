"""Archives, and names with a way out in them: nothing is written outside of the folder."""

import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import s3fs
from object_store import object_store
from web_server import Files, web_server

from moray.errors import UserError
from moray.stages.download import download
from moray.tasks.language.sources.url import fetch

Listing = Callable[[], set[str]]
ROWS = "".join(f'{{"text": "text {number}"}}\n' for number in range(40)).encode()


def members(tmp_path: Path) -> dict[str, str | None]:
    """Names that lead out of a folder, and what they link to where they are links."""
    return {
        "rows.jsonl": None,
        "../../escaped.jsonl": None,
        f"{tmp_path}/absolute.jsonl": None,
        "link": str(tmp_path),
        "link/through.jsonl": None,
        "hard": "../../../hard.jsonl",
    }


def write_tar(file: Path, compression: str = "") -> None:
    with tarfile.open(file, f"w:{compression}") as archive:  # type: ignore[call-overload]
        for name, target in members(file.parent).items():
            member = tarfile.TarInfo(name)
            if target is None:
                member.size = len(ROWS)
            else:
                member.type = tarfile.LNKTYPE if name == "hard" else tarfile.SYMTYPE
                member.linkname = target
            archive.addfile(member, io.BytesIO(ROWS))


def write_zip(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, target in members(file.parent).items():
            member = zipfile.ZipInfo(name)
            # As Unix marks a link.
            member.external_attr = 0 if target is None else 0o120777 << 16
            archive.writestr(member, ROWS if target is None else target)


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "data.tar": write_tar,
    "data.tar.gz": partial(write_tar, compression="gz"),
    "data.tgz": partial(write_tar, compression="gz"),
    "data.zip": write_zip,
    # Under the endings of what is read.
    "tar.jsonl": write_tar,
    "tar.jsonl.gz": partial(write_tar, compression="gz"),
    "tar.parquet": write_tar,
    "zip.jsonl": write_zip,
    "zip.csv": write_zip,
}


def refusal(output: Path, cfg: dict[str, Any]) -> str:
    try:
        download(output, cfg, {"train": [cfg["path"]]} if "path" in cfg else None)
    except UserError as error:
        line = str(error)
    else:
        pytest.fail(f"{cfg} is read")
    assert "\n" not in line
    return line


def test_an_archive_is_refused_and_not_unpacked(
    tmp_path: Path, output: Path, elsewhere: Listing
) -> None:
    for name, write in ARCHIVES.items():
        file = tmp_path / name
        write(file)
        before = elsewhere()
        assert refusal(output, {"source": "files", "path": str(file)}).startswith(str(file))
        assert elsewhere() == before, name


def test_an_archive_of_a_web_server_is_refused_and_not_unpacked(
    tmp_path: Path, output: Path, elsewhere: Listing
) -> None:
    for name, write in ARCHIVES.items():
        write(tmp_path / name)
    before = elsewhere()
    with web_server(partial(Files, directory=tmp_path)) as address:
        for name in ARCHIVES:
            url = f"{address}/{name}"
            assert refusal(output, {"source": "url", "url": url}).startswith(url)
            assert elsewhere() == before, name


NAMES = [
    "..",
    "../../escaped.jsonl",
    "a/../../escaped.jsonl",
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fescaped.jsonl",
    "..%2f..%2fescaped.jsonl",
    "..\\..\\escaped.jsonl",
    "%2Fetc%2Fescaped.jsonl",
    "/etc/escaped.jsonl",
    "rows.jsonl?/../../escaped.jsonl",
    "rows.jsonl#/../../escaped.jsonl",
    "escaped%00.jsonl",
    "a" * 300 + ".jsonl",
]


def test_a_url_s_name_leads_nowhere(web: str, output: Path, elsewhere: Listing) -> None:
    before = elsewhere()
    for name in NAMES:
        try:
            fetched = [*fetch([f"{web}/{name}"], output).values()]
        except UserError:
            fetched = []
        assert [path for path in output.rglob("*") if path.is_file()] == fetched, name
        assert elsewhere() == before, name
        shutil.rmtree(output)
        output.mkdir()


def test_names_of_an_object_store_lead_nowhere(output: Path, elsewhere: Listing) -> None:
    """There, any text is a name."""
    with object_store() as bucket:
        keys = ["in/../../../../../../escaped.jsonl", "in//absolute.jsonl", "in/rows.jsonl"]
        name = bucket.removeprefix("s3://")
        for key in keys:
            s3fs.S3FileSystem().call_s3("put_object", Bucket=name, Key=key, Body=ROWS)
        before = elsewhere()
        for url in (f"{bucket}/**", *(f"{bucket}/{key}" for key in keys)):
            folder = output / str(len(list(output.iterdir())))
            folder.mkdir()
            fetched = fetch([url], folder)
            assert fetched
            assert all(path.is_relative_to(folder.resolve()) for path in fetched.values())
            assert all(path.resolve().is_file() for path in fetched.values())
    assert elsewhere() == before


def test_names_inside_an_archive_lead_nowhere(
    tmp_path: Path, output: Path, elsewhere: Listing
) -> None:
    """fsspec reads members of archives, where a user asks for that."""
    write_zip(tmp_path / "data.zip")
    before = elsewhere()
    for number, member in enumerate(["*.jsonl", "**", "../../escaped.jsonl", "link/through.jsonl"]):
        folder = output / str(number) / "deep"
        try:
            fetched = fetch([f"zip://{member}::file://{tmp_path}/data.zip"], folder)
        except UserError:
            fetched = {}
        assert member == "**" or fetched
        assert all(path.resolve().is_relative_to(folder) for path in fetched.values())
        assert all(path.is_relative_to(folder) for path in folder.parent.rglob("*.jsonl"))
    assert elsewhere() == before
