"""Shared by all rules: the config, its checks, the code of a stage, the lock."""

import fcntl
import os
import re
import signal
import sys
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

from snakemake.io import IOFile
from snakemake.settings.types import RerunTrigger

import moray
from moray import project
from moray.config import extras, inputs, plan, recorded, user_files
from moray.config.config_files import check_config_file, check_option
from moray.config.load import load_experiment, resolve_short_keys
from moray.config.schema.experiment import SMOKE_TEST_RUN
from moray.config.tasks import MODALITIES
from moray.config.versions import version_of
from moray.errors import ConfigError, UserError
from moray.stages.boundary import repeat, repeats

CONFIG = Path("config/config.yaml")

try:
    check_option(sys.argv)
    # Doesn't exist if another workflow uses this one as a module and passes the config.
    if CONFIG.exists():
        check_config_file(CONFIG)
        # These have been read already, with all that they evaluate.
        for overlay in workflow.overwrite_configfiles:
            check_config_file(Path(os.path.relpath(overlay)))
except UserError as error:
    sys.exit(str(error))


configfile: CONFIG


# The folder of the Snakefile, also if another workflow uses this one as a module.
ROOT = Path(workflow.current_basedir).parents[1]
# The folder of the package.
SOURCE = Path(moray.__file__).parents[1]


def check_python():
    """Refuse a path that Snakemake and Ray, which don't quote it, can't start Python by."""
    if re.search(r"[\s\"'$&();<>\\`|]", sys.executable):
        sys.exit(
            f"{sys.executable}: the path of Python has a space or a sign that shells read, so jobs "
            "can't start it; move its folder"
        )


def check_package():
    """Refuse to run if the imported package isn't the one of this workflow."""
    if project.WORKFLOW.resolve() != ROOT.resolve():
        sys.exit(
            f"moray: the package is imported from {SOURCE / 'moray'}, which is not the one of "
            f"{ROOT / 'Snakefile'}; run pip install -e {ROOT}, or use {project.SNAKEFILE}"
        )


def load():
    """The checked config and the files that it names; exits with one line for each fault."""
    try:
        experiment = load_experiment(resolve_short_keys(config))
        extras.check_all_there(experiment)
        files = {
            name: user_files.dataset_files(experiment, name)
            for name in experiment.datasets
        }
        models = {
            name: user_files.model_files(experiment, name) for name in experiment.models
        }
        tasks = {
            run: user_files.benchmark_files(experiment, run) for run in experiment.runs
        }
    except (ConfigError, UserError) as error:
        sys.exit(str(error))
    return experiment, files, models, tasks


def code(stage, *names, of=None):
    """The param by which a stage runs again if the version of its results was raised, or by an edit.

    With what it is `of`, it also does if its last execution didn't finish.
    """
    again = repeats(f"{stage}/{of}", planning=workflow.is_main_process) if of else ""
    return f"code {version_of(stage, *names)}{again}"


def by_content(files):
    """The user's files as inputs of a rule: they have to exist, and their times don't count.

    Those that a rule makes are inputs like any other, and so are all with `--rerun-triggers mtime`,
    which leaves out the param with their content.
    """
    counted = RerunTrigger.PARAMS in workflow.rerun_triggers
    return [ancient(file) if counted and not is_made(file) else file for file in files]


def with_contents(cfg, files):
    """The param of a stage that reads the user's files, so that it reruns if their content changes."""
    counted = [file for file in files if not is_made(file)]
    # Jobs that an executor has started may see the files elsewhere, where they look different.
    return inputs.with_contents(cfg, counted, keep=workflow.is_main_process)


@cache
def outputs():
    """What all rules make, also those of a workflow that uses this one as a module."""
    # It is called when all have been read.
    return [output for rule in workflow.rules for output in rule.output]


@cache
def beginnings():
    return tuple(output.constant_prefix() for output in outputs())


def is_made(file):
    """Whether a rule makes a file."""
    # Most files begin otherwise, and there may be thousands.
    return file.startswith(beginnings()) and any(
        output.match(file) for output in outputs()
    )


def suggestion(target):
    """What to type next, with the same overlays; nothing if that was asked for too."""
    # The workflow doesn't know its targets yet.
    if target in sys.argv:
        return ""
    overlays = [os.path.relpath(file) for file in workflow.overwrite_configfiles]
    options = f" --configfile {' '.join(overlays)}" if overlays else ""
    return f"; next: snakemake {target}{options}"


def task_of(run):
    return plan.task(EXPERIMENT, run)


def trained_as(run):
    return plan.task_of_training(EXPERIMENT, run)


def place_of(run):
    """Where a run's model is loaded from: its repository, or its folder."""
    push = EXPERIMENT.runs[run].push
    return push.repo if push else f"results/runs/{run}/model"


