rule finetune_run:
    """Training; checkpoints are in ray.storage_path, and Snakemake doesn't manage them."""
    input:
        start=training_start,
        start_dependencies=start_dependencies,
        stores=store_manifests,
    output:
        history="results/runs/{run}/history.jsonl",
        train="results/runs/{run}/train.json",
    log:
        "logs/finetune/{run}.log",
    benchmark:
        "results/benchmarks/finetune/{run}.tsv"
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "train")
    resources:
        **needs(workers="train"),
    params:
        code=lambda wildcards: code(
            "finetune", trained_as(wildcards.run), of=wildcards.run
        ),
        # Of the fingerprint, by which a run that didn't finish continues.
        training=lambda wildcards: code("finetune", trained_as(wildcards.run)),
        cfg=lambda wildcards: plan.train_config(EXPERIMENT, wildcards.run),
        execution=execution_of("train"),
    message:
        "finetune {wildcards.run}"
    script:
        "../scripts/finetune.py"
