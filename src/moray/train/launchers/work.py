"""What a launcher runs in each worker."""

from typing import Any

from moray.errors import UserError
from moray.train.engine.memory import uncollected
from moray.train.job import Job
from moray.workers.worker import Worker


def work(job: Job, worker: Worker) -> dict[str, Any]:
    """The loop in a worker. What the user can mend is returned: raising spends retries."""
    # Looked at while thousands of modules are imported, what they hold costs half a second.
    with uncollected():
        from moray.train.loop import train
    try:
        return train(job, worker)
    except UserError as error:
        return {"fault": error.args}
