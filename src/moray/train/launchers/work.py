"""What a launcher runs in each worker."""

from typing import Any

from moray.errors import UserError
from moray.train.job import Job, Place
from moray.train.memory import uncollected


def work(job: Job, place: Place) -> dict[str, Any]:
    """The loop in a worker. What the user can mend is returned: raising spends retries."""
    # Looked at while thousands of modules are imported, what they hold costs half a second.
    with uncollected():
        from moray.train.worker import train
    try:
        return train(job, place)
    except UserError as error:
        return {"fault": error.args}
