"""Rule tokenize_pairs."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.tokenize_pairs import tokenize_pairs

    tokenize_pairs(
        dataset=Path(snakemake.input.dataset).parent,
        model=Path(snakemake.input.model).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
    )
