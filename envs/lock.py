"""Write the versions that are installed in this environment to requirements.txt and its twin."""

from importlib.metadata import distributions
from pathlib import Path

# What pip brings of itself, and what only some machines have of PyTorch's wheels.
_LEFT_OUT = ("nvidia-", "triton", "cuda-")


def main() -> None:
    """Write both files beside this one."""
    pins = sorted(
        f"{name}=={distribution.version.partition('+')[0]}"
        for distribution in distributions()
        if (name := distribution.name.lower().replace("_", "-")) not in ("pip", "moray")
        and not name.startswith(_LEFT_OUT)
    )
    folder = Path(__file__).parent
    header = (
        "# Written by `make lock`. The conda twin, environment.yaml, holds the same versions.\n"
    )
    (folder / "requirements.txt").write_text(header + "".join(f"{pin}\n" for pin in pins))
    (folder / "environment.yaml").write_text(
        "# Written by `make lock`: the versions of requirements.txt in a conda environment.\n"
        "name: moray\nchannels: [conda-forge, nodefaults]\ndependencies:\n"
        "  - python=3.11\n  - pip\n  - pip:\n" + "".join(f"      - {pin}\n" for pin in pins)
    )


if __name__ == "__main__":
    main()
