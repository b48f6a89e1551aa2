"""One function a rule, callable without the workflow: `python -m moray.stages.finetune --help`."""
