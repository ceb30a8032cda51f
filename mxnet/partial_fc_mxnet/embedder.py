"""Embeddings of a list of encoded images by the module in training, each rank doing its share.

Shapes: N images, B batch, E embedding.
"""

from __future__ import annotations

from typing import Sequence

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.images import decode_rgb

from . import job


class Embedder:
    """Flip-summed embeddings, spread over the ranks.

    Args:
        module: SampleDistributeModule, bound.
        batch_size, image_size: B and H = W of what it is bound to.
    """

    def __init__(self, module, batch_size: int, image_size: int):
        self.module = module
        self.batch_size = batch_size
        self.image_size = image_size

    def __call__(self, name: str, images: list[bytes]) -> np.ndarray:
        """Embeds the images on all ranks together.

        Collectives: ``aux.*`` of SampleDistributeModule.average_aux, ``together.embed.<name>`` of job.together,
        all-gather ``embeddings.<name>``.

        Args:
            name: of the set.
            images: N encoded images, the same list on every rank.

        Returns:
            (N, E) float32 on every rank: the embedding of the image plus that of its mirror image.

        Raises:
            JobError: on every rank, where one met a damaged image.
        """
        self.module.average_aux()
        # Only what a rank does by itself is in it: a rank that failed would be missed in the all-gather.
        embeddings = job.together(f"embed.{name}", lambda: self._embed_share(name, images))
        if hvd.size() > 1:
            embeddings = hvd.allgather(mx.nd.array(embeddings), name=f"embeddings.{name}").asnumpy()
        return embeddings[: len(images)]

    def _embed_share(self, name: str, images: list[bytes]) -> np.ndarray:
        share = -(-len(images) // hvd.size())
        # Past the end the last image is embedded again, so that every rank sends the same number of rows.
        mine = np.minimum(np.arange(hvd.rank() * share, (hvd.rank() + 1) * share), len(images) - 1)
        parts = [self._embed(name, images, mine[i : i + self.batch_size]) for i in range(0, share, self.batch_size)]
        return np.concatenate(parts)

    def _embed(self, name: str, images: list[bytes], index: np.ndarray) -> np.ndarray:
        job.alive()
        pixels = decode_faces(images, index, self.image_size, name)
        batch = np.zeros((self.batch_size, 3, self.image_size, self.image_size), np.float32)
        batch[: len(index)] = pixels.transpose(0, 3, 1, 2)
        data = mx.nd.array(batch, ctx=self.module.context)
        total = self._forward(data) + self._forward(mx.nd.flip(data, axis=3))
        return total.asnumpy()[: len(index)]

    def _forward(self, data: mx.nd.NDArray) -> mx.nd.NDArray:
        self.module.forward(mx.io.DataBatch(data=[data]), is_train=False)
        return self.module.get_outputs()[0].copy()


def decode_faces(images: Sequence[bytes], index: Sequence[int], image_size: int, name: str) -> np.ndarray:
    """Decodes the images ``index`` of a validation set.

    Returns:
        (len(index), H, W, 3) uint8 RGB.

    Raises:
        ValueError: an image is damaged or of another size; names it.
    """
    pixels = np.empty((len(index), image_size, image_size, 3), np.uint8)
    for row, i in enumerate(index):
        try:
            pixels[row] = decode_rgb(images[i], (image_size, image_size))
        except ValueError as error:
            raise ValueError(f"image {i} of the validation set {name} {error}") from None
    return pixels
