"""Files of work under way, between the driver and workers on machines without its folder.

The driver and the workers on its machine share a folder. Workers on other machines copy their files
below a URL, from where the driver takes them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from moray.background import repeated
from moray.storage.buckets import open_objects

_SECONDS = 2.0
_MARKER = "driver"

State = tuple[float, int]


@contextmanager
def received(folder: Path, url: str) -> Iterator[None]:
    """During the body and after it, take what workers on other machines have sent.

    Args:
        folder: the driver's folder.
        url: where workers put their files; for this folder alone.
    """
    (folder / _MARKER).touch()
    objects = open_objects(url)
    taken: dict[str, State] = {}

    def take() -> None:
        there = objects.listed("")
        for name, listed in there.items():
            state = listed.changed, listed.size
            if taken.get(name) != state:
                temporary = folder / f"{name}.part"
                if objects.download(name, temporary):
                    temporary.replace(folder / name)
                    taken[name] = state
        for name in taken.keys() - there.keys():
            (folder / name).unlink(missing_ok=True)
            del taken[name]

    try:
        with _attempted(take, objects.errors):
            yield
    finally:
        take()
        objects.delete(objects.listed(""))


@contextmanager
def sent(folder: Path, url: str, names: Sequence[str], shared: str) -> Iterator[None]:
    """During the body and after it, send this worker's files, if the driver is on another machine.

    Args:
        folder: the worker's folder.
        url: where the driver takes files from.
        names: the files that only this worker writes.
        shared: the file that all workers read and the first one to do so writes.
    """
    if (folder / _MARKER).exists():
        yield
        return
    objects = open_objects(url)
    done: dict[str, State] = {}

    def send() -> None:
        for name in names:
            file = folder / name
            if not file.exists():
                continue
            facts = file.stat()
            if done.get(name) != (facts.st_mtime, facts.st_size):
                objects.put(name, file.read_bytes())
                done[name] = facts.st_mtime, facts.st_size
        if (folder / shared).exists():
            objects.create(shared, (folder / shared).read_bytes())
        else:
            objects.download(shared, folder / shared)

    try:
        with _attempted(send, objects.errors):
            yield
    finally:
        send()


def _attempted(
    function: Callable[[], None], errors: tuple[type[Exception], ...]
) -> AbstractContextManager[None]:
    def attempt() -> None:
        try:
            function()
        except errors as error:
            # The object store may be back the next time.
            print(f"can't exchange files with the object store: {error}", file=sys.stderr)

    return repeated(attempt, _SECONDS)