def any_of(names):
    """A regular expression for one of some names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def runs_of(modality):
    """The names of the runs of a modality."""
    return [
        run for run in EXPERIMENT.runs if plan.modality(EXPERIMENT, run) == modality
    ]


def stores_of(modality):
    """The names of the stores of a modality."""
    return [
        name
        for name, (run, _) in STORES.items()
        if plan.modality(EXPERIMENT, run) == modality
    ]


def dataset_input(wildcards):
    """The user's files, by split; exits with a line if one is missing that no rule makes."""
    files = DATASET_FILES[wildcards.dataset]
    for file in chain(*files.values()):
        if not os.path.exists(file) and not is_made(file):
            fault = inputs.missing_file_error(EXPERIMENT, wildcards.dataset, file)
            sys.exit(str(fault))
    record = f"results/datasets/{wildcards.dataset}/dataset.json"
    check_made_of_this(record, recorded.other_rows, wildcards.dataset)
    return {split: by_content(own) for split, own in files.items()}


def check_made_of_this(output, compare, *arguments):
    """Exit if an output was made of something else, and Snakemake has no record to tell it by."""
    settings = workflow.dag_settings
    forced = settings.forceall or output in map(str, settings.forcerun)
    # Jobs that an executor has started need not see the records.
    if not workflow.is_main_process or forced:
        return
    if not workflow.persistence.metadata(IOFile(output)):
        if error := compare(EXPERIMENT, *arguments):
            sys.exit(str(error))


def training_start(wildcards):
    run = wildcards.run
    record, training = f"results/runs/{run}/train.json", code(
        "finetune", trained_as(run)
    )
    check_made_of_this(record, recorded.other_training, run, training)
    # Snakemake calls `onstart` only if jobs are run.
    if workflow.dryrun and not os.path.exists(record):
        check([run], here=False, ask_hub=False)
    return start_manifest(wildcards)


def model_input(wildcards):
    record = f"results/models/{wildcards.model}/manifest.json"
    check_made_of_this(record, recorded.other_model, wildcards.model)
    return by_content(MODEL_FILES[wildcards.model])


def start_manifest(wildcards):
    return f"{plan.start_folder(EXPERIMENT, wildcards.run)}/manifest.json"


def start_dependencies(wildcards):
    """What is needed to load the start, if it was exported as an adapter without its base."""
    folders = plan.start_dependencies(EXPERIMENT, wildcards.run)
    return [f"{folder}/manifest.json" for folder in folders]


def store_manifests(wildcards):
    folders = plan.store_folders(EXPERIMENT, wildcards.run)
    return [f"{folder}/manifest.json" for folder in folders]


def prepared_manifests(wildcards):
    folders = plan.prepared_folders(EXPERIMENT, wildcards.run)
    return [f"{folder}/manifest.json" for folder in folders]


def lineage_sources(wildcards):
    """What a run was made from, besides what its stages record."""
    rows = {*store_manifests(wildcards), *prepared_manifests(wildcards)}
    datasets = in_datasets(wildcards, "dataset.json")
    teachers = teacher_manifests(wildcards)
    return [start_manifest(wildcards), *teachers, *sorted(rows), *datasets]


def in_datasets(wildcards, file):
    """A file of each dataset of a run."""
    datasets = EXPERIMENT.runs[wildcards.run].datasets
    return [f"results/datasets/{dataset}/{file}" for dataset in datasets]


def compared_splits(wildcards):
    """What a run's datasets hold out, and the train splits that may have it too.

    There are none if all training is on one dataset, where a document is in one split.
    """
    own = EXPERIMENT.runs[wildcards.run].datasets
    trained = [
        name for name in EXPERIMENT.trained_by(wildcards.run) if own.keys() - {name}
    ]
    splits = [f"{name}/train" for name in trained]
    if trained:
        splits += [
            f"{name}/{split}" for name in own for split in ("validation", "test")
        ]
    return [f"results/datasets/{split}.parquet" for split in splits]


def prepared_manifest(wildcards):
    """That of a run on one dataset."""
    (manifest,) = prepared_manifests(wildcards)
    return manifest


def benchmarks_of(wildcards):
    """The benchmarks of a run that names tasks."""
    run = wildcards.run
    return [f"results/runs/{run}/benchmarks.json"] if run in BENCHMARKED else []


def samples_of(wildcards):
    """The samples of a run whose modality has any."""
    run = wildcards.run
    return [f"results/runs/{run}/samples.jsonl"] if run in SAMPLED else []


def of_sweep(wildcards, file):
    """A file of each run of a sweep."""
    runs = sorted(EXPERIMENT.sweeps[wildcards.sweep])
    return [f"results/runs/{run}/{file}" for run in runs]


def store_input(wildcards):
    run, dataset = STORES[wildcards.store]
    return {
        "dataset": f"results/datasets/{dataset}/dataset.json",
        "model": f"results/models/{EXPERIMENT.base_model(run)}/manifest.json",
        # Their digests are in dataset.json, so they only have to exist.
        "splits": [
            ancient(f"results/datasets/{dataset}/{split}.parquet")
            for split in plan.SPLITS
        ],
    }


