"""A job on workers that PyTorch's elastic agent starts, from the driver on."""

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tensors_of
from fleet import losses, until
from jobs import train_run, training_command

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Ray
from moray.config.schema.train import Adapter
from moray.errors import UserError
from moray.storage.interface import folder_of, step_of
from moray.train.driver import _libraries, train_on_workers
from moray.train.history import HISTORY, read_history
from moray.train.loop import train
from moray.train.spec import RunSpec
from moray.workers.entry import Worker


def test_a_run_is_recorded_with_the_losses_of_one_process(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    job, output = make_job(), tmp_path / "output"
    train(job, alone)
    settings = job.settings.model_copy(update={"launcher": "torchrun"})
    train_run(job, small, output, settings, num_workers=2)
    history = list(read_history(output / HISTORY))
    assert "not compiled: the run is too short" in history[0]["note"]
    assert [line["step"] for line in history] == [
        line["step"] for line in read_history(job.work / HISTORY)
    ]
    for key in ("loss", "eval_loss"):
        found = [line[key] for line in history if key in line]
        assert found == pytest.approx(losses(job, key), rel=1e-5)
    record = json.loads((output / "train.json").read_text())
    assert (record["steps"], record["num_workers"], record["resumed_from"]) == (8, 2, 0)
    assert record["train"] == result_keys(job.settings)
    assert "micro_batch_size" not in record["train"]
    assert "model.embed_tokens.weight" in tensors_of(Path(record["checkpoint"]))


@pytest.mark.long
def test_a_fault_reaches_the_user_and_spends_no_restart(make_job: Any, tmp_path: Path) -> None:
    job = make_job(launcher="torchrun", learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0)
    with pytest.raises(UserError, match="at step 2"):
        train_on_workers(job)
    assert len(losses(job)) == 1


def test_nodes_are_asked_for_the_libraries_that_a_job_needs(make_job: Any) -> None:
    qlora = Adapter(quantize_base="4bit")
    for job, expected in (
        (make_job(), []),
        (make_job(strategy="deepspeed"), ["deepspeed"]),
        (make_job(adapter=Adapter()), ["peft"]),
        (make_job(adapter=Adapter(quantize_base="8bit")), ["peft"]),
        (make_job(adapter=qlora), ["peft", "bitsandbytes"]),
        (make_job(optimizer="adamw_8bit"), ["bitsandbytes"]),
        (make_job(adapter=qlora, optimizer="adamw_8bit"), ["peft", "bitsandbytes"]),
    ):
        assert [*_libraries(job)] == expected


def test_more_workers_than_cores_are_refused(make_job: Any) -> None:
    job = replace(make_job(launcher="torchrun"), ray=Ray(num_workers=10_000))
    with pytest.raises(
        UserError, match=r"runs\.name\.ray\.num_workers: 10000 workers with 1 CPU each"
    ):
        train_on_workers(job)


@pytest.mark.release
def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(
    make_job: Any, alone: Worker
) -> None:
    undisturbed = make_job("undisturbed", max_steps=60)
    killed = make_job("killed", max_steps=60, launcher="torchrun")
    train(undisturbed, alone)
    killing = threading.Thread(target=kill_once, args=(killed,))
    killing.start()
    facts = train_on_workers(replace(killed, ray=Ray(num_workers=1, max_failures=1)))
    killing.join()
    assert facts["resumed_from"] >= 4
    assert losses(killed) == losses(undisturbed)


def kill_once(job: RunSpec) -> None:
    """SIGKILL the worker once it has saved two checkpoints."""
    folder = folder_of(job.work)
    until(lambda: list(folder.glob("step-0000000[4-9]")))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"moray.workers.torchrun" in command and is_mine(int(process.name)):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError("no worker was found")


def is_mine(process: int) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    return f"PPid:\t{os.getpid()}\n" in status


@pytest.mark.long
def test_workers_end_with_the_process_that_started_them(make_job: Any, tmp_path: Path) -> None:
    job = make_job(max_steps=10**6, compile=False, launcher="torchrun")
    script = (
        "import pickle, sys; from pathlib import Path\n"
        "from moray.train.driver import train_on_workers\n"
        "job = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "train_on_workers(job)\n"
    )
    (tmp_path / "job").write_bytes(pickle.dumps(job))
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "job")])
    until(lambda: list(folder_of(job.work).glob("step-*[0-9]")) or driver.poll())
    assert driver.poll() is None
    driver.kill()
    driver.wait()
    # Held by the worker for as long as it lives.
    with (job.work / "writer.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@pytest.mark.long
def test_a_signal_to_all_processes_saves_the_step_and_a_second_start_goes_on(
    make_job: Any, alone: Worker, small: Path, tmp_path: Path
) -> None:
    undisturbed = make_job("undisturbed", max_steps=120)
    train(undisturbed, alone)
    settings = undisturbed.settings.model_copy(update={"launcher": "torchrun", "save_steps": 1000})
    ray = Ray(num_workers=1, storage_path=str(tmp_path / "state"))
    command = training_command(small / "model", small / "tokens", tmp_path, settings, ray)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        until(lambda: steps_in(tmp_path / "state") or driver.poll() is not None)
        # The agent, the workers and what they have started are in the same group.
        os.killpg(driver.pid, signal.SIGTERM)
        _, reported = driver.communicate()
    assert driver.returncode == 1
    (folder,) = (tmp_path / "state/name").glob("*/checkpoints/*")
    at = step_of(folder)
    assert f"runs.name: stopped at step {at} as requested, and saved a" in reported
    assert 0 < at < 120

    assert subprocess.run(command, capture_output=True, check=True)
    history = list(read_history(tmp_path / HISTORY))
    assert [line["loss"] for line in history if "loss" in line] == losses(undisturbed)
    assert json.loads((tmp_path / "train.json").read_text())["resumed_from"] == at


def steps_in(state: Path) -> list[str]:
    return [line for path in state.glob("name/*/history.jsonl") for line in open(path)][1:]
