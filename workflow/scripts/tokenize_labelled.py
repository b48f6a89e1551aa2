"""Rule tokenize_labelled."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.config.tasks import FORMATS, module_of

    cfg = snakemake.params.cfg
    task = FORMATS[cfg["format"]].task
    module_of(task, "tokenize_labelled").tokenize_labelled(
        dataset=Path(snakemake.input.dataset).parent,
        model=Path(snakemake.input.model).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=cfg,
        code=snakemake.params.version,
        execution=snakemake.params.execution,
    )
