"""Rule benchmark_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.extras.lm_eval.stage import benchmark

    benchmark(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        files=[Path(file) for file in snakemake.input.files],
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
    )
