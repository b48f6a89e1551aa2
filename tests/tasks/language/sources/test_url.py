"""Files from web servers and object stores."""

import gzip
import hashlib
import json
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import s3fs
from object_store import CREDENTIALS, object_store
from web_server import Files, web_server

from moray.corpus.dataset import SPLITS, read_documents
from moray.errors import UserError
from moray.stages.download import download
from moray.tasks.language.sources.url import fetch

FILES = {"a.jsonl": b'{"text": "a"}\n', "more/a.jsonl": b"more a", "more/b.txt": b"b \xff"}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def web(served: Path) -> Iterator[str]:
    """The address of a web server."""
    with web_server(partial(Files, directory=str(served))) as url:
        yield url


def contents(fetched: dict[str, Path]) -> dict[str, bytes]:
    return {url: path.read_bytes() for url, path in fetched.items()}


def fault(*urls: str, folder: Path, sha256: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        fetch([*urls], folder, sha256)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_files_come_from_a_web_server_byte_by_byte(tmp_path: Path, web: str) -> None:
    fetched = fetch([f"{web}/{name}" for name in FILES], tmp_path / "here")
    assert contents(fetched) == {f"{web}/{name}": content for name, content in FILES.items()}
    # The ending says how a file is read.
    assert [path.name for path in fetched.values()] == ["a.jsonl", "a.jsonl", "b.txt"]


def test_what_follows_the_path_of_a_url_is_no_glob(tmp_path: Path, web: str) -> None:
    url = f"{web}/a.jsonl?version=1&name=*[x]"
    ((found, path),) = fetch([url], tmp_path / "here").items()
    assert found.startswith(f"{web}/a.jsonl?")
    assert path.name == "a.jsonl"
    assert path.read_bytes() == FILES["a.jsonl"]


def test_secrets_in_a_url_are_in_no_name_and_no_fault(tmp_path: Path, web: str) -> None:
    secret = web.replace("//", "//user:password@")
    urls = [f"{secret}/a.jsonl?signature={word}" for word in ("first", "second")]
    fetched = fetch(urls, tmp_path / "here")
    assert len(fetched) == 2
    line = fault(f"{secret}/none.jsonl?signature=third", folder=tmp_path / "there")
    assert line.startswith(f"{web}/none.jsonl?")
    reported = f"{line} {list(fetched)}"
    assert not [
        word for word in ("user", "password", "first", "second", "third") if word in reported
    ]


@pytest.mark.parametrize(
    ("query", "whole"), [("", True), ("?signature=secret", False)], ids=["plain", "signed"]
)
def test_a_trace_in_a_log_has_no_signature(
    tmp_path: Path, web: str, query: str, whole: bool
) -> None:
    """The cause of a fault has the whole URL."""
    with pytest.raises(UserError) as caught:
        fetch([f"{web}/none.jsonl{query}"], tmp_path)
    assert (caught.value.__cause__ is not None) is whole
    assert caught.value.__suppress_context__
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_file_named_twice_is_fetched_once(tmp_path: Path, web: str, served: Path) -> None:
    urls = [f"{web}/a.jsonl", f"{web}/a.jsonl", f"{web}/more/b.txt"]
    assert list(fetch(urls, tmp_path / "web")) == [urls[0], urls[2]]
    urls = [f"file://{served}/more/*", f"file://{served}/more/a.jsonl", f"file://{served}/a.jsonl"]
    names = ["more/a.jsonl", "more/b.txt", "a.jsonl"]
    assert list(fetch(urls, tmp_path / "local")) == [f"file://{served}/{name}" for name in names]


def test_files_that_are_there_are_not_fetched_again(tmp_path: Path, web: str) -> None:
    """Those that a killed process left, of which one was cut."""
    urls = [f"{web}/a.jsonl", f"{web}/more/a.jsonl"]
    whole = fetch(urls, tmp_path / "out")
    first, second = whole.values()
    first.write_bytes(b"from before")
    second.with_name(f"{second.name}.part").write_bytes(b"mo")
    second.unlink()
    assert fetch(urls, tmp_path / "out") == whole
    assert first.read_bytes() == b"from before"
    assert second.read_bytes() == FILES["more/a.jsonl"]


def test_files_that_a_glob_finds_are_not_mixed_if_named_after_splits(
    tmp_path: Path, served: Path
) -> None:
    for split in ("train", "test"):
        (served / f"{split}.jsonl").write_text('{"text": "a"}\n')
    assert fault(f"file://{served}/t*.jsonl", folder=tmp_path) == (
        f"file://{served}/t*.jsonl: file://{served}/t*.jsonl has files named after splits "
        f"(train.jsonl, test.jsonl), whose rows would be mixed; give url: {{train: "
        f"file://{served}/train.jsonl, test: file://{served}/test.jsonl}}, or list the files to "
        "mix them"
    )


def test_a_glob_names_its_files_in_order_and_no_folders(tmp_path: Path, served: Path) -> None:
    fetched = fetch([f"file://{served}/**"], tmp_path / "here")
    assert contents(fetched) == {f"file://{served}/{name}": FILES[name] for name in sorted(FILES)}
    assert list(fetched) == sorted(fetched)
    assert list(fetch([f"file://{served}/*"], tmp_path / "there")) == [f"file://{served}/a.jsonl"]


def test_a_file_in_a_store_may_have_any_name(tmp_path: Path, served: Path) -> None:
    (served / "a#1 ?é.txt").write_text("a")
    (path,) = fetch([f"file://{served}/a#*.txt"], tmp_path / "here").values()
    assert (path.name, path.read_text()) == ("a#1 ?é.txt", "a")


def test_a_file_of_the_right_digest_is_taken(tmp_path: Path, web: str) -> None:
    digest = hashlib.sha256(FILES["a.jsonl"]).hexdigest()
    assert list(fetch([f"{web}/a.jsonl"], tmp_path, digest)) == [f"{web}/a.jsonl"]


def test_a_file_of_another_digest_is_reported_with_both(tmp_path: Path, web: str) -> None:
    found = hashlib.sha256(FILES["a.jsonl"]).hexdigest()
    assert fault(f"{web}/a.jsonl", folder=tmp_path, sha256="0" * 64) == (
        f"{web}/a.jsonl: got a file with sha256 {found}, expected {'0' * 64}; "
        "check the URL or sha256"
    )


def test_a_digest_is_of_one_file(tmp_path: Path, served: Path) -> None:
    url = f"file://{served}/more/*"
    assert fault(url, folder=tmp_path, sha256="0" * 64) == (
        f"{url}: got 2 files, expected a single one with sha256 {'0' * 64}; "
        "give the URL of one file"
    )


ADVICE = "check the URL, the network and your credentials"


def test_a_url_that_gives_no_file_costs_one_line(tmp_path: Path, web: str, served: Path) -> None:
    url = f"{web}/missing.jsonl"
    assert fault(f"{web}/a.jsonl", url, folder=tmp_path / "1") == (
        f"{url}: can't read the file ({url}); {ADVICE}"
    )
    url = f"file://{served}/missing.jsonl"
    assert fault(url, folder=tmp_path / "2") == (
        f"{url}: can't read the file "
        f"([Errno 2] No such file or directory: '{served}/missing.jsonl'); "
        f"{ADVICE}"
    )
    url = f"file://{served}/*.csv"
    assert fault(url, folder=tmp_path / "3") == f"{url}: the glob matches no files; check the URL"
    url = f"file://{served}/more"
    assert fault(url, folder=tmp_path / "4") == (
        f"{url}: got a folder, expected a file; list its files"
    )


@pytest.mark.parametrize("path", ["/", "/..", "/more/..", "", "/?version=1"])
def test_a_url_without_the_name_of_a_file_is_refused(tmp_path: Path, web: str, path: str) -> None:
    line = fault(web + path, folder=tmp_path / "here")
    assert line.startswith(web + path.partition("?")[0])
    assert line.endswith(": the URL has no file name; give the URL of a file")
    assert not list(tmp_path.glob("here/**/*"))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sftpp://host/a.jsonl", "Protocol not known: sftpp"),
        # fsspec knows it, and its package isn't among those of the project.
        ("gs://bucket/a.jsonl", "Please install gcsfs to access Google Storage"),
    ],
)
def test_a_url_of_no_known_kind_costs_one_line(tmp_path: Path, url: str, problem: str) -> None:
    line = f"{url}: can't open the URL ({problem}); check it"
    assert fault(url, folder=tmp_path) == line


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


