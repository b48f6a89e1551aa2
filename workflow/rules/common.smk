"""What all rules share: the checked config, the code that a stage depends on, the lock."""

import fcntl
import signal
import sys
from pathlib import Path

import moray
from moray import machine
from moray.config import plan
from moray.config.code import code_digest
from moray.config.load import load_experiment
from moray.errors import ConfigError, UserError

# The project's folder, also where another workflow uses this one as a module.
ROOT = Path(workflow.current_basedir).parents[1]


def check_package():
    """Refuse to run another checkout's package than the one whose code is tracked."""
    package, here = Path(moray.__file__).parent, ROOT / "src/moray"
    if package.resolve() != here.resolve():
        sys.exit(
            f"moray: got the package in {package}, expected {here}; pip install -e . here"
        )


def load():
    """The checked config and the user's files that it names, or one line for each fault."""
    try:
        experiment = load_experiment(config)
        files = {
            name: plan.dataset_files(experiment, name) for name in experiment.datasets
        }
        models = {
            name: plan.model_files(experiment, name) for name in experiment.models
        }
    except (ConfigError, UserError) as error:
        sys.exit(str(error))
    return experiment, files, models


def code(stage):
    """What stands for the script of a stage and the modules behind it."""
    script = ROOT / "workflow/scripts" / f"{stage}.py"
    return f"code {code_digest(script, ROOT / 'src')}"


def start_manifest(wildcards):
    return f"{plan.start_folder(EXPERIMENT, wildcards.run)}/manifest.json"


def start_dependencies(wildcards):
    """What the start is loaded with, where it is an adapter that was exported alone."""
    folders = plan.start_dependencies(EXPERIMENT, wildcards.run)
    return [f"{folder}/manifest.json" for folder in folders]


def tokens_manifest(wildcards):
    return f"results/tokens/{plan.store_name(EXPERIMENT, wildcards.run)}/manifest.json"


def tokenize_input(wildcards):
    run = STORES[wildcards.store]
    dataset = EXPERIMENT.runs[run].dataset
    return {
        "dataset": f"results/datasets/{dataset}/dataset.json",
        "model": f"results/models/{EXPERIMENT.base_model(run)}/manifest.json",
        # Their digests are in dataset.json; they only have to be there.
        "splits": [
            ancient(f"results/datasets/{dataset}/{split}.parquet")
            for split in plan.SPLITS
        ],
    }


def check_runs(jobs):
    """Refuse runs that can't be trained here before the first job, not before the last."""
    from moray.stages.preflight import preflight

    runs = {job.wildcards.run for job in jobs if job.rule.name == "finetune_run"}
    try:
        preflight(EXPERIMENT, sorted(runs))
    except ConfigError as error:
        sys.exit(str(error))
    return runs


def stop_on_sigterm(runs):
    """Have runs save a checkpoint and end at SIGTERM, which Snakemake takes as: no more jobs."""
    from moray.train.supervision.requests import Request, Requests

    before = signal.getsignal(signal.SIGTERM)

    def stop(number, frame):
        for run in runs:
            folder = Path(EXPERIMENT.runs[run].ray.storage_path, run)
            Requests(folder).ask(Request.STOP)
        before(number, frame)

    if runs:
        signal.signal(signal.SIGTERM, stop)


def limit_gpus():
    """Have jobs wait for each other where they need more GPUs than this machine has.

    On the command line, `--resources gpu=N` says otherwise; other executors have their own limits.
    """
    if workflow.local_exec and "gpu" not in workflow.global_resources:
        workflow.register_resource("gpu", len(machine.gpus()))


def drop_stale_locks():
    """Remove the locks of a workflow that was killed, so that the same command goes on.

    Every moray workflow in this folder shares a lock that the kernel takes back from the dead.
    Who can have it alone is the only one alive, and what Snakemake's locks say is stale.
    """
    Path(".snakemake").mkdir(exist_ok=True)
    alive = open(".snakemake/moray.lock", "w")
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for lock in Path(".snakemake/locks").glob("*.lock"):
            lock.unlink()
        fcntl.flock(alive, fcntl.LOCK_SH)
    except BlockingIOError:
        fcntl.flock(alive, fcntl.LOCK_SH)
    except OSError:
        # A file system without such locks: Snakemake's own have to be removed by hand there.
        pass
    return alive


check_package()
EXPERIMENT, DATASET_FILES, MODEL_FILES = load()
STORES = {plan.store_name(EXPERIMENT, run): run for run in EXPERIMENT.runs}
ALIVE = drop_stale_locks()
limit_gpus()


wildcard_constraints:
    dataset="[^/]+",
    model="[^/]+",
    run="[^/]+",
    store="[^/]+",
