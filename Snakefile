"""moray: fine-tune models with Snakemake and Ray Train."""

from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/shared.smk"


rule finetune:
    """Every run's model, as a Hugging Face folder."""
    input:
        expand("results/runs/{run}/model/manifest.json", run=EXPERIMENT.runs),
    message:
        f"every run has its model{suggestion('eval')}"


rule eval:
    """Every run's model compared with its base, on held-out rows."""
    input:
        expand("results/runs/{run}/eval.json", run=EXPERIMENT.runs),
    message:
        f"every run is evaluated{suggestion('generate') if SAMPLED else ''}"


rule generate:
    """Held-out prompts or images, continued or classified by every run's model and its base."""
    input:
        expand("results/runs/{run}/samples.jsonl", run=SAMPLED),
    message:
        "every run has its samples"


rule cards:
    """Every run's model card with its evaluation and lineage."""
    input:
        expand("results/runs/{run}/README.md", run=EXPERIMENT.runs),
    message:
        "every run has its card"


rule track:
    """Every run in its trackers."""
    input:
        expand("results/runs/{run}/tracked.json", run=TRACKED),
    message:
        "every run is in its trackers"


rule push:
    """Every run that names a repository of the Hub, uploaded to it."""
    input:
        expand("results/runs/{run}/pushed.json", run=PUSHED),
    message:
        "every run is in its repository"


rule data:
    """Every run's rows: tokens or pixels."""
    input:
        sorted(
            {
                f"{folder}/manifest.json"
                for run in EXPERIMENT.runs
                for folder in plan.prepared_folders(EXPERIMENT, run)
            }
        ),
    message:
        "every run has its rows"


include: "workflow/rules/download.smk"
include: "workflow/rules/base_model.smk"
include: "workflow/rules/reference.smk"
include: "workflow/rules/teacher.smk"
include: "workflow/rules/finetune.smk"
include: "workflow/rules/export.smk"
include: "workflow/rules/choose.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/card.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/push.smk"
include: "workflow/rules/report.smk"


# Of runs on text or on images alone, and of what most runs do without.
for stage in (*STAGES_OF_MODALITIES, *EXTRA_STAGES):

    include: f"workflow/rules/{stage}.smk"


onstart:
    jobs = list(workflow.dag.needrun_jobs())
    check_finished_runs(jobs)
    stop_on_signals(check_runs(jobs))
    # Not in a job that an executor has started: it repeats what the workflow planned.
    if workflow.is_main_process:
        repeat(job.log[0] for job in jobs if job.log)
