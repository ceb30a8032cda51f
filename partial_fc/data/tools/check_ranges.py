"""Checks that images and identity records match, for `check` (see face_records.py for the layout).

Shapes: K records by key, N images, C identities, n existing identity records.
"""

from __future__ import annotations

import numpy as np

from partial_fc.data.identity_ranges import FLOAT32_EXACT, exact_ranges, rounding_reach

from .check_index import IDENTITY, IMAGE, INDEX, Problem, at
from .check_records import BROKEN, RANGE
from .check_records import IMAGE as IMAGE_RECORD

FEW_IDS = 0.01  # share of images with another id than their key; with more of them ids have no meaning in this set


class Records:
    """The content of the records: ascending `keys`, `offsets`, `kinds`, `labels`, `other_id`, all (K,).

    `ranges`: RANGES (n,) of the records that contain a range, by key.
    """

    def __init__(
        self,
        keys: np.ndarray,
        offsets: np.ndarray,
        kinds: np.ndarray,
        labels: np.ndarray,
        other_id: np.ndarray,
        ranges: np.ndarray,
    ):
        self.keys, self.offsets, self.kinds, self.labels, self.other_id = keys, offsets, kinds, labels, other_id
        self.ranges = ranges

    def row(self, key: int) -> int:
        """Returns the row of a key, -1 if it is missing."""
        row = int(np.searchsorted(self.keys, key))
        return row if row < len(self.keys) and self.keys[row] == key else -1

    def name(self, row: int, what: str) -> str:
        """Returns the message of a problem of a record."""
        return at(int(self.keys[row]), int(self.offsets[row]), what)


