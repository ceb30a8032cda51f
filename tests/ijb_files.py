"""Writes an IJB protocol of a few random images, for the tests of partial_fc_tools.ijb."""

import cv2
import numpy as np

NAME = "ijbc"


def write(path, lines):
    """Writes a text file of lines."""
    path.write_text("".join(f"{line}\n" for line in lines))


def write_protocol(root, pictures=True, seed=0, templates=12, subjects=6):
    """Writes a protocol into the Path ``root``: three images per template, two media, two galleries.

    All templates have the same two media ids: two images of one and one image of the other, in alternation. Without
    ``pictures`` the images are empty files.
    """
    rng = np.random.default_rng(seed)
    (root / "meta").mkdir(parents=True)
    (root / "loose_crop").mkdir()
    ids = (100 + 7 * rng.permutation(templates)).tolist()
    landmarks, media = [], []
    base = np.array([(40, 60), (90, 58), (66, 84), (46, 110), (84, 108)])
    for number in range(3 * templates):
        template = number // 3
        path = root / "loose_crop" / f"{number}.png"
        if pictures:
            picture = cv2.resize(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8), (130 + number, 140))
            cv2.imwrite(str(path), picture)
        else:
            path.touch()
        points = (base + rng.normal(0, 4, (5, 2))).ravel()
        landmarks.append(f"{number}.png " + " ".join(f"{x:.3f}" for x in points) + f" {rng.uniform(0.3, 1):.3f}")
        media.append(f"{number}.png {ids[template]} {5 + (number % 3 + template % 2) // 2}")
    write(root / "meta" / f"{NAME}_name_5pts_score.txt", landmarks)
    write(root / "meta" / f"{NAME}_face_tid_mid.txt", media)
    subject = [template % subjects for template in range(templates)]
    gallery, probes = range(subjects), range(subjects, templates)
    pairs = [f"{ids[a]} {ids[b]} {int(subject[a] == subject[b])}" for a in gallery for b in probes]
    write(root / "meta" / f"{NAME}_template_pair_label.txt", pairs)
    for name, start in (("gallery_G1", 0), ("gallery_G2", 1)):
        rows = [f'{ids[a]},{subject[a]},"{a}, x.png"' for a in gallery if a % 2 == start]
        write(root / "meta" / f"{NAME}_1N_{name}.csv", ["TEMPLATE_ID,SUBJECT_ID,FILENAME", *rows])
    rows = [f"{ids[b]},{subject[b]},{b}.png" for b in probes for _ in range(2)]
    write(root / "meta" / f"{NAME}_1N_probe_mixed.csv", ["TEMPLATE_ID,SUBJECT_ID,FILENAME", *rows])
    return root


def edit(path, line, text):
    """Replaces a line, counted from 1; None removes it."""
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    write(path, lines)
