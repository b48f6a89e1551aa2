rule classify:
    """Labels of a few test texts, before and after training."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        store=prepared_manifest,
        rows=lambda wildcards: ancient(in_datasets(wildcards, "test.parquet")),
    output:
        samples=report(
            "results/runs/{run}/samples.jsonl",
            caption="../report/samples.rst",
            category="Samples",
            labels={"run": "{run}"},
        ),
        settings="results/runs/{run}/generation.json",
    log:
        "logs/classify/{run}.log",
    benchmark:
        "results/benchmarks/classify/{run}.tsv"
    wildcard_constraints:
        run=any_of(runs_of("labelled text")),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "generate")
    resources:
        **needs(minutes=240, workers="generate"),
    params:
        code=lambda wildcards: code(
            "classify", task_of(wildcards.run), of=wildcards.run
        ),
        cfg=lambda wildcards: plan.predict_config(EXPERIMENT, wildcards.run),
        execution=execution_of("generate"),
        # Batches that another version has computed don't count. It isn't compared with the last
        # execution, because it takes `input`.
        version=lambda wildcards, input: version_of("classify", task_of(wildcards.run)),
    message:
        "classify {wildcards.run}"
    script:
        "../scripts/classify.py"
