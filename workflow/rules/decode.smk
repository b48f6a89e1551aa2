rule decode:
    """A dataset as rows of pixels, shared by all runs on the same images and model."""
    input:
        unpack(store_input),
    output:
        "results/pixels/{store}/manifest.json",
    log:
        "logs/decode/{store}.log",
    benchmark:
        "results/benchmarks/decode/{store}.tsv"
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(minutes=60, mb_per_minute=15),
    params:
        code=lambda wildcards: code("decode", of=wildcards.store),
        # A store that was begun by another version isn't continued.
        version=lambda wildcards, input: version_of("decode"),
        cfg=lambda wildcards: plan.store_config(EXPERIMENT, *STORES[wildcards.store]),
        # Not compared with the last execution, because it takes `input`.
        proofs=lambda wildcards, input: EXPERIMENT.proofs_of_dataset(
            STORES[wildcards.store][1]
        ),
        # Where it is executed doesn't change the store.
        execution=lambda wildcards, input: layout.store_execution(
            EXPERIMENT, STORES[wildcards.store][0], shared_cores()
        ),
    message:
        "decode {wildcards.store}"
    script:
        "../scripts/decode.py"
