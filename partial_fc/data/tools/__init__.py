"""Tools for face sets (train.rec, train.idx, property): `python -m partial_fc.data.tools --help`."""
