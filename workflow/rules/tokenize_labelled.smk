rule tokenize_labelled:
    """A dataset of texts with labels as rows of tokens, shared by all runs on it and a model."""
    input:
        unpack(store_input),
    output:
        "results/labelled/{store}/manifest.json",
    log:
        "logs/tokenize_labelled/{store}.log",
    benchmark:
        "results/benchmarks/tokenize_labelled/{store}.tsv"
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(minutes=60, mb_per_minute=15),
    params:
        code=lambda wildcards: code(
            "tokenize_labelled",
            task_of(STORES[wildcards.store][0]),
            of=wildcards.store,
        ),
        cfg=lambda wildcards: plan.store_config(EXPERIMENT, *STORES[wildcards.store]),
        # A store that was begun by another version isn't continued.
        version=lambda wildcards, input: version_of(
            "tokenize_labelled", task_of(STORES[wildcards.store][0])
        ),
        # Where it is executed doesn't change the store.
        execution=lambda wildcards, input: layout.store_execution(
            EXPERIMENT, STORES[wildcards.store][0], shared_cores()
        ),
    message:
        "tokenize {wildcards.store}"
    script:
        "../scripts/tokenize_labelled.py"
