"""Writes, damages and reads face sets."""

import os
import struct

import cv2
import numpy as np

from partial_fc.data.face_items import FaceItems
from partial_fc.data.face_records import FaceRecords
from partial_fc.data.item_batches import ItemBatches
from partial_fc.data.recordio.format import RecordHeader, RecordWriter, pack, unpack
from partial_fc.data.recordio.reader import RecordReader


def images_of(root):
    """Returns a set's [(encoded image, label)]."""
    records = FaceRecords(os.path.join(root, "train.rec"))
    images = [records.read_image(position) for position in range(records.num_images)]
    records.close()
    return images


def face_batches(rec, batch_size, image_size, skip_bad_images=0, seed=0, **arguments):
    """The batches of a set of images; other arguments are those of FaceItems and ItemBatches."""
    share = {name: arguments.pop(name) for name in ("shuffle", "rank", "size") if name in arguments}
    items = FaceItems(rec, image_size, seed=seed, **arguments)
    return ItemBatches(items, batch_size, seed=seed, skip_bad_items=skip_bad_images, **share)


def write_records(root, records):
    """Writes {key: (label or labels, id, id2, image)} as a set without a property file; returns its train.rec."""
    rec = os.path.join(root, "train.rec")
    os.makedirs(root, exist_ok=True)
    with RecordWriter(rec, rec[:-3] + "idx") as writer:
        for key, (label, ident, ident2, image) in records.items():
            writer.write(key, pack(RecordHeader(0, label, ident, ident2), image))
    return rec


def rewrite(rec, change):
    """Rewrites a set; `change(key, header, image)` returns the three new values."""
    reader = RecordReader(rec, rec[:-3] + "idx")
    records = [(int(key), *unpack(reader.read(int(key)))) for key in reader.index.keys_at(np.arange(len(reader)))]
    reader.close()
    with RecordWriter(rec, rec[:-3] + "idx") as writer:
        for record in records:
            key, header, image = change(*record)
            writer.write(key, pack(header, image))


def overwrite(rec, place, data):
    """Overwrites bytes of a file."""
    with open(rec, "r+b") as file:
        file.seek(place)
        file.write(data)


def picture(seed=0, size=(16, 16), channels=3):
    """Returns a smooth picture, which JPEG changes little."""
    shape = (3, 3, channels) if channels > 1 else (3, 3)
    colors = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    return cv2.resize(colors, size[::-1], interpolation=cv2.INTER_LINEAR)


def jpeg(seed):
    """Returns an encoded picture of 16x16."""
    return cv2.imencode(".jpg", picture(seed))[1].tobytes()


def with_orientation(jpeg, orientation, order="<", thumbnail=b""):
    """Returns the JPEG with an EXIF segment that has an orientation and a thumbnail."""
    tiff = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(
        order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0
    )
    content = b"Exif\0\0" + tiff + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + jpeg[2:]
