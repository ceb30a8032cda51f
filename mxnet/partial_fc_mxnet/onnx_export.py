"""Exports a backbone to ONNX and compares the embeddings with MXNet's.

Shapes: N faces, H, W image size, E embedding.
"""

from collections.abc import Callable, Mapping

import mxnet as mx
import numpy as np

from .collectives import error_message

Params = Mapping[str, mx.nd.NDArray]


class OnnxExport:
    """Makes the ONNX file and compares it with MXNet on random images and on faces.

    Args:
        symbol: the backbone in float32: ``data`` (N, 3, H, W) to (N, E).
        image_size: H = W.
        context: device on which MXNet computes the expected embeddings.
        faces: (n, H, W, 3) uint8 RGB faces; None for no faces.
        metadata: callable, num_update -> the file's metadata by name; None for no metadata.
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
        """Returns the content of the ONNX file.

        Raises:
            ValueError: An operator has no counterpart in ONNX (the message names the node), or the embeddings differ
                from MXNet's by a cosine distance above 1e-4, see `partial_fc.export.parity.check_export`.
        """
        from partial_fc.export.parity import check_export

        content = self._content(arg_params, aux_params, num_update)
        check_export(content, self.faces, lambda faces: self._embed(arg_params, aux_params, faces), "MXNet")
        return content

    def validate_export(self, arg_params: Params, aux_params: Params) -> None:
        """Checks that onnxruntime loads the exported file of an untrained network; raises ValueError if not.

        Does not compare embeddings: some deep networks are chaotic before training, and MXNet's own embeddings change
        when a pixel changes by a ten-thousandth.
        """
        from partial_fc.export.parity import check_form

        check_form(self._content(arg_params, aux_params, 0))

    def _content(self, arg_params: Params, aux_params: Params, num_update: int) -> bytes:
        # Imported here: only rank 0 needs them, and loading takes longer than a step of a small network.
        from partial_fc.export.mxnet_symbol import read_symbol
        from partial_fc.export.onnx import to_onnx

        params = {name: array.asnumpy() for name, array in (*arg_params.items(), *aux_params.items())}
        nodes = read_symbol(self.symbol.tojson(), "this backbone")
        return to_onnx(nodes, params, (self.image_size, self.image_size), self.metadata(num_update))

    def _embed(self, arg_params: Params, aux_params: Params, faces: np.ndarray) -> np.ndarray:
        """Returns MXNet's embeddings (N, E) from the saved float32 parameters; the training may be in float16."""
        data = mx.nd.array(np.ascontiguousarray(faces.transpose(0, 3, 1, 2)), ctx=self.context, dtype=np.float32)
        arguments = {name: array.as_in_context(self.context) for name, array in arg_params.items()}
        statistics = {name: array.as_in_context(self.context) for name, array in aux_params.items()}
        try:
            arguments["data"] = data
            executor = self.symbol.bind(self.context, arguments, aux_states=statistics, grad_req="null")
            embeddings: np.ndarray = executor.forward(is_train=False)[0].asnumpy()
        except mx.MXNetError as error:
            side = self.image_size
            raise ValueError(f"the backbone does not run on images of {side}x{side}: {error_message(error)}") from None
        return embeddings
