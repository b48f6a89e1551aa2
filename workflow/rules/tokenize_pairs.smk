rule tokenize_pairs:
    """A preference dataset as rows of pairs, shared by all runs with equal data settings."""
    input:
        unpack(store_input),
    output:
        "results/tokens/{store}/manifest.json",
    log:
        "logs/tokenize/{store}.log",
    benchmark:
        "results/benchmarks/tokenize/{store}.tsv"
    wildcard_constraints:
        store=any_of(stores_of("preference")),
    conda:
        "../../envs/environment.yaml"
    threads: 8
    params:
        code=code("tokenize_pairs"),
        cfg=lambda wildcards: plan.store_config(EXPERIMENT, *STORES[wildcards.store]),
    message:
        "tokenize {wildcards.store}"
    script:
        "../scripts/tokenize_pairs.py"
