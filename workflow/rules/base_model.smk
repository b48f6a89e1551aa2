rule base_model:
    """A base model, as a Hugging Face folder."""
    input:
        files=model_input,
    output:
        "results/models/{model}/manifest.json",
    log:
        "logs/base_model/{model}.log",
    benchmark:
        "results/benchmarks/base_model/{model}.tsv"
    wildcard_constraints:
        model=any_of(EXPERIMENT.models),
    conda:
        "../../envs/environment.yaml"
    resources:
        **needs(
            minutes=240,
            mb_per_minute=300,
            least_mb=lambda wildcards: unread_model_mb(
                EXPERIMENT.models[wildcards.model], MODEL_FILES[wildcards.model]
            ),
        ),
    params:
        code=lambda wildcards: code(
            "base_model",
            plan.modality_of_model(EXPERIMENT, wildcards.model),
            of=wildcards.model,
        ),
        cfg=lambda wildcards: with_contents(
            plan.model_config(EXPERIMENT, wildcards.model),
            MODEL_FILES[wildcards.model],
        ),
        # Not compared with the last execution, because they take `input`.
        modality=lambda wildcards, input: plan.modality_of_model(
            EXPERIMENT, wildcards.model
        ),
        proofs=lambda wildcards, input: EXPERIMENT.proofs_of_model(wildcards.model),
    message:
        "base model {wildcards.model}"
    script:
        "../scripts/base_model.py"
