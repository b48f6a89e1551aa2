"""Folders that reach other machines through an object store, by digest, whole or not at all."""

import json
from dataclasses import dataclass
from pathlib import Path

from moray.console import say
from moray.errors import UserError
from moray.provenance.manifest import MANIFEST, damaged_files, fingerprint, sha256_file
from moray.storage.buckets import open_objects
from moray.storage.node import once_a_node, scratch


@dataclass(frozen=True)
class ObjectDelivery:
    """Folders with manifests that have been uploaded.

    They may refer to each other by relative paths, so they keep their places among each other.

    Attributes:
        url: where folders are, by the SHA-256 of their manifests.
        folders: the folders on the machine that they are from, absolute, and these digests.
    """

    url: str
    folders: tuple[tuple[Path, str], ...]

    def here(self) -> Path:
        """What to put before the folders' paths on this machine.

        If they are here already, that is the root; otherwise they are downloaded, once a machine.

        Raises:
            UserError: if a file in the object store is missing or damaged.
        """
        if all(
            (folder / MANIFEST).is_file() and sha256_file(folder / MANIFEST) == digest
            for folder, digest in self.folders
        ):
            return Path("/")
        name = fingerprint(
            [str(folder) for folder, _ in self.folders], [digest for _, digest in self.folders]
        )
        return once_a_node(scratch() / "inputs" / name, self._download)

    def _download(self, root: Path) -> None:
        objects = open_objects(self.url)
        for folder, digest in self.folders:
            target = root / folder.relative_to("/")
            objects.download(f"{digest}/{MANIFEST}", target / MANIFEST)
            for name in json.loads((target / MANIFEST).read_text())["files"]:
                objects.download(f"{digest}/{name}", target / name)
            if damaged := damaged_files(target):
                raise UserError(
                    f"{self.url}/{digest}",
                    f"missing or damaged files: {', '.join(damaged)}",
                    "delete it and run the same command again",
                )


def deliver(folders: list[Path], url: str) -> ObjectDelivery:
    """Upload folders that aren't there yet, each with its manifest last.

    Args:
        folders: folders with manifests.
        url: where to.
    """
    objects = open_objects(url)
    digests = []
    for folder in folders:
        digest = sha256_file(folder / MANIFEST)
        digests.append((folder.absolute(), digest))
        if objects.head(f"{digest}/{MANIFEST}"):
            continue
        say(f"copying {folder} to {url}")
        for name in json.loads((folder / MANIFEST).read_text())["files"]:
            objects.upload(folder / name, f"{digest}/{name}")
        objects.upload(folder / MANIFEST, f"{digest}/{MANIFEST}")
    return ObjectDelivery(url, tuple(digests))
