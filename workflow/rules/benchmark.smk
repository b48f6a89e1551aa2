rule benchmark:
    """Benchmarks of every run that names tasks."""
    input:
        expand("results/runs/{run}/benchmarks.json", run=BENCHMARKED),
    message:
        "every run has its benchmarks"


rule benchmark_run:
    """Benchmarks of lm-evaluation-harness, before and after training."""
    input:
        base=start_manifest,
        base_dependencies=start_dependencies,
        tuned="results/runs/{run}/model/manifest.json",
        files=lambda wildcards: by_content(BENCHMARK_FILES[wildcards.run]),
    output:
        report(
            "results/runs/{run}/benchmarks.json",
            caption="../report/benchmarks.rst",
            category="Scores",
            labels={"run": "{run}"},
        ),
    log:
        "logs/benchmark/{run}.log",
    benchmark:
        "results/benchmarks/benchmark/{run}.tsv"
    wildcard_constraints:
        run=any_of(BENCHMARKED),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(wildcards.run, "benchmarks")
    resources:
        **needs(minutes=1440, workers="benchmarks"),
    params:
        code=lambda wildcards: code("benchmark", of=wildcards.run),
        cfg=lambda wildcards: with_contents(
            plan.benchmark_config(EXPERIMENT, wildcards.run),
            BENCHMARK_FILES[wildcards.run],
        ),
        execution=execution_of("benchmarks"),
        # Batches that another version has computed don't count. It isn't compared with the last
        # execution, because it takes `input`.
        version=lambda wildcards, input: version_of("benchmark"),
    message:
        "benchmark {wildcards.run}"
    script:
        "../scripts/benchmark.py"
