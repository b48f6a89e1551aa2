"""A package for each task: what the rows of a store mean, and what else is the task's own.

The core imports their modules by name: of a task `task`, `evaluation`, for text `tokens`, and if
its facts say so `checks`; of the task that has what its modality shares, `base_model`, `export`,
`checks`, and if its facts say so `report`. See `config.tasks` and docs/tasks.md.
"""
