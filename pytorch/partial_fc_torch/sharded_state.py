"""The layer in torch.distributed.checkpoint.

Shapes: R ranks, C classes, L classes of this rank, K sub-centers of a class, E embedding.
"""

import json
from typing import Any

import torch

from .layer.module import ClassCenters


class ShardedState:
    """The state of a layer, which a different number of processes can load.

    ``torch.distributed.checkpoint.save({"layer": ShardedState(layer)}, checkpoint_id=folder)`` saves it, ``load`` with
    the same arguments loads it, both without copying the arrays. Each rank continues with its sampler. If the number of
    ranks has changed, each rank starts a new sampler, seeded by the number of updates.

    Args:
        layer: PartialFC or PartialFC_V2 with the collectives of the default process group.
    """

    def __init__(self, layer: ClassCenters):
        self._layer = layer

    def state_dict(self) -> dict[str, Any]:
        """Returns centers and row states, (C, E) or (C, 1) times K, sharded by rows, and margin's and samplers' states.

        Collectives: all-gather ``samplers``.
        """
        layer = self._layer
        samplers = layer.collectives.gather_object("samplers", layer.sampler.state())
        return {
            **{name: self._sharded(layer.rows(name)) for name in layer.widths},
            **{f"margin.{name}": value for name, value in layer.margin.state_dict().items()},
            **{f"objective.{name}": value for name, value in layer.objective.state_dict().items()},
            "progress": json.dumps({"num_update": layer.num_update, "samplers": samplers}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state that torch.distributed.checkpoint has read into the arrays of `state_dict`."""
        layer, progress = self._layer, json.loads(state["progress"])
        layer._store.invalidate()
        layer.num_update, samplers = progress["num_update"], progress["samplers"]
        if len(samplers) == layer.collectives.size:
            layer.sampler.restore(samplers[layer.collectives.rank])
        else:
            layer.sampler.restart(layer.num_update)

    def _sharded(self, rows: torch.Tensor) -> torch.Tensor:
        ranks, width = self._layer.collectives.size, self._layer.sub_centers * rows.shape[1]
        rows = rows.view(self._layer.num_local, width)  # by class, so that sub-centers stay together
        if ranks == 1:
            return rows
        # Imported here, because it takes half a second.
        from torch.distributed.tensor import DTensor, Shard, init_device_mesh
        from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

        # The wrapper has the offset, because DTensor divides an uneven number of rows differently than shard_of.
        local = LocalShardsWrapper([rows], [(self._layer.class_start, 0)]) if len(rows) else LocalShardsWrapper([], [])
        mesh = init_device_mesh(rows.device.type, (ranks,))
        shape = torch.Size((self._layer.num_classes, width))
        return DTensor.from_local(local, mesh, [Shard(0)], shape=shape, stride=(width, 1), run_check=False)
