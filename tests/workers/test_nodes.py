import os

import pytest

from moray.workers.nodes import interface_setup

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """That of this process, for the test, without the variables."""
    there = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    monkeypatch.setattr("os.environ", there)
    return there


def test_a_given_interface_is_that_of_both_backends(environment: dict[str, str]) -> None:
    interface_setup("ib0")()
    assert [environment[name] for name in VARIABLES] == ["ib0", "ib0"]


def test_what_a_node_says_itself_comes_first(environment: dict[str, str]) -> None:
    environment["NCCL_SOCKET_IFNAME"] = "eth"
    interface_setup("ib0")()
    assert [environment[name] for name in VARIABLES] == ["ib0", "eth"]
