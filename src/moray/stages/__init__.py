"""One function per rule. To run one alone: `python -m moray.stages.finetune --help`."""
