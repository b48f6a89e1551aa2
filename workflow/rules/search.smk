from moray.extras.search.space import search_config

SEARCHED = [run for run, section in EXPERIMENT.runs.items() if section.search]


rule search:
    """Better settings for every run with a search, as overlays."""
    input:
        expand("results/searches/{run}/best.yaml", run=SEARCHED),
    message:
        "every search has its best settings"


rule search_run:
    """Settings of a run with the lowest validation loss; trials are trainings of that run."""
    input:
        start=start_manifest,
        start_dependencies=start_dependencies,
        stores=store_manifests,
    output:
        best="results/searches/{run}/best.yaml",
        trials="results/searches/{run}/trials.jsonl",
    log:
        "logs/search/{run}.log",
    benchmark:
        "results/benchmarks/search/{run}.tsv"
    wildcard_constraints:
        run=any_of(SEARCHED),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "train")
    resources:
        **needs(workers="train"),
    params:
        code=lambda wildcards: code("search", of=wildcards.run),
        # As in rule finetune_run, which then finds the best trial's checkpoint.
        training=lambda wildcards: code("finetune", trained_as(wildcards.run)),
        cfg=lambda wildcards: search_config(EXPERIMENT, wildcards.run),
        execution=execution_of("train"),
    message:
        "search {wildcards.run}"
    script:
        "../scripts/search.py"
