rule download:
    """A dataset, read from its source and split into three."""
    input:
        unpack(dataset_input),
    output:
        train="results/datasets/{dataset}/train.parquet",
        validation="results/datasets/{dataset}/validation.parquet",
        test="results/datasets/{dataset}/test.parquet",
        index="results/datasets/{dataset}/dataset.json",
    log:
        "logs/download/{dataset}.log",
    benchmark:
        "results/benchmarks/download/{dataset}.tsv"
    wildcard_constraints:
        dataset=any_of(EXPERIMENT.datasets),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: layout.threads_of_one(shared_cores())
    resources:
        **needs(minutes=240, mb_per_minute=60),
    params:
        code=lambda wildcards: code(
            "download",
            plan.source_of(EXPERIMENT, wildcards.dataset),
            of=wildcards.dataset,
        ),
        cfg=lambda wildcards: with_contents(
            plan.dataset_config(EXPERIMENT, wildcards.dataset),
            chain(*DATASET_FILES[wildcards.dataset].values()),
        ),
        # Not compared with the last execution, because they take `input`.
        proofs=lambda wildcards, input: EXPERIMENT.proofs_of_dataset(wildcards.dataset),
        # A dataset that another version was reading isn't continued.
        version=lambda wildcards, input: version_of(
            "download", plan.source_of(EXPERIMENT, wildcards.dataset)
        ),
        # Where it is executed doesn't change the dataset.
        execution=lambda wildcards, input: layout.dataset_execution(
            EXPERIMENT, wildcards.dataset, shared_cores()
        ),
    message:
        "download {wildcards.dataset}"
    script:
        "../scripts/download.py"
