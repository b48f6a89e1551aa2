rule evaluate:
    """Scores on the test split, before and after training."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        stores=prepared_manifests,
        # If they change, so do the stores and the models.
        compared=lambda wildcards: ancient(compared_splits(wildcards)),
    output:
        report(
            "results/runs/{run}/eval.json",
            caption="../report/scores.rst",
            category="Scores",
            labels={"run": "{run}"},
        ),
    log:
        "logs/evaluate/{run}.log",
    benchmark:
        "results/benchmarks/evaluate/{run}.tsv"
    wildcard_constraints:
        run=any_of(EXPERIMENT.runs),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "evaluate")
    resources:
        **needs(minutes=240, workers="evaluate"),
    params:
        code=lambda wildcards: code(
            "evaluate", task_of(wildcards.run), of=wildcards.run
        ),
        cfg=lambda wildcards: plan.evaluate_config(EXPERIMENT, wildcards.run),
        execution=execution_of("evaluate"),
        # Batches that another version has computed don't count. It isn't compared with the last
        # execution, because it takes `input`.
        version=lambda wildcards, input: version_of("evaluate", task_of(wildcards.run)),
    message:
        "evaluate {wildcards.run}"
    script:
        "../scripts/evaluate.py"
