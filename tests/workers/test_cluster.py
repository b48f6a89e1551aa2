"""What is asked for is held against what is there, before anything is started."""

import os
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from moray.config.schema.sections import Ray
from moray.errors import UserError
from moray.workers.cluster import connect_ray, interface_setup
from moray.workers.launch import Launch


def launch_of(settings: Ray) -> Launch:
    return Launch(settings, "runs.tuned.ray", Path("."), "ray", timeout=60)


def refusal(settings: Ray) -> str:
    with pytest.raises(UserError) as caught, connect_ray(launch_of(settings)):
        pytest.fail("nothing may run")
    return str(caught.value)


@pytest.mark.long
def test_what_only_ray_knows_of_is_refused_at_once() -> None:
    resources: dict[str, float] = {"CPU": 1, "accelerator": 1}
    settings = Ray(num_workers=1, resources_per_worker=resources, use_gpu=False)
    expected = "1 accelerator each need 1 accelerator, but this machine has 0"
    assert expected in refusal(settings)


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]"])
def test_an_open_cluster_beyond_this_machine_is_refused(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    expected = "a cluster outside this machine, without RAY_AUTH_MODE"
    assert expected in refusal(Ray(address=f"{host}:6379"))


@pytest.mark.parametrize("host", ["127.0.0.1", "ray://127.0.0.1", "[::1]"])
def test_an_address_where_no_ray_is_costs_one_line_at_once(host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{host}:{free.getsockname()[1]}"
        expected = f"runs.tuned.ray.address: no Ray cluster answers at {address};"
        assert refusal(Ray(address=address)).startswith(expected)


@pytest.mark.release
def test_the_dashboard_answers_at_the_address_that_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with connect_ray(launch_of(Ray(num_workers=1, include_dashboard=True))):
        printed = capsys.readouterr().err
        reported = re.search(r"^Ray's dashboard is at (http://127\.0\.0\.1:\d+)$", printed, re.M)
        assert reported
        with urllib.request.urlopen(reported[1], timeout=60) as page:
            assert b"Ray Dashboard" in page.read()


@pytest.mark.release
def test_workers_that_would_leave_no_cpu_for_reading_are_refused_with_the_numbers() -> None:
    """On a cluster whose CPUs they would all hold; one more, and they are taken."""
    script = """
from pathlib import Path
from ray.cluster_utils import Cluster
from moray.workers.launch import Launch
from moray.workers.cluster import connect_ray, interface_setup
from moray.config.schema.sections import Ray
from moray.errors import UserError

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})

def launch(workers, streams):
    ray = Ray(address=cluster.address, num_workers=workers)
    return Launch(ray, "runs.tuned.ray", Path("."), "ray", 60, streams=streams)

try:
    with connect_ray(launch(1, True)):
        print("one worker")
    with connect_ray(launch(2, False)):
        print("two workers from memory")
    try:
        with connect_ray(launch(2, True)):
            print("two workers streaming")
    except UserError as error:
        print(error)
finally:
    cluster.shutdown()
"""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | token,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "one worker",
        "two workers from memory",
        "runs.tuned.ray.num_workers: 2 workers with 1 CPU each use all 2 CPU that "
        "the cluster has, and data.loader: stream needs one more; "
        "lower num_workers or resources_per_worker.CPU",
    ]


IN_A_LOCAL_RAY = """
import os, sys
from pathlib import Path
from moray.workers.launch import Launch
from moray.workers.cluster import connect_ray, interface_setup
from moray.config.schema.sections import Ray

def watch(event, arguments):
    if event == "open" and str(arguments[0]).endswith("auth_token") and "w" in (arguments[1] or ""):
        print("written again")

sys.addaudithook(watch)
os.umask(0)
ray = Ray(num_workers=1, resources_per_worker={"CPU": 0.1})
with connect_ray(Launch(ray, "runs.tuned.ray", Path("."), "ray", 60)):
    import ray
    print(ray.get(ray.remote(lambda: "works").remote()))
"""


def in_a_local_ray(home: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    return subprocess.run(
        [sys.executable, "-c", IN_A_LOCAL_RAY],
        env=kept | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("existing", [None, pytest.param(0o644, marks=pytest.mark.release)])
def test_nobody_else_can_read_the_token_of_a_local_ray(
    tmp_path: Path, existing: int | None
) -> None:
    """Not for a moment: it is there for its user alone before Ray looks for one."""
    token = tmp_path / ".ray/auth_token"
    if existing is not None:
        token.parent.mkdir()
        token.write_text("0123456789abcdef" * 4)
        token.chmod(existing)
    done = in_a_local_ray(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["works"]
    assert token.stat().st_mode & 0o777 == 0o600
    assert list(token.parent.iterdir()) == [token]
    assert len(token.read_text()) == 64
    assert existing is None or token.read_text() == "0123456789abcdef" * 4


def test_without_a_place_for_the_token_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / ".ray").touch()
    done = in_a_local_ray(tmp_path)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        f"moray.errors.UserError: {tmp_path}/.ray/auth_token: can't write a token that only "
        "you can read (File exists); make sure that you own the file and can write to its folder, "
        "or set RAY_AUTH_TOKEN"
    )


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
