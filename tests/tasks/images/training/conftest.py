"""Digits as rows of a ViT and of a ResNet."""

from pathlib import Path

import pytest
from jobs import Make, job_maker
from pictures import RESNET, VIT, make_digits


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, a ViT, and `pixels`."""
    return make_digits(tmp_path_factory.mktemp("vit"), **VIT)


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, a ResNet on images of 16 x 16, and `pixels`."""
    return make_digits(tmp_path_factory.mktemp("resnet"), image_size=16, **RESNET)


@pytest.fixture(scope="module")
def make_vit_job(vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """See `job_maker`."""
    return job_maker(vit, tmp_path_factory.mktemp("vit jobs"), "pixels")


@pytest.fixture(scope="module")
def make_resnet_job(resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """See `job_maker`."""
    return job_maker(resnet, tmp_path_factory.mktemp("resnet jobs"), "pixels")
