"""Choose the network interface for the traffic between workers of several nodes."""

from collections.abc import Callable

# Of PyTorch's backends.
_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_setup(given: str | None) -> Callable[[], None]:
    """A function that each process of a job calls first on its node.

    By themselves, the backends look up the host's name, which often gives an address that other
    nodes can't reach. What a node's environment says comes first.

    Args:
        given: name of the interface; None for the one with the node's address.
    """
    variables = _VARIABLES

    # Nested, so that it is pickled by value: nodes may lack this package, which is checked later.
    def set_interface() -> None:
        import os

        import psutil
        import ray.util

        node = ray.util.get_node_ip_address()
        found = [
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address == node for address in addresses)
        ]
        for name in [given] if given else found:
            for variable in variables:
                os.environ.setdefault(variable, name)

    return set_interface
