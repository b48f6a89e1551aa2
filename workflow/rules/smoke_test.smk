rule smoke_test:
    """Nodes, network, reading, training and recovery of a machine or a cluster, in a table."""
    input:
        start=start_manifest(SMOKE_TEST),
        stores=store_manifests(SMOKE_TEST),
    output:
        "results/smoke-test/table.txt",
    log:
        "logs/smoke_test.log",
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: threads_of(SMOKE_TEST.run, "train")
    resources:
        **needs(workers="train", run=lambda wildcards: SMOKE_TEST.run),
    params:
        run=SMOKE_TEST.run,
        code=code("smoke_test"),
        cfg=plan.train_config(EXPERIMENT, SMOKE_TEST.run),
        # Not compared with the last execution, because it takes `input`.
        execution=lambda wildcards, input, threads: layout.train_execution(
            EXPERIMENT, SMOKE_TEST.run, threads
        ),
    message:
        "smoke test"
    script:
        "../scripts/smoke_test.py"
