"""The set of utterances as filter banks, in a folder that is written once.

root/<part>-frames.npy     (F, BANDS) float16, log energies of Kaldi's filter banks every 10 ms, utterance by utterance
root/<part>-starts.npy     (N + 1,) int64, the first frame of each utterance, and F
root/<part>-speakers.npy   (N,) int64, speaker by speaker, from 0
root/speakers.json         the parameters

The parts "trained" and "unseen" have different speakers. Each utterance has a random text.

Shapes: F frames, N utterances, n utterances of a batch, T frames of its longest one.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from partial_fc.data.batch import Inputs
from partial_fc.data.synthetic.writer import SyntheticSet
from partial_fc.utils.process_pool import ordered_map
from partial_fc.utils.progress import progress

from .voices import RATE, speak, write_voice

VERSION = 1  # increase it with every change of the files
DATA = Path(__file__).resolve().parents[2] / "data"
BANDS = 80
HIGHEST = 7600.0  # Hz; below the limit of recordings with 16,000 samples per second
PARTS = "trained", "unseen"
FILES = tuple(f"{part}-{name}.npy" for part in PARTS for name in ("frames", "starts", "speakers"))
ROUNDED = 50  # batches are padded to a multiple of these frames, so that few lengths occur


class Recordings(NamedTuple):
    """The memory-mapped arrays of a part of the set."""

    frames: np.ndarray
    starts: np.ndarray
    speakers: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """(N,) frames of each utterance."""
        return np.diff(self.starts)

    def read(self, rows: np.ndarray) -> Inputs:
        """Returns the utterances ``rows`` (n,): ``frames`` (n, T, BANDS) float32, zero-padded; ``lengths`` (n,)."""
        lengths = self.lengths[rows]
        frames = np.zeros((len(rows), -(-int(lengths.max()) // ROUNDED) * ROUNDED, BANDS), np.float32)
        for index, row in enumerate(rows):
            frames[index, : lengths[index]] = self.frames[self.starts[row] : self.starts[row + 1]]
        return {"frames": frames, "lengths": lengths}

    def means(self) -> np.ndarray:
        """Returns the mean frame of each utterance (N, BANDS) float32."""
        sums = np.add.reduceat(self.frames, self.starts[:-1], axis=0, dtype=np.float32)
        return sums / self.lengths[:, None].astype(np.float32)


def speaker_set(root: Path, speakers: int, unseen: int, utterances: int, seed: int) -> SyntheticSet:
    """Returns the set in a folder, with ``utterances`` of each of ``speakers`` to train on and ``unseen`` others."""
    sizes = {"speakers": speakers, "unseen": unseen, "utterances": utterances, "seed": seed}
    return SyntheticSet(root, "speakers.json", {"version": VERSION, **sizes}, FILES)


def write_files(speakers: int, unseen: int, utterances: int, seed: int, workers: int, folder: Path) -> None:
    """Speaks all utterances with espeak-ng in ``workers`` processes, and writes the arrays."""
    draw = partial(_frames_of, utterances, seed)
    with progress(speakers + unseen, "speaker", "speaking") as bar:
        for part, numbers in zip(PARTS, (range(speakers), range(speakers, speakers + unseen))):
            spoken: list[np.ndarray] = []
            for _, of_speaker in ordered_map(draw, numbers, workers):
                spoken += of_speaker
                bar.update(1)
            np.save(folder / f"{part}-frames.npy", np.concatenate(spoken))
            np.save(folder / f"{part}-starts.npy", np.cumsum([0, *map(len, spoken)]))
            np.save(folder / f"{part}-speakers.npy", np.repeat(np.arange(len(numbers)), utterances))


def _frames_of(utterances: int, seed: int, speaker: int) -> list[np.ndarray]:
    with TemporaryDirectory() as folder:
        write_voice(Path(folder), speaker, seed)
        return [filter_banks(speak(Path(folder), speaker, utterance, seed)) for utterance in range(utterances)]


def filter_banks(samples: np.ndarray) -> np.ndarray:
    """Returns the frames (T, BANDS) float16 of samples (n,) float32 in the range of int16."""
    import kaldi_native_fbank  # a training does not need it

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither = RATE, 0.0
    options.frame_opts.window_type = "hamming"
    options.mel_opts.num_bins, options.mel_opts.high_freq = BANDS, HIGHEST
    fbank = kaldi_native_fbank.OnlineFbank(options)
    fbank.accept_waveform(RATE, samples.tolist())
    fbank.input_finished()
    return np.array([fbank.get_frame(number) for number in range(fbank.num_frames_ready)], np.float16)


def read_part(root: Path, part: str) -> Recordings:
    """Opens a part of the set. Raises FileNotFoundError if it has not been written."""
    if not (root / "speakers.json").exists():
        raise FileNotFoundError(f"{root} has no speakers.json: write the set with python -m examples.speakers")
    files = (root / name for name in FILES if name.startswith(part))
    return Recordings(*(np.load(path, mmap_mode="r") for path in files))
