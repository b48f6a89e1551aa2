"""The interface of a source: a module with a function that opens a dataset's section."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from moray.corpus.split import Given


@dataclass(frozen=True)
class Opened:
    """A source whose documents can be read, also repeatedly.

    Attributes:
        given: the documents of each split that it has.
        origin: what says where they are from, such as a version, or files with their digests.
        label_names: of images, the names of their labels.
    """

    given: Given
    origin: dict[str, Any]
    label_names: tuple[str, ...] = ()


class Source(Protocol):
    """A module of `sources.text` or `sources.images`."""

    def opened(self, section: Any, files: Mapping[str, list[str]], temporary: Path) -> Opened:
        """Open a source.

        Args:
            section: the dataset's section of the config.
            files: the user's files that it names, by split.
            temporary: an empty folder, for as long as the documents are read.

        Raises:
            UserError: if it can't be read.
        """
