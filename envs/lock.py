"""Write the versions that are installed in this environment: those to run, or those for the tests.

python envs/lock.py       requirements.txt and its conda twin; requirements-cuda.txt if PyTorch is a
                          build for CUDA
python envs/lock.py dev   requirements-dev.txt: what isn't in requirements.txt
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

# What only PyTorch's build for CUDA brings.
_CUDA = ("nvidia-", "triton", "cuda-")
_FOLDER = Path(__file__).parent
_RUN = _FOLDER / "requirements.txt"


def main() -> None:
    """Write beside this file."""
    installed = sorted(
        f"{name}=={distribution.version.partition('+')[0]}"
        for distribution in distributions()
        if (name := distribution.name.lower().replace("_", "-")) not in ("pip", "moray")
    )
    pins = [pin for pin in installed if not pin.startswith(_CUDA)]
    if sys.argv[1:] == ["dev"]:
        already = _RUN.read_text().splitlines()
        pins = [pin for pin in pins if pin not in already]
        header = "# Written by `make lock`: what tests and checks need beside requirements.txt.\n"
        (_FOLDER / "requirements-dev.txt").write_text(header + "".join(f"{pin}\n" for pin in pins))
        return
    if cuda := [pin for pin in installed if pin.startswith(_CUDA)]:
        header = "# Written by `make lock`: what PyTorch's build for CUDA brings, as constraints.\n"
        (_FOLDER / "requirements-cuda.txt").write_text(header + "".join(f"{pin}\n" for pin in cuda))
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