class Identities:
    """The identities and images of a set.

    Attributes:
        problems: the problems of identities and labels.
        count, images: C and N.
        is_known: `count` and `images` are certain.
    """

    def __init__(self, records: Records):
        self.records = records
        self.problems: list[Problem] = []
        self.count, self.is_known = 0, True
        zero = records.row(0)
        if len(records.ranges):
            self._with_identity_records()
        elif zero < 0 or records.kinds[zero] == IMAGE_RECORD:
            self._by_headers()
        else:
            self.is_known, self.images = False, int(np.sum(records.kinds == IMAGE_RECORD))
            self.problems.append(Problem(INDEX, "key 0: record 0 cannot be read: the images' identities are unknown"))
        self._check_ids()

    def _add(self, row: int, what: str, part: str = IDENTITY) -> None:
        self.problems.append(Problem(part, self.records.name(row, what)))

    # Sets of MXNet's im2rec: no identity records, every record an image -----------------------------

    def _by_headers(self) -> None:
        records = self.records
        rows = np.flatnonzero(records.kinds == IMAGE_RECORD)
        labels = records.labels[rows]
        wrong = ~((labels >= 0) & (labels < FLOAT32_EXACT) & (labels == np.floor(labels)))
        for row, label in zip(rows[wrong].tolist(), labels[wrong].tolist()):
            self._add(row, f"has label {label:g}, expected an integer below 2^24", IMAGE)
        self.images = len(records.keys)
        self.count = int(labels[~wrong].max()) + 1 if (~wrong).any() else 0

    # insightface's layout --------------------------------------------------------------------------

    def _with_identity_records(self) -> None:
        records = self.records
        held = records.ranges[records.ranges["key"] != 0]
        first, last = self._identity_keys(held["key"])
        self.count = last - first
        inside = (held["key"] >= first) & (held["key"] < last)
        for key in held["key"][~inside].tolist():
            self._add(records.row(key), f"is an identity record, but those have the keys {first} to {last - 1}")
        missing = self._missing(first, last)
        beyond = (records.keys >= last) & (records.kinds == IMAGE_RECORD)
        for row in np.flatnonzero(beyond).tolist():
            self._add(row, "is after the identity records and belongs to no identity")
        rows = np.flatnonzero((records.keys > 0) & (records.keys < first) & (records.kinds != RANGE))
        self.images = len(rows)
        labels = held["key"][inside] - first
        owners, labels = self._owners(labels, self._ranges(held[inside], first, rows), first, records.keys[rows])
        self._check_images(rows, owners, labels, missing)

    def _identity_keys(self, keys: np.ndarray) -> tuple[int, int]:
        """Returns the keys [first, last) of identity records: those of record 0, or the existing ones, `keys` (n,)."""
        most = 2 * len(self.records.keys)  # a single wrong key must not imply a huge number of identities
        existing = (int(keys[0]), min(int(keys[-1]) + 1, int(keys[0]) + most)) if len(keys) else (0, 0)
        zero = self.records.ranges[:1]
        if zero["key"][0] != 0:
            row = self.records.row(0)
            what = "is not in the index" if row < 0 else "is not the range of the identity records' keys"
            self.problems.append(Problem(INDEX, f"key 0: record 0 {what}"))
            self.is_known = False
            return existing
        with np.errstate(invalid="ignore"):  # NaN
            ranges, exact = exact_ranges(zero)
        stated = (int(ranges[0, 0]), int(ranges[0, 1])) if exact[0] else existing
        rounds = (np.array(stated).astype(np.float32) == zero["labels"][0]).all()
        # If most identity records are not in the range of record 0, it is record 0 that is wrong.
        num_matching = int(np.sum((keys >= stated[0]) & (keys < stated[1])))
        if rounds and num_matching > len(keys) // 2 and stated[1] - stated[0] <= most:
            return stated
        first, last = zero["labels"][0].tolist()
        what = f"has the keys {first:.0f} to {last:.0f} of the identity records, which do not exist"
        found = f"; {len(keys)} identity records exist, {existing[0]} to {existing[1] - 1}" if len(keys) else ""
        self._add(self.records.row(0), what + found)
        return existing

    def _missing(self, first: int, last: int) -> np.ndarray:
        """Returns the labels of identities whose records are missing."""
        wanted = np.arange(first, last)
        rows = np.minimum(np.searchsorted(self.records.keys, wanted), len(self.records.keys) - 1)
        there = self.records.keys[rows] == wanted
        for key in wanted[~there].tolist():
            self.problems.append(Problem(INDEX, f"key {key}: the record of identity {key - first} is not in the index"))
        for row in rows[there & (self.records.kinds[rows] == IMAGE_RECORD)].tolist():
            self._add(row, f"should be the record of identity {self.records.keys[row] - first}, but contains an image")
        return np.flatnonzero(~there | (self.records.kinds[rows] != RANGE))

    def _ranges(self, held: np.ndarray, first: int, rows: np.ndarray) -> np.ndarray:
        """Returns ranges (n, 2) int64 of identity records; the images are in `rows` (N,)."""
        with np.errstate(invalid="ignore"):  # NaN
            ranges, exact = exact_ranges(held)
        keys = self.records.keys[rows]
        for place in np.flatnonzero(~exact).tolist():
            label = int(held["key"][place]) - first
            for side, value in enumerate(held["labels"][place].tolist()):
                ranges[place, side] = self._exact_key(value, label + side, first, keys, rows)
        return ranges

    def _exact_key(self, value: float, label: int, first: int, keys: np.ndarray, rows: np.ndarray) -> int:
        """Returns the key, among those that round to `value`, where the images' labels reach `label`."""
        if not 0 <= value < 2.0**53:  # NaN too
            return -1
        if value < FLOAT32_EXACT:
            return int(value)
        reach = rounding_reach(value)
        low, high = np.searchsorted(keys, (int(value) - reach, int(value) + reach + 1))
        reached = np.flatnonzero(self.records.labels[rows[low:high]] >= label)
        key = int(keys[low + reached[0]]) if len(reached) else min(first, int(value) + reach)
        return key if np.float32(key) == np.float32(value) else int(value)

    def _owners(
        self, labels: np.ndarray, ranges: np.ndarray, first: int, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each image the number of ranges that contain it, (N,), and its identity if that is one, (N,).

        Adds problems for ranges (n, 2) of the identities `labels` (n,) that are invalid or lack images. `keys` (N,) are
        those of the images.
        """
        outside = (ranges[:, 0] < 1) | (ranges[:, 1] > first) | (ranges[:, 0] > ranges[:, 1])
        begin, end = np.searchsorted(keys, ranges[:, 0]), np.searchsorted(keys, ranges[:, 1])
        short = ~outside & (end - begin != ranges[:, 1] - ranges[:, 0])
        for place in np.flatnonzero(outside | short).tolist():
            start, stop = ranges[place].tolist()
            what = f"has {stop - start} images, the keys {start} to {stop - 1}, of which the index lists "
            what += f"{end[place] - begin[place]}"
            if outside[place]:
                what = f"has the range [{start}, {stop}), outside the images' keys [1, {first})"
            self._add(self.records.row(first + int(labels[place])), f"identity {labels[place]} {what}")
        owners, sums = np.zeros((2, len(keys) + 1), np.int64)
        for places, sign in ((begin[~outside], 1), (end[~outside], -1)):
            np.add.at(owners, places, sign)
            np.add.at(sums, places, sign * labels[~outside])
        return np.cumsum(owners)[:-1], np.cumsum(sums)[:-1]

    def _check_images(self, rows: np.ndarray, owners: np.ndarray, labels: np.ndarray, missing: np.ndarray) -> None:
        """Checks that every image, `rows` (N,), belongs to one identity and has its label."""
        stated = self.records.labels[rows]
        orphans = owners == 0
        # The missing record of their identity is reported already: one message for all images.
        explained = orphans & (np.isin(stated, missing) | ((not self.is_known) & (stated >= self.count)))
        if explained.any():
            count, keys = int(explained.sum()), self.records.keys[rows[explained]]
            what = f"keys {keys[0]} to {keys[-1]}: {count} images belong to identities whose records are missing"
            self.problems.append(Problem(IDENTITY, what))
        for place in np.flatnonzero((owners != 1) & ~explained).tolist():
            what = f"belongs to {owners[place]} identities" if owners[place] else "belongs to no identity"
            self._add(int(rows[place]), what)
        wrong = (owners == 1) & (self.records.kinds[rows] != BROKEN) & (stated != labels.astype(np.float32))
        for place in np.flatnonzero(wrong).tolist():
            what = f"has label {stated[place]:g} in its header, but is in the range of identity {labels[place]}"
            self._add(int(rows[place]), what, IMAGE)

    def _check_ids(self) -> None:
        """Finds swapped rows: most writers store the key of an image as id in its header."""
        rows = np.flatnonzero((self.records.kinds == IMAGE_RECORD) & self.records.other_id)
        images = int(np.sum(self.records.kinds == IMAGE_RECORD))
        if len(rows) <= max(2, FEW_IDS * images) and len(rows) < images / 2:
            for row in rows.tolist():
                self._add(row, "has the id of another image in its header: rows of the index are swapped", INDEX)
