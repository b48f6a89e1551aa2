rule tokenize:
    """A dataset as rows of tokens, shared by all runs with equal data settings."""
    input:
        unpack(store_input),
    output:
        "results/tokens/{store}/manifest.json",
    log:
        "logs/tokenize/{store}.log",
    benchmark:
        "results/benchmarks/tokenize/{store}.tsv"
    wildcard_constraints:
        store=any_of(stores_of("text")),
    conda:
        "../../envs/environment.yaml"
    threads: lambda wildcards: layout.threads_of_one(shared_cores(among=len(STORES)))
    resources:
        **needs(minutes=60, mb_per_minute=15),
    params:
        code=lambda wildcards: code(
            "tokenize", task_of(STORES[wildcards.store][0]), of=wildcards.store
        ),
        cfg=lambda wildcards: plan.store_config(EXPERIMENT, *STORES[wildcards.store]),
        # Not compared with the last execution, because they take `input`.
        proofs=lambda wildcards, input: EXPERIMENT.proofs_of_dataset(
            STORES[wildcards.store][1]
        ),
        # A store that was begun by another version isn't continued.
        version=lambda wildcards, input: version_of(
            "tokenize", task_of(STORES[wildcards.store][0])
        ),
        # Only errors name these.
        source=lambda wildcards, input: plan.dataset_config(
            EXPERIMENT, STORES[wildcards.store][1]
        ),
        files=lambda wildcards, input: DATASET_FILES[STORES[wildcards.store][1]],
        # Where it is executed doesn't change the store.
        execution=lambda wildcards, input: layout.store_execution(
            EXPERIMENT, STORES[wildcards.store][0], shared_cores()
        ),
    message:
        "tokenize {wildcards.store}"
    script:
        "../scripts/tokenize.py"
