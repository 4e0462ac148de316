"""Broken collators of packs with media, each a small re-creation of a public bug; each takes the batch of a right one."""

from __future__ import annotations

import torch


def rows_of(batch):
    """First row and number of rows of each picture."""
    sizes = batch["image_grid_thw"].prod(dim=1).tolist()
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return list(zip(starts, sizes, strict=True))


def pictures_exchanged(batch):
    """Features are joined in the order of a set: the features of two samples change places, and every shape is right."""
    order = list(range(len(batch["image_grid_thw"])))
    order[0], order[1] = order[1], order[0]
    places = rows_of(batch)
    pixels = [batch["pixel_values"][places[one][0] : sum(places[one])] for one in order]
    return {**batch, "pixel_values": torch.cat(pixels), "image_grid_thw": batch["image_grid_thw"][order]}


def grid_of_the_wrong_sample(batch):
    """Grids are turned about: height and width of two pictures, whose products are equal."""
    grids = batch["image_grid_thw"].clone()
    grids[[2, 0]] = grids[[0, 2]]
    return {**batch, "image_grid_thw": grids}


def one_picture_dropped(batch):
    """A collator that keeps one picture for each sample: the second of the last is lost."""
    start, _ = rows_of(batch)[-1]
    return {**batch, "pixel_values": batch["pixel_values"][:start], "image_grid_thw": batch["image_grid_thw"][:-1]}


def patches_in_another_order(batch):
    """Rows of patches as they lie in the picture, where the tower wants the patches of a token side by side."""
    pixels = batch["pixel_values"].clone()
    start, size = rows_of(batch)[1]
    pixels[start : start + size] = pixels[start : start + size].roll(1, dims=0)
    return {**batch, "pixel_values": pixels}


def features_of_a_text_only_neighbour(batch):
    """A blank picture for a text, so that every rank runs its tower, and it stays in the row."""
    size = rows_of(batch)[0][1]
    blank = torch.zeros_like(batch["pixel_values"][:size])
    grid = batch["image_grid_thw"][:1]
    return {
        **batch,
        "pixel_values": torch.cat([blank, batch["pixel_values"]]),
        "image_grid_thw": torch.cat([grid, batch["image_grid_thw"]]),
    }


def mrope_over_the_whole_row(batch):
    """The rope index is computed for the packed row: positions in space of a sample begin at the end of the last sample's."""
    positions = batch["position_ids"].clone()
    starts = (positions[0, 0] == 0).nonzero()[:, 0].tolist()
    for start, end in zip(starts[1:], [*starts[2:], positions.shape[-1]], strict=True):
        positions[1:, 0, start:end] += positions[1:, 0, :start].max() + 1
    return {**batch, "position_ids": positions}


def all_pictures_dropped(batch):
    """A collator of texts: placeholders are trained on as words."""
    return {key: value for key, value in batch.items() if key not in ("pixel_values", "image_grid_thw")}


def another_processor(batch):
    """Pixels without the mean and the deviation of the model."""
    return {**batch, "pixel_values": batch["pixel_values"] * 0.27 + 0.48}


class Broken:
    """A right collator and a fault after it."""

    def __init__(self, collator, fault):
        self.collator, self.fault, self.media, self.__name__ = collator, fault, collator.media, fault.__name__

    def __call__(self, packs):
        return self.fault(self.collator(packs))


class TowerOfAllPictures(torch.nn.Module):
    """Statistics over all pictures of the batch: each sample sees a little of every other's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids=None, position_ids=None, pixel_values=None, **batch):
        if pixel_values is not None:
            pixel_values = pixel_values + 0.1 * pixel_values.mean(dim=0, keepdim=True)
        return self.inner(input_ids=input_ids, position_ids=position_ids, pixel_values=pixel_values, **batch)
