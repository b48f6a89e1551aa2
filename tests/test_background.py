import threading

import pytest

from moray.background import in_thread, repeated


def test_a_function_is_called_again_and_again_until_the_body_ends() -> None:
    calls = list[int]()
    often = threading.Event()

    def call() -> None:
        calls.append(threading.get_ident())
        if len(calls) == 3:
            often.set()

    with repeated(call, 0.001):
        assert often.wait(60)
    assert threading.get_ident() not in calls
    assert not any(thread.ident in calls for thread in threading.enumerate())


def test_the_body_may_fail() -> None:
    with pytest.raises(KeyError), repeated(lambda: None, 0.001):
        raise KeyError


def test_a_future_has_what_a_thread_returned() -> None:
    assert in_thread(threading.get_ident).result() != threading.get_ident()


def test_a_future_raises_what_a_thread_raised() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_thread(fail).result()
