"""Build a validation file <name>.bin: from a list of pairs, or with pairs drawn from held-out identities.

  --pairs LIST --images FOLDER   lines 'pathA pathB 0|1', or as in LFW's pairs.txt, in the order of the list; each
                                 tenth of the list is a fold
  --set SET or --folder TREE     P random pairs, half of one person, half of two, in ten folds that share no person;
                                 use --identities to select labels that are not trained on

Image files are encoded as in `pack`; images of a SET are stored unchanged, and must be valid. Options of another source
are refused.
"""

import argparse
import os
from contextlib import closing
from functools import partial

from partial_fc.data.folder import encode_files, encoding_error, identity_folders, list_folder, others_text
from partial_fc.data.pairs_bin import write_pairs
from partial_fc.data.transforms import decode_rgb
from partial_fc.utils.cli import add_follow_links, add_force, add_seed, add_workers, whole_number
from partial_fc.utils.decoder_messages import DecoderMessages
from partial_fc.utils.progress import progress
from partial_fc.utils.staging import staged_files
from partial_fc.utils.text import amount, plural, remark, say

from .pack import add_image_options, image_options
from .pairs_draw import Item, draw_pairs
from .pairs_list import read_pairs_list
from .source import by_identity, image_size_of, open_set

EXAMPLE = (
    "/train_tmp/mine/lfw.bin --pairs pairs.txt --images lfw_aligned\n"
    "val.bin --set /train_tmp/held_out --identities 0:500 --num-pairs 6000"
)

DRAWN = ("identities", "num_pairs", "seed")
ENCODED = ("size", "resize", "quality", "format", "workers")
OPTIONS = {"pairs": ("images", *ENCODED), "set": DRAWN, "folder": (*DRAWN, *ENCODED)}  # options of each source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("out", metavar="OUT.bin", help="the new file")
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument("--pairs", metavar="LIST", help="text file of pairs; needs --images")
    sources.add_argument("--set", metavar="SET", help="draw pairs from this set")
    sources.add_argument("--folder", metavar="TREE", help="draw pairs from this tree, a folder for each identity")
    parser.add_argument("--images", metavar="FOLDER", help="folder of the files in --pairs")
    parser.add_argument("--identities", type=label_range, metavar="A:B", help="labels A to B - 1 (default: all)")
    parser.add_argument(
        "--num-pairs", type=whole_number(1), default=6000, metavar="P", help="pairs to draw (default: 6000)"
    )
    add_seed(parser)
    add_image_options(parser)
    add_follow_links(parser)
    add_workers(parser)
    add_force(parser)
    optional = ("images", *DRAWN, *ENCODED)
    parser.set_defaults(
        defaults={name: parser.get_default(name) for name in optional},
        **dict.fromkeys(optional),  # None: not on the command line
    )


def label_range(text: str) -> tuple[int, int]:
    """An argparse type: "A:B" -> (A, B), the labels from A to B - 1."""
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f"must be A:B, the labels from A to B - 1, got {text!r}")
    return int(first), int(last)


def run(args: argparse.Namespace) -> int:
    """Writes the file; returns the exit code."""
    fill_options(args)
    folder, name = os.path.split(args.out)
    with staged_files(folder, [name], args.force) as stage:
        images, same = listed_pairs(args) if args.pairs is not None else drawn_pairs(args)
        write_pairs(os.path.join(stage, name), images, same)
    say(f"{args.out}: {plural(len(same), 'pair')}, {amount(os.path.getsize(args.out))}")
    return 0


def fill_options(args: argparse.Namespace) -> None:
    """Sets missing options to their defaults. Raises ValueError for an option of another source."""
    source = next(name for name in OPTIONS if getattr(args, name) is not None)
    for name, default in args.defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif name not in OPTIONS[source]:
            option, others = name.replace("_", "-"), [other for other in OPTIONS if name in OPTIONS[other]]
            raise ValueError(f"--{option} belongs to --{' or --'.join(others)}, not to --{source}: leave it out")
    if source == "pairs" and args.images is None:
        raise ValueError("--pairs needs --images: the folder of the files in the list")


def listed_pairs(args: argparse.Namespace) -> tuple[list[bytes], list[bool]]:
    """Returns the 2P images of a list of files, and whether each pair shows one person."""
    pairs = read_pairs_list(args.pairs, args.images)
    issame = [same for _, same in pairs]
    if all(issame) or not any(issame):
        raise ValueError(
            f"{args.pairs} lists pairs of one kind: verification needs pairs of the same person and pairs of two people"
        )
    return encode_each([path for paths, _ in pairs for path in paths], args), issame


def drawn_pairs(args: argparse.Namespace) -> tuple[list[bytes], list[bool]]:
    """Draws pairs of the labels [A, B) of a set, or of the sorted folders [A, B) of a tree.

    Returns the 2P images, and whether each pair shows one person.
    """
    if args.folder is not None:
        names, others = identity_folders(args.folder)
        first, last = bounds(args.identities, len(names), args.folder)
        folders = [os.path.join(args.folder, name) for name in names[first:last]]
        contents = [list_folder(folder) for folder in folders]
        files_of = [[os.path.join(path, file) for file in content.images] for path, content in zip(folders, contents)]
        for name, content in zip(names[first:last], contents):
            others += (os.path.join(name, file) for file in content.others)
        if others:
            remark(others_text(others))
        files, same = draw(files_of, args)
        return encode_each(files, args), same
    with closing(open_set(args.set)) as records:
        first, last = bounds(args.identities, records.num_identities, records.rec_path)
        images_of = [list(positions) for label, positions in by_identity(records) if first <= label < last]
        chosen, same = draw(images_of, args)
        # An image in several pairs is one object, so that the pickle contains it once.
        images: dict[int, bytes] = {}
        size = image_size_of(records)
        with DecoderMessages() as messages:
            for position in dict.fromkeys(chosen):
                images[position], _ = records.read_image(position)
                try:
                    messages.checked(partial(decode_rgb, images[position], size))
                except ValueError as error:
                    fix = "use other --identities, or another --seed"
                    raise ValueError(f"{records.describe(position)} {error}: {fix}") from None
        return [images[position] for position in chosen], same


def draw(images_of: list[list[Item]], args: argparse.Namespace) -> tuple[list[Item], list[bool]]:
    """Draws pairs of the images of each identity: 2P images, and whether each pair shows one person."""
    pairs, same = draw_pairs([len(images) for images in images_of], args.num_pairs, args.seed)
    return [images_of[identity][number] for pair in pairs for identity, number in pair], same


def bounds(labels: tuple | None, identities: int, where: str) -> tuple[int, int]:
    """Returns the labels [A, B), or all labels for None. Raises ValueError for labels that do not exist."""
    if labels is None:
        return 0, identities
    if labels[1] > identities:
        raise ValueError(f"{where} has {identities} identities, none with the label {labels[1] - 1}")
    return labels


def encode_each(paths: list[str], args: argparse.Namespace) -> list[bytes]:
    """Returns the encoded image of every path; repeated files are encoded once. Raises ValueError."""
    folder = args.images if args.folder is None else args.folder
    unique = dict.fromkeys(paths)
    images: dict[str, bytes] = {}
    with progress(len(unique), "image", "encoding") as bar:
        for path, result in encode_files(folder, iter(unique), image_options(args), args.workers):
            if result.image is None:
                raise encoding_error(path, result)
            images[path] = result.image
            bar.update()
    return [images[path] for path in paths]
