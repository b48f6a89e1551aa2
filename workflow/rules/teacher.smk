rule teacher:
    """A teacher's likeliest tokens in the place of each trained one, shared by the runs with it."""
    input:
        model=lambda wildcards: teacher_manifests(
            SimpleNamespace(run=taught_run(wildcards))
        ),
        dependencies=lambda wildcards: [
            f"{folder}/manifest.json"
            for folder in plan.teacher_dependencies(EXPERIMENT, taught_run(wildcards))
        ],
        base=lambda wildcards: f"results/models/{EXPERIMENT.base_model(taught_run(wildcards))}/manifest.json",
        tokens=tokens_to_teach,
    output:
        "results/teacher/{taught}/manifest.json",
    log:
        "logs/teacher/{taught}.log",
    benchmark:
        "results/benchmarks/teacher/{taught}.tsv"
    wildcard_constraints:
        taught="[^/]+",
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(taught_run(wildcards), "evaluate")
    resources:
        **needs(minutes=1440, workers="evaluate", run=taught_run),
    params:
        code=lambda wildcards: code("teacher", "language", of=wildcards.taught),
        cfg=lambda wildcards: plan.teacher_config(EXPERIMENT, taught_run(wildcards)),
        # Not compared with the last execution, because they take `input`.
        run=lambda wildcards, input: taught_run(wildcards),
        proofs=lambda wildcards, input: EXPERIMENT.runs[taught_run(wildcards)].proofs,
        execution=lambda wildcards, input, threads: layout.evaluation_execution(
            EXPERIMENT, taught_run(wildcards), "evaluate", threads
        ),
        # Batches that another version has computed don't count.
        version=lambda wildcards, input: version_of("teacher", "language"),
    message:
        "teacher {wildcards.taught}"
    script:
        "../scripts/teacher.py"
