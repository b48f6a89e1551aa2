"""What workers need, held against what a machine or a cluster has."""

from collections.abc import Mapping

from moray import machine
from moray.config.layout import Layout, lay_out_here
from moray.config.schema.sections import Ray
from moray.errors import UserError


def check_cores(settings: Ray, path: str, batch_size: int | None = None) -> None:
    """Check that this machine has the CPUs that local workers need.

    Raises:
        UserError: if it hasn't.
    """
    if settings.address == "local":
        layout = lay_out_here(settings, batch_size)
        wanted = {"CPU": settings.resources_per_worker.get("CPU", 0)}
        check_total(wanted, layout.num_workers, {"CPU": machine.cores()}, path, "this machine")


def worker_resources(settings: Ray, layout: Layout) -> dict[str, float]:
    """The resources that Ray reserves for each worker, by name."""
    wanted = {"GPU": 1.0} | settings.resources_per_worker
    return {name: share for name, share in wanted.items() if name != "GPU" or layout.use_gpu}


def check_total(
    wanted: Mapping[str, float], workers: int, there: Mapping[str, float], path: str, where: str
) -> None:
    """Check that there is enough of each resource for all workers.

    Args:
        wanted: what each worker needs, by name.
        workers: number of workers.
        there: what there is, by name.
        path: path of the `ray` section in the config.
        where: what has it, for the error.

    Raises:
        UserError: if there isn't.
    """
    for resource, share in wanted.items():
        available = there.get(resource, 0)
        if workers * share > available:
            raise UserError(
                f"{path}.num_workers",
                f"{workers} workers with {share:g} {resource} each need {workers * share:g} "
                f"{resource}, but {where} has {available:g}",
                f"lower num_workers or resources_per_worker.{resource}",
            )


def check_room_for_reading(
    wanted: Mapping[str, float], workers: int, there: Mapping[str, float], path: str, where: str
) -> None:
    """Check that the workers leave a CPU for the tasks that read their rows; see `check_total`.

    Raises:
        UserError: if they take all.
    """
    share, available = wanted.get("CPU", 0), there.get("CPU", 0)
    if workers * share + 1 > available >= workers * share:
        raise UserError(
            f"{path}.num_workers",
            f"{workers} workers with {share:g} CPU each leave none of the {available:g} CPU "
            f"that {where} has for reading, and data.loader: stream needs one",
            "lower num_workers or resources_per_worker.CPU",
        )


def room_for(wanted: Mapping[str, float], nodes: list[Mapping[str, float]]) -> int:
    """The number of workers that nodes have room for, each on one of them.

    Args:
        wanted: what each worker needs, by name.
        nodes: what each node has, by name.
    """
    return sum(
        min(int(node.get(name, 0) // share) for name, share in wanted.items()) for node in nodes
    )


def described(wanted: Mapping[str, float], workers: int, nodes: list[Mapping[str, float]]) -> str:
    """What is needed and what is there, for a line of text; see `room_for`."""
    each = ", ".join(f"{share:g} {name}" for name, share in wanted.items())
    total = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in wanted)
    plural = "worker" if workers == 1 else "workers"
    return f"{workers} {plural} with {each} each; the cluster has {total}"
