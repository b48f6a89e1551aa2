"""The garbage collector around the loop."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from moray.train.engine.memory import collected_when_asked, keep_freed_memory


class Circle:
    """Held by itself alone."""

    def __init__(self) -> None:
        self.own = self


def dropped() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Whatever a test does, those after it have a collector."""
    yield
    gc.enable()
    gc.unfreeze()


def test_in_the_body_nothing_is_collected_until_asked() -> None:
    with collected_when_asked() as collect:
        assert not gc.isenabled()
        garbage = dropped()
        filled = [[number] for number in range(50_000)]
        assert len(filled) == 50_000
        assert garbage() is not None
        collect()
        assert garbage() is None


def test_what_was_there_before_or_when_first_asked_is_not_looked_at_again() -> None:
    with collected_when_asked() as collect:
        before = gc.get_freeze_count()
        assert before > 0
        kept = [[number] for number in range(50_000)]
        collect()
        assert gc.get_freeze_count() >= before + len(kept)
        first = gc.get_freeze_count()
        later = dropped()
        collect()
        assert later() is None
        assert gc.get_freeze_count() <= first
    assert gc.get_freeze_count() == 0


def test_after_the_body_the_collector_is_as_before() -> None:
    with collected_when_asked():
        pass
    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt), collected_when_asked():
        raise KeyboardInterrupt
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_keeping_freed_memory_can_be_asked_for_again_and_again() -> None:
    for _ in range(2):
        keep_freed_memory()
        assert bytes(10_000_000) == b"\0" * 10_000_000
