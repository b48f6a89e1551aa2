from pathlib import Path

import pytest

from moray.machine import gpus


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", ["0", "1"]),
        ("3", ["3"]),
        ("GPU-8932f937,GPU-46ebc3a1", ["GPU-8932f937", "GPU-46ebc3a1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_the_gpus_are_those_that_cuda_would_show(
    visible: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == expected


def test_without_the_variable_the_machines_devices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = [
        path for path in Path("/dev").iterdir() if path.name.removeprefix("nvidia").isdigit()
    ]
    assert gpus() == [str(number) for number in range(len(devices))]
