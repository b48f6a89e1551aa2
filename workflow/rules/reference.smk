rule reference:
    """Log-probabilities of answers under the start of preference runs, shared by them."""
    input:
        start=lambda wildcards: start_manifest(reference_run(wildcards)),
        start_dependencies=lambda wildcards: start_dependencies(
            reference_run(wildcards)
        ),
        tokens=lambda wildcards: prepared_manifest(reference_run(wildcards)),
    output:
        "results/reference/{reference}/manifest.json",
    log:
        "logs/reference/{reference}.log",
    benchmark:
        "results/benchmarks/reference/{reference}.tsv"
    wildcard_constraints:
        reference="[^/]+",
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(REFERENCES[wildcards.reference], "evaluate")
    resources:
        **needs(
            minutes=240,
            workers="evaluate",
            run=lambda wildcards: REFERENCES[wildcards.reference],
        ),
    params:
        code=lambda wildcards: code("reference", "language", of=wildcards.reference),
        cfg=lambda wildcards: plan.reference_config(
            EXPERIMENT, REFERENCES[wildcards.reference]
        ),
        # Not compared with the last execution, because they take `input`.
        run=lambda wildcards, input: REFERENCES[wildcards.reference],
        execution=lambda wildcards, input, threads: layout.evaluation_execution(
            EXPERIMENT, REFERENCES[wildcards.reference], "evaluate", threads
        ),
        # Batches that another version has computed don't count.
        version=lambda wildcards, input: version_of("reference", "language"),
    message:
        "reference {wildcards.reference}"
    script:
        "../scripts/reference.py"
