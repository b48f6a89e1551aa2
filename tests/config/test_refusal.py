"""What a refusal gives away: no secret."""

from itertools import product
from typing import Any

from small_config import HUB, TABLE, URL, config_with, faults

from moray.config.load import load_experiment

STREAM = {"loader": "stream"}
TOLD = (
    "the URL contains credentials, and the config is written to logs and records; remove them; for "
    "s3:// set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for https:// write ~/.netrc and set "
    'FSSPEC_HTTPS=\'{"client_kwargs": {"trust_env": true}}\''
)
ADDRESSES = [
    "https://user:secret@host/a.csv",
    "https://secret@host/a.csv",
    "https://user:secret@host:8080/a.csv?version=1",
    "s3://key:secret@bucket/a.csv",
    # Keys of object stores have slashes in them.
    "s3://key:se/secret/cret@bucket/a.csv",
    "S3://key:secret@bucket/*.csv",
    # fsspec's chains have several addresses.
    "simplecache::https://user:secret@host/a.csv",
    "zip://a.csv::https://user:secret@host/a.zip",
]


# Where one doesn't belong.
PLACES = [
    "datasets",
    "datasets.x",
    "datasets.x.source",
    "datasets.x.sha256",
    "datasets.x.revision",
    "datasets.x.repo_id",
    "datasets.x.path",
    "models.folder",
    "models.folder.source",
    "defaults.data",
    "defaults.data.block_size",
    "defaults.train.strategy",
    "defaults.ray.storage_path",
    "runs.tuned.ray.storage_path",
    "runs.tuned.ray.num_workers",
]


def test_an_address_with_credentials_is_refused_without_repeating_them() -> None:
    for address in ADDRESSES:
        locations: list[Any] = [address, ["https://host/b.csv", address]]
        locations += [{"train": "https://host/b.csv", "test": place} for place in locations]
        for place in locations:
            reported = faults({"datasets.x": {**URL, "url": place}})
            assert reported == [f"datasets.x.url: {TOLD}"], place


def test_no_tokens_are_streamed_from_an_address_with_credentials() -> None:
    """Whatever else is at odds there: the line of that would repeat the address."""
    folders = [
        "s3://key:secret@bucket/folder",
        "s3://key:se/secret@bucket",
        "https://user:secret@host/a",
    ]
    around: list[dict[str, Any]] = [STREAM, {}, {**STREAM, "tokenize": "on-the-fly"}]
    for section, data, folder in product(["defaults", "runs.tuned"], around, folders):
        values = {f"{section}.data": {**data, "stream_from": folder}}
        assert faults(values) == [f"{section}.data.stream_from: {TOLD}"], values


def test_an_at_sign_elsewhere_is_no_credential() -> None:
    for address in [
        "https://host:8080/a@b.csv",
        "https://host:8080",
        "https://host/folder/user@host/a.csv",
        "https://host/a.csv?mail=user@host",
        "s3://bucket/a:b/c@d.csv",
        "zip://a.csv::https://host/c@d.zip",
    ]:
        values = {"datasets.x": {**URL, "url": address}, "runs.tuned.data": STREAM}
        assert load_experiment(config_with(values)), address
        assert load_experiment(config_with(values | {"runs.tuned.data.stream_from": "s3://a/b@c"}))


def test_no_fault_repeats_credentials_that_are_where_they_do_not_belong() -> None:
    for path, address in product(PLACES, ADDRESSES):
        entry = {"sha256": URL, "revision": HUB, "repo_id": HUB}.get(path.rpartition(".")[2], TABLE)
        for value in (address, [address]):
            lines = faults({"datasets.x": {**entry}, path: value})
            assert "secret" not in "".join(lines), (path, value)
            told = [line.startswith(f"{path}: ") or f" {path}." in f" {line}" for line in lines]
            assert any(told), (path, value, lines)


def test_a_file_is_no_address() -> None:
    for path in ("https://host/a.csv", {"train": "a", "test": ["s3://bucket/a.csv"]}):
        assert faults({"datasets.x": {**TABLE, "path": path}}) == [
            "datasets.x.path: got a URL, expected file paths; set source: url"
        ]
