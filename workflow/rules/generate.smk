rule generate_run:
    """Continuations of test prompts, before and after training."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        index=lambda wildcards: in_datasets(wildcards, "dataset.json"),
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
        "logs/generate/{run}.log",
    benchmark:
        "results/benchmarks/generate/{run}.tsv"
    wildcard_constraints:
        run=any_of(runs_of("text")),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "generate")
    resources:
        **needs(minutes=240, workers="generate"),
    params:
        code=lambda wildcards: code(
            "generate",
            *EXPERIMENT.runs[wildcards.run].generate.metrics,
            of=wildcards.run,
        ),
        cfg=lambda wildcards: plan.generate_config(EXPERIMENT, wildcards.run),
        execution=execution_of("generate"),
        # Batches that another version has computed don't count. It isn't compared with the last
        # execution, because it takes `input`.
        version=lambda wildcards, input: version_of(
            "generate", *EXPERIMENT.runs[wildcards.run].generate.metrics
        ),
    message:
        "generate {wildcards.run}"
    script:
        "../scripts/generate.py"