def test_a_dataset_comes_out_of_an_object_store(tmp_path: Path, bucket: str) -> None:
    texts = [f"text {number} é" for number in range(100)]
    packed = {
        f"{bucket}/in/{name}.jsonl.gz": gzip.compress(
            "".join(json.dumps({"text": text}) + "\n" for text in half).encode()
        )
        for name, half in (("a", texts[:50]), ("b", texts[50:]))
    }
    store = s3fs.S3FileSystem()
    for name, content in packed.items():
        store.pipe_file(name, content)
    store.pipe_file(f"{bucket}/in/notes.md", b"no data")
    cfg = {"source": "url", "url": f"{bucket}/in/*.jsonl.gz", "test_share": 0.2}
    download(tmp_path / "out", cfg)
    splits = {
        split: [row["text"] for rows in read_documents(path) for row in rows]
        for split in SPLITS
        if (path := tmp_path / f"out/{split}.parquet")
    }
    assert sorted(text for found in splits.values() for text in found) == sorted(texts)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["source"] == "url"
    assert described["files"] == {
        name: hashlib.sha256(content).hexdigest() for name, content in packed.items()
    }
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    splits_written = (f"{split}.parquet" for split in SPLITS)
    assert written == sorted(["dataset.json", "proof.json", *splits_written])
    whole = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert not [value for value in CREDENTIALS.values() if value.encode() in whole]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("in/none.jsonl", "can't read the file ("),
        ("none/*.jsonl", "the glob matches no files; check the URL"),
    ],
)
def test_what_is_not_in_an_object_store_is_reported(
    tmp_path: Path, bucket: str, name: str, problem: str
) -> None:
    assert fault(f"{bucket}/{name}", folder=tmp_path).startswith(f"{bucket}/{name}: {problem}")


def test_missing_credentials_are_reported(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    # There may be some of the machine or of its user.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    url = f"{bucket}/a.jsonl"
    assert fault(url, folder=tmp_path) == (
        f"{url}: can't read the file (Unable to locate credentials); {ADVICE}"
    )
    s3fs.S3FileSystem.clear_instance_cache()
