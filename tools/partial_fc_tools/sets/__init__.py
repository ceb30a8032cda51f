"""Tools for face sets (train.rec, train.idx, property): `partial-fc sets --help`."""
