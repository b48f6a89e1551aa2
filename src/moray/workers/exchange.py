"""What workers and their driver exchange through an object store, if they share no folder.

The inputs of a job are brought to each machine, and what its workers write is brought back, by
`moray.workers.remote`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from moray.storage.transfer import Delivery, deliver, received


def no_files(rank: int) -> tuple[str, ...]:
    """The files of workers whose results are all that is wanted of them."""
    return ()


@dataclass(frozen=True)
class Exchange:
    """How the inputs of a job reach machines, and how files come back.

    Attributes:
        url: where workers put their files, for this start of them alone.
        deliveries: by the folder of an input, what brings it to a machine.
        files: the names of the files that a worker writes, by its rank, besides its output, its
            count and its errors.
        of_an_attempt: names of files that say nothing about the next attempt.
    """

    url: str
    deliveries: Mapping[Path, Delivery]
    files: Callable[[int], tuple[str, ...]] = no_files
    of_an_attempt: tuple[str, ...] = ()

    def received(self, folder: Path) -> AbstractContextManager[None]:
        """During the body and after it, take what workers on other machines have put there."""
        return received(folder, self.url)

    def here(self, folder: Path) -> Path:
        """Where an input is on this machine; it is downloaded, once a machine.

        Raises:
            UserError: if a file in the object store is missing or damaged.
        """
        delivery = self.deliveries.get(folder)
        return delivery.here(folder) if delivery else folder


def delivered(inputs: Mapping[Path, Iterable[Path]], storage_path: str) -> dict[Path, Delivery]:
    """Upload inputs, each with the folders that it refers to, unless they are there already."""
    return {folder: deliver(list(folders), storage_path) for folder, folders in inputs.items()}
