"""Rule card."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.card import card

    card(
        model=Path(snakemake.input.model).parent,
        scores=Path(snakemake.input.scores),
        benchmarks=[Path(file) for file in snakemake.input.benchmarks],
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
    )
