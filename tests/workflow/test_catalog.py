"""What the Snakemake workflow catalog asks of a repository under "standardized usage"."""

import yaml
from project import ROOT, Project


def test_the_snakefile_of_the_catalog_plans_the_same_jobs(fresh: Project) -> None:
    own = fresh.planned("finetune")
    assert own
    assert fresh.planned("finetune", "--snakefile", "workflow/Snakefile") == own


def test_the_catalogs_settings_say_how_the_workflow_is_used() -> None:
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert {"conda", "apptainer"} <= usage["software-stack-deployment"].keys()
    assert "moray init" in usage["mandatory-flags"]["desc"]
    assert (ROOT / "config/README.md").is_file()
