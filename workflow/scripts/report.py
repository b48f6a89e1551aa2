"""Rule report."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.report import report

    output = Path(snakemake.output[0])
    report(results=output.parent, output=output, cfg=snakemake.params.cfg)
