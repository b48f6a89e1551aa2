"""What workers need is checked without Ray; GPUs are for one run at a time.

GPUs are counted, not used: the tests name some that needn't exist.
"""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moray.machine import gpus
from moray.workers.launch import reserve_gpus


def test_the_check_needs_no_ray() -> None:
    code = (
        "import sys; from moray.config.schema.sections import Ray; "
        "from moray.workers.launch import check_cores; "
        "check_cores(Ray(num_workers=1), 'x'); sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(autouse=True)
def _three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")


def test_a_run_sees_only_what_it_holds_and_all_again_afterwards(tmp_path: Path) -> None:
    with reserve_gpus(2, tmp_path) as held:
        assert held == gpus() == ["0", "1"]
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert gpus() == ["0", "1", "2"]
    with reserve_gpus(0, tmp_path):
        assert gpus() == []


# A driver for the cards that CARDS names by letters, whose UUIDs are made of them. As in a job that
# may open some of a machine's cards, numbers count those.
DRIVER = """
#include <stdlib.h>
#include <string.h>
static char seen[16];
static int count;
int cuInit(unsigned flags) {
    char names[256];
    strcpy(names, getenv("CUDA_VISIBLE_DEVICES"));
    for (char *name = strtok(names, ","); name; name = strtok(0, ","))
        seen[count++] = strncmp(name, "GPU-", 4) ? getenv("CARDS")[atoi(name)]
                                                 : strtol(strndup(name + 4, 2), 0, 16);
    return 0;
}
int cuDeviceGetCount(int *number) { *number = count; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, seen[device], 16); return 0; }
"""
A, B = "61616161-6161-6161-6161-616161616161", "62626262-6262-6262-6262-626262626262"


@pytest.mark.parametrize(
    ("cards", "visible", "held"),
    [
        ("a", "0", {A}),
        ("b", "0", {B}),
        ("ab", "1,0", {A, B}),
        ("ab", "1", {B}),
        ("ab", f"GPU-{B}", {B}),
        ("ab", "GPU-62626262", {B}),
    ],
)
def test_a_gpu_is_locked_as_the_card_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: str, visible: str, held: set[str]
) -> None:
    """Jobs that see different cards, or one card by different names, may share the machine."""
    library, locks = tmp_path / "libcuda.so.1", tmp_path / "locks"
    compiler = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=DRIVER, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CARDS", cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with reserve_gpus(len(held), locks) as mine:
        assert mine == visible.split(",")
    assert {path.name for path in locks.iterdir()} == held


def test_a_name_with_slashes_is_locked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["MIG-GPU-8932f937/1/0", "MIG-GPU-8932f937/2/0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    with reserve_gpus(2, tmp_path) as held:
        assert held == names
    assert len(list(tmp_path.iterdir())) == 2


def hold(folder: Path, count: int, held: "multiprocessing.Queue[list[str]]", go_on: object) -> None:
    with reserve_gpus(count, folder) as mine:
        held.put(mine)
        go_on.wait()  # type: ignore[attr-defined]


def test_runs_at_the_same_time_get_different_ones_and_wait_for_more(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Queue()
    events = [context.Event() for _ in range(3)]
    runs = [context.Process(target=hold, args=(tmp_path, 1, held, event)) for event in events]
    for run in runs[:2]:
        run.start()
    first = [held.get(timeout=60)[0] for _ in range(2)]
    assert len(set(first)) == 2
    # Needs two, of which one is free: takes none until another is.
    both = context.Process(target=hold, args=(tmp_path, 2, held, events[2]))
    both.start()
    events[0].set()
    runs[0].join()
    assert len(set(held.get(timeout=60))) == 2
    for event in events[1:]:
        event.set()
    runs[1].join()
    both.join()


def test_a_run_that_is_killed_gives_its_gpus_back(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, never = context.Queue(), context.Event()
    run = context.Process(target=hold, args=(tmp_path, 3, held, never))
    run.start()
    assert held.get(timeout=60) == ["0", "1", "2"]
    run.kill()
    run.join()
    with reserve_gpus(3, tmp_path) as mine:
        assert mine == ["0", "1", "2"]
