"""Write the versions that are installed in this environment: those to run, or those for the tests.

python envs/lock.py       requirements.txt and its conda twin
python envs/lock.py dev   requirements-dev.txt: what isn't in requirements.txt
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

# What pip brings of itself, and what only some machines have of PyTorch's wheels.
_LEFT_OUT = ("nvidia-", "triton", "cuda-")
_FOLDER = Path(__file__).parent
_RUN = _FOLDER / "requirements.txt"


def main() -> None:
    """Write beside this file."""
    pins = sorted(
        f"{name}=={distribution.version.partition('+')[0]}"
        for distribution in distributions()
        if (name := distribution.name.lower().replace("_", "-")) not in ("pip", "moray")
        and not name.startswith(_LEFT_OUT)
    )
    if sys.argv[1:] == ["dev"]:
        already = _RUN.read_text().splitlines()
        pins = [pin for pin in pins if pin not in already]
        header = "# Written by `make lock`: what tests and checks need beside requirements.txt.\n"
        (_FOLDER / "requirements-dev.txt").write_text(header + "".join(f"{pin}\n" for pin in pins))
        return
    header = (
        "# Written by `make lock`. The conda twin, environment.yaml, holds the same versions.\n"
    )
    _RUN.write_text(header + "".join(f"{pin}\n" for pin in pins))
    (_FOLDER / "environment.yaml").write_text(
        "# Written by `make lock`: the versions of requirements.txt in a conda environment.\n"
        "name: moray\nchannels: [conda-forge, nodefaults]\ndependencies:\n"
        "  - python=3.11\n  - pip\n  - pip:\n" + "".join(f"      - {pin}\n" for pin in pins)
    )


if __name__ == "__main__":
    main()
