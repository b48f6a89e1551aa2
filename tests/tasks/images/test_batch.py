import numpy as np
import torch
from pictures import colours
from transformers import ViTImageProcessorPil

from moray.model.image_processor import normalization, pixels_of
from moray.rows.store import Drawn, Rows
from moray.tasks.images.batch import IGNORED, Augmentation, Normalization, make_batch
from moray.tasks.images.rows import make_rows, row_type

PLAIN = Normalization.of({"scale": [1.0] * 3, "offset": [0.0] * 3})


def rows(count: int) -> Rows:
    images = [np.asarray(colours(4, 5, seed)).transpose(2, 0, 1) for seed in range(count)]
    return make_rows(images, list(range(count)), row_type((3, 4, 5)))


def test_pixels_are_those_of_the_models_image_processor() -> None:
    processor = ViTImageProcessorPil(
        size={"height": 6, "width": 5}, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7]
    )
    images = [colours(9, 8, seed) for seed in range(3)]
    stored = make_rows(pixels_of(images, processor, 3), [2, 0, 1], row_type((3, 6, 5)))
    batch = make_batch(stored, Normalization.of(normalization(processor, 3)))
    expected = processor(images, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(batch.pixels, expected, rtol=1e-5, atol=1e-5)
    assert batch.labels.tolist() == [2, 0, 1]


def test_padding_is_dropped() -> None:
    padded = np.concatenate([rows(2), np.zeros(2, row_type((3, 4, 5)))])
    batch = make_batch(padded, PLAIN)
    assert batch.pixels.tolist() == rows(2)["pixels"].astype(float).tolist()
    assert batch.labels.tolist() == [0, 1]


def test_a_batch_of_padding_alone_has_an_image_without_a_loss() -> None:
    batch = make_batch(np.zeros(3, row_type((3, 4, 5))), PLAIN)
    assert batch.pixels.shape == (1, 3, 4, 5)
    assert batch.labels.tolist() == [IGNORED]


def test_only_rows_of_training_are_augmented_each_by_its_own_position() -> None:
    shifts = Augmentation(shift=2)
    padded = np.concatenate([np.zeros(1, row_type((3, 4, 5))), rows(2)])
    batch = make_batch(padded, PLAIN, shifts, Drawn(0, np.array([99, 5, 6])))
    alone = [
        make_batch(rows(2)[n : n + 1], PLAIN, shifts, Drawn(0, np.array([5 + n]))) for n in (0, 1)
    ]
    assert torch.equal(batch.pixels, torch.cat([one.pixels for one in alone]))
    held_out = make_batch(rows(2), PLAIN, shifts, None)
    assert torch.equal(held_out.pixels, make_batch(rows(2), PLAIN).pixels)
    assert not torch.equal(batch.pixels, held_out.pixels)