def check_runs(jobs):
    """Exit before the first job if a run can't be trained, or uploaded.

    With an executor whose jobs run elsewhere, what machines have is checked there, by each job.
    """

    def of_rule(name):
        # Another workflow may put something before the names of rules.
        ours = (job for job in jobs if job.rule.name.endswith(name))
        return sorted({job.wildcards.run for job in ours})

    runs = of_rule("finetune_run")
    stages = {stage: of_rule(f"{stage}_run") for stage in EXTRA_STAGES}
    check(
        runs,
        generated=of_rule("generate_run"),
        pushed=of_rule("push_run"),
        stages=stages,
        cores=shared_cores(),
        here=workflow.local_exec,
    )
    return [*runs, *stages.get("search", ())]


def check(runs, **arguments):
    """Exit with a line for each fault of runs."""
    from moray.stages.preflight import preflight

    try:
        preflight(EXPERIMENT, runs, **arguments)
    except ConfigError as error:
        sys.exit(str(error))


def check_finished_runs(jobs):
    """Exit before the first job if a finished run would be trained again and nothing has changed.

    Snakemake runs again all that follows from a file that was deleted, such as tokens.
    """
    needed, dag = set(jobs), workflow.dag

    def is_changed(job):
        reason = dag.reason(job)
        return bool(
            reason.forced
            or reason.updated_input
            or reason.input_changed
            or reason.params_changed
            or reason.code_changed
            or reason.software_stack_changed
        )

    def with_sources(job):
        """The job and those whose outputs it waits for."""
        closure, waiting = {job}, [job]
        for each in waiting:
            more = needed & {*dag.dependencies[each]} - closure
            closure |= more
            waiting += more
        return closure

    faults = []
    for job in jobs:
        finished = all(os.path.exists(output) for output in job.output)
        if not job.rule.name.endswith("finetune_run") or not finished:
            continue
        before = with_sources(job)
        if any(map(is_changed, before)):
            continue
        gone = sorted(
            output
            for other in before
            for output in other.output
            if not os.path.exists(output)
        )
        run, record = job.wildcards.run, job.output.train
        faults.append(inputs.retraining_error(run, record, gone))
    if faults:
        sys.exit("\n".join(map(str, faults)))


def stop_on_signals(runs):
    """Make runs save a checkpoint and stop at SIGTERM and SIGINT.

    Snakemake then starts no more jobs. Ctrl-C reaches the stages too, but not what an editor sends.
    """
    from moray.train.supervision import Request, Requests

    # Shells have the jobs that a script starts in the background ignore SIGINT.
    before = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)
        if callable(handler := signal.getsignal(number))
    }

    def stop(number, frame):
        # Another one, which may come while this one is handled, is for Snakemake alone.
        signal.signal(number, before[number])
        for run in runs:
            place = f"{EXPERIMENT.runs[run].ray.storage_path}/{run}"
            Requests(place).ask(Request.STOP)
        before[number](number, frame)

    if runs:
        for number in before:
            signal.signal(number, stop)


def drop_stale_locks():
    """Remove Snakemake's locks of a workflow that was killed, so that the same command continues.

    Every moray workflow in this folder shares a lock that the kernel releases when its process dies.
    A workflow that gets it exclusively is the only one alive, so Snakemake's locks are stale.
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
        # This file system has no such locks, so stale locks have to be removed by hand.
        pass
    return alive


check_python()
check_package()
EXPERIMENT, DATASET_FILES, MODEL_FILES, BENCHMARK_FILES = load()
STORES = {
    plan.store_name(EXPERIMENT, run, dataset): (run, dataset)
    for run, section in EXPERIMENT.runs.items()
    for dataset in section.datasets
}
BENCHMARKED = [
    run for run, section in EXPERIMENT.runs.items() if section.benchmarks.tasks
]
SAMPLED = [
    run
    for run in EXPERIMENT.runs
    if MODALITIES[plan.modality(EXPERIMENT, run)].has_samples
]
TRACKED = [run for run, section in EXPERIMENT.runs.items() if section.tracking]
PUSHED = [run for run, section in EXPERIMENT.runs.items() if section.push]
SMOKE_TEST = SimpleNamespace(run=SMOKE_TEST_RUN)
STAGES_OF_MODALITIES = [
    stage for modality in MODALITIES.values() for stage in modality.stages
]
# Of the smoke test, there is a rule only in its own config.
EXTRA_STAGES = [
    stage
    for stage, folder in extras.STAGES.items()
    if extras.is_there(folder)
    and (stage != "smoke_test" or SMOKE_TEST.run in EXPERIMENT.runs)
]
ALIVE = drop_stale_locks()


wildcard_constraints:
    dataset="[^/]+",
    model="[^/]+",
    run="[^/]+",
    store="[^/]+",
    sweep="[^/]+",
