"""The backbone as an ONNX file that is known to give MXNet's embeddings.

Shapes: N faces, H, W image size, E embedding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import mxnet as mx
import numpy as np

from .errors import error_message

Params = Mapping[str, mx.nd.NDArray]
PIXEL_STEP = 1e-4  # of 255
NAME = "the ONNX file of this backbone"


class OnnxExport:
    """Makes the file, and holds it against MXNet on random images and on faces.

    Args:
        symbol: the backbone in float32: ``data`` (N, 3, H, W) to (N, E).
        image_size: H = W.
        context: where MXNet computes the embeddings that are wanted.
        faces: (n, H, W, 3) uint8 RGB, real ones; n may be 0.
        metadata: num_update -> what the file tells of itself, by name; None: nothing.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        image_size: int,
        context: mx.Context,
        faces: np.ndarray | None = None,
        metadata: Callable[[int], Mapping[str, str]] | None = None,
    ):
        self.symbol, self.image_size, self.context = symbol, image_size, context
        self.faces = np.empty((0, image_size, image_size, 3), np.uint8) if faces is None else faces
        self.metadata = metadata or (lambda num_update: {})

    def __call__(self, arg_params: Params, aux_params: Params, num_update: int) -> bytes:
        """The file's bytes.

        Raises:
            ValueError: an operator has no counterpart, or the file's embeddings are not MXNet's to a cosine distance of
                1e-4; names the node, or tells the distance. A network whose embeddings in MXNet alone move as far
                when pixels move by PIXEL_STEP cannot be compared with anything: that is a warning in the log.
        """
        from partial_fc.inference.parity import EmbeddingMismatch, check_onnx, random_faces

        content = self._content(arg_params, aux_params, num_update)
        faces = np.concatenate([random_faces((self.image_size, self.image_size)), self.faces])
        expected = self._embed(arg_params, aux_params, faces)
        try:
            check_onnx(content, NAME, faces, expected)
        except EmbeddingMismatch as error:
            self._excuse(error, expected, self._embed(arg_params, aux_params, faces + np.float32(PIXEL_STEP)))
        return content

    def _excuse(self, error: ValueError, expected: np.ndarray, moved: np.ndarray) -> None:
        """Raises the error, unless the network is at fault and not the file."""
        from partial_fc.inference.parity import MAX_COSINE_DISTANCE, cosine_distances

        distance = float(cosine_distances(expected, moved).max())
        if not distance > MAX_COSINE_DISTANCE:
            raise error
        logging.warning(
            "%s; but MXNet's own move by %.3g when pixels move by %g: this network is chaotic, as deep ones are before "
            "they are trained, and the file is kept",
            error,
            distance,
            PIXEL_STEP,
        )

    def try_out(self, arg_params: Params, aux_params: Params) -> None:
        """Makes the file of a network that is not trained yet, and looks whether onnxruntime takes it.

        Embeddings are not compared: some deep networks are chaotic before they are trained, and MXNet's differ from
        its own when a pixel moves by a ten-thousandth.

        Raises:
            ValueError: an operator has no counterpart.
        """
        from partial_fc.inference.parity import check_form

        check_form(self._content(arg_params, aux_params, 0), NAME)

    def _content(self, arg_params: Params, aux_params: Params, num_update: int) -> bytes:
        # Here, as only rank 0 needs them: loading them takes longer than a step of a small network.
        from partial_fc.export.mxnet_symbol import read_symbol
        from partial_fc.export.onnx import to_onnx

        params = {name: array.asnumpy() for name, array in (*arg_params.items(), *aux_params.items())}
        nodes = read_symbol(self.symbol.tojson(), "this backbone")
        return to_onnx(nodes, params, (self.image_size, self.image_size), self.metadata(num_update))

    def _embed(self, arg_params: Params, aux_params: Params, faces: np.ndarray) -> np.ndarray:
        """(N, E) by MXNet, of what is saved and not of the module in training, which may compute in float16."""
        data = mx.nd.array(np.ascontiguousarray(faces.transpose(0, 3, 1, 2)), ctx=self.context, dtype=np.float32)
        arguments = {name: array.as_in_context(self.context) for name, array in arg_params.items()}
        statistics = {name: array.as_in_context(self.context) for name, array in aux_params.items()}
        given = {**arguments, "data": data}
        try:
            executor = self.symbol.bind(self.context, given, aux_states=statistics, grad_req="null")
            embeddings: np.ndarray = executor.forward(is_train=False)[0].asnumpy()
        except mx.MXNetError as error:
            side = self.image_size
            raise ValueError(f"the backbone does not run on images of {side}x{side}: {error_message(error)}") from None
        return embeddings
