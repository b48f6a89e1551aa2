"""What jobs use: cores and GPUs of this machine, a Ray cluster, and room on other machines."""

from moray import machine
from moray.config import layout
from moray.stages.resources import Job, unread_model_mb


def shared_cores(among=2):
    """The cores that jobs share; None if there is one job, or if they run elsewhere."""
    here = workflow.local_exec and workflow.is_main_process
    return workflow.cores if here and among > 1 else None


def threads_of(run, stage):
    return layout.threads(EXPERIMENT, run, stage, shared_cores())


def execution_of(stage):
    """The settings for starting workers; not compared, because the function takes `input`."""

    def execution(wildcards, input, threads):
        if stage == "train":
            return layout.train_execution(EXPERIMENT, wildcards.run, threads)
        return layout.evaluation_execution(EXPERIMENT, wildcards.run, stage, threads)

    return execution


def own_run(wildcards):
    return wildcards.run


def needs(minutes=60, mb_per_minute=None, workers=None, run=own_run, least_mb=None):
    """The resources of a rule, for executors whose jobs run elsewhere; GPUs and Ray count here too.

    `set-resources` of a profile overrides each.

    Args:
        minutes: time for small inputs; trainings have `train.runtime`.
        mb_per_minute: how much of its inputs each of its threads reads; None if that isn't long.
        workers: the section of the run whose workers it starts.
        run: the name of that run, by wildcards.
        least_mb: memory that doesn't depend on its inputs, by wildcards.
    """

    def job(wildcards, input, threads):
        name = run(wildcards) if workers else ""
        least = least_mb(wildcards) if least_mb else 0
        return Job(EXPERIMENT, tuple(input), threads, name, workers, least)

    def memory(wildcards, input, threads, attempt):
        # A training is tried again because its time was over, and has a key.
        times = 1 if workers == "train" else attempt
        return job(wildcards, input, threads).memory_mb() * times

    def runtime(wildcards, input, threads):
        return job(wildcards, input, threads).minutes(minutes, mb_per_minute)

    def disk(wildcards, input, threads):
        return job(wildcards, input, threads).disk_mb()

    resources = {"mem_mb": memory, "runtime": runtime, "disk_mb": disk}
    if workers:
        resources["gpu"] = lambda wildcards: layout.gpus(
            EXPERIMENT, run(wildcards), workers
        )
        resources["ray"] = lambda wildcards: int(
            layout.on_cluster(EXPERIMENT, run(wildcards))
        )
    return resources


def limit_resources():
    """Make jobs wait for each other if they need more GPUs than this machine has, or the cluster.

    Two stages at once on a Ray cluster would wait for each other's workers. `--resources gpu=N ray=N`
    overrides this. Executors whose jobs run elsewhere need it, because Snakemake doesn't know its
    executor yet.
    """
    for name, number in (("gpu", len(machine.gpus())), ("ray", 1)):
        if name not in workflow.global_resources:
            workflow.register_resource(name, number)


limit_resources()
