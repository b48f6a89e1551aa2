"""Rule classify."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.config.tasks import module_of
    from moray.provenance.manifest import read_manifest

    store = Path(snakemake.input.store).parent
    module_of(read_manifest(store)["task"], "classify").classify(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        store=store,
        documents=Path(snakemake.input.rows[0]),
        output=Path(snakemake.output.samples),
        settings=Path(snakemake.output.settings),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
    )
