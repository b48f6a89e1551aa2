"""Batches of images, and their random changes."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictures import colours
from transformers import ViTImageProcessorPil

from moray.rows.store import RowPositions, Rows
from moray.tasks.images.decode import make_rows, row_type
from moray.tasks.images.image_processor import normalization, pixels_of
from moray.tasks.images.task import IGNORED, Augmentation, Normalization, augment, make_batch

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
    batch = make_batch(padded, PLAIN, shifts, RowPositions(0, np.array([99, 5, 6])))
    alone = [
        make_batch(rows(2)[n : n + 1], PLAIN, shifts, RowPositions(0, np.array([5 + n])))
        for n in (0, 1)
    ]
    assert torch.equal(batch.pixels, torch.cat([one.pixels for one in alone]))
    held_out = make_batch(rows(2), PLAIN, shifts, None)
    assert torch.equal(held_out.pixels, make_batch(rows(2), PLAIN).pixels)
    assert not torch.equal(batch.pixels, held_out.pixels)


def images(count: int, height: int = 6, width: int = 5) -> NDArray[np.uint8]:
    """No two pixels of an image are equal, and none is zero."""
    one = np.arange(1, 3 * height * width + 1, dtype=np.uint8).reshape(3, height, width)
    return np.repeat(one[None], count, axis=0)


def at(*positions: int, seed: int = 0) -> RowPositions:
    return RowPositions(seed, np.array(positions))


BOTH = Augmentation(shift=2, flip=True)


def test_a_change_is_a_function_of_seed_and_position() -> None:
    whole = augment(images(40), BOTH, at(*range(40)))
    alone = [augment(images(1), BOTH, at(position))[0] for position in range(40)]
    assert np.array_equal(whole, np.stack(alone))
    assert len({image.tobytes() for image in whole}) > 15
    others = augment(images(40), BOTH, at(*range(40), seed=1))
    assert not np.array_equal(whole, others)
    later = augment(images(40), BOTH, at(*range(10**9, 10**9 + 40)))
    assert not np.array_equal(whole, later)


def test_without_keys_nothing_changes() -> None:
    before = images(4)
    assert np.array_equal(augment(before, Augmentation(), at(0, 1, 2, 3)), images(4))


def test_half_of_the_images_are_mirrored() -> None:
    before = images(200)
    after = augment(before, Augmentation(flip=True), at(*range(200)))
    mirrored = [np.array_equal(image, before[0][:, :, ::-1]) for image in after]
    kept = [np.array_equal(image, before[0]) for image in after]
    assert sum(mirrored) + sum(kept) == 200
    assert 70 < sum(mirrored) < 130


@pytest.mark.parametrize("shift", [1, 2, 10])
def test_images_move_by_up_to_so_many_pixels_and_black_comes_in(shift: int) -> None:
    before = images(300)
    after = augment(before, Augmentation(shift=shift), at(*range(300)))
    padded = np.pad(before[0], ((0, 0), (shift, shift), (shift, shift)))
    height, width = before.shape[2:]
    moves = {
        (shift - down, shift - right): padded[:, down : down + height, right : right + width]
        for down in range(2 * shift + 1)
        for right in range(2 * shift + 1)
    }
    by_content = {image.tobytes(): move for move, image in moves.items()}
    found = {by_content[image.tobytes()] for image in after}
    if shift == 1:
        assert found == set(moves)
    assert len(found) > 8


def test_a_part_of_an_image_is_resized_to_the_whole() -> None:
    before = images(300, height=8, width=8)
    after = augment(before, Augmentation(crop=0.5), at(*range(300)))
    assert after.shape == before.shape
    found = set()
    for image in after:
        values = image[0].astype(int) - 1
        rows, columns = np.unique(values // 8), np.unique(values % 8)
        # A window without gaps, of the same size in both directions, in the order of the image.
        assert rows.tolist() == list(range(rows[0], rows[-1] + 1))
        assert columns.tolist() == list(range(columns[0], columns[-1] + 1))
        assert len(rows) == len(columns) >= 4
        assert (np.diff(values, axis=0) >= 0).all()
        assert (np.diff(values, axis=1) >= 0).all()
        found.add((len(rows), rows[0], columns[0]))
    assert {size for size, _, _ in found} == {4, 5, 6, 7, 8}
    assert {top for size, top, _ in found if size == 4} == {0, 1, 2, 3, 4}


def test_one_key_does_not_change_what_another_draws() -> None:
    moved = augment(images(20), Augmentation(shift=1), at(*range(20)))
    both = augment(images(20), Augmentation(shift=1, flip=True), at(*range(20)))
    for one, other in zip(moved, both, strict=True):
        # A mirrored image moves by as much.
        assert (one == 0).any(axis=(0, 1)).sum() == (other == 0).any(axis=(0, 1)).sum()
