"""Draws speakers and their utterances, and speaks them with espeak-ng.

A speaker has a pitch range, a scale for all formants and one for each, formant heights and widths, roughness, flutter
and a speed. An utterance has a text of meaningless syllables, a change of speed, a channel (a first-order filter) and
noise. All are drawn by seed, speaker and utterance.
"""

import subprocess
from pathlib import Path

import numpy as np

from partial_fc.data.synthetic.identity import random_stream

SPEAKER, SPEED, UTTERANCE = 301, 302, 303  # random streams
RATE = 22050  # samples per second
VOICE = "speaker"
HEADER = 44  # bytes before the samples of a WAV file
ONSETS = ["", *"bdfghjklmnprstvwz", "br", "ch", "dr", "fl", "gr", "kl", "pr", "sh", "sk", "sl", "st", "th", "tr"]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ee", "oo", "ow", "oy"]
CODAS = ["", "", "", *"dklmnprst", "nd", "ng", "sh"]


def program_data() -> Path:
    """Returns espeak-ng's folder of data. Raises FileNotFoundError if the program is missing."""
    try:
        text = subprocess.run(["espeak-ng", "--version"], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise FileNotFoundError("espeak-ng is not installed: apt-get install espeak-ng") from None
    return Path(text.partition("Data at: ")[2].strip())


def write_voice(folder: Path, speaker: int, seed: int) -> None:
    """Writes the data folder of a single voice, for espeak-ng's --path: espeak-ng reads at most 350 voices."""
    target, data = folder / "espeak-ng-data", program_data()
    voices = target / "voices" / "!v"
    voices.mkdir(parents=True)
    for path in data.iterdir():
        if path.name != "voices":
            (target / path.name).symlink_to(path)
    (voices / VOICE).write_text(_voice(speaker, seed))


def _voice(speaker: int, seed: int) -> str:
    random = random_stream(seed, SPEAKER, speaker)
    pitch = random.uniform(70, 220)
    lines = [f"language variant\nname {VOICE}\npitch {pitch:.0f} {pitch * random.uniform(1.2, 1.7):.0f}"]
    scale = random.uniform(85, 115)  # longer vocal tracts have lower formants
    for formant in range(9):
        frequency, height, width = scale * random.uniform(0.95, 1.05), random.uniform(75, 125), random.uniform(80, 125)
        lines.append(f"formant {formant} {frequency:.0f} {height:.0f} {width:.0f}")
    lines.append(f"roughness {random.integers(8)}\nflutter {random.integers(15)}")
    return "\n".join(lines) + "\n"


def speak(folder: Path, speaker: int, utterance: int, seed: int) -> np.ndarray:
    """Returns the samples (n,) float32 of an utterance, 1 to 10 seconds in the range of int16.

    Args:
        folder: folder that `write_voice` has written for the speaker.
        speaker, utterance: their numbers.
        seed: seed of all draws.
    """
    random = random_stream(seed, UTTERANCE, speaker, utterance)
    text = " ".join(_word(random) for _ in range(random.integers(3, 13)))
    speed = random_stream(seed, SPEED, speaker).uniform(130, 190) * random.uniform(0.9, 1.1)
    command = ["espeak-ng", f"--path={folder}", "-v", f"en+{VOICE}", "-s", f"{speed:.0f}", "--stdout", text]
    sound = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    samples = np.frombuffer(sound[HEADER:], "<i2").astype(np.float32)
    samples[1:] -= random.uniform(-0.3, 0.9) * samples[:-1]
    noise = random.standard_normal(len(samples)).astype(np.float32)
    noise[1:] += random.uniform(0, 0.9) * noise[:-1]
    decibels = random.uniform(5, 25)
    return samples + noise * (samples.std() / noise.std() * 10 ** (-decibels / 20))


def _word(random: np.random.Generator) -> str:
    parts = [part[random.integers(len(part))] for _ in range(random.integers(1, 4)) for part in (ONSETS, VOWELS)]
    return "".join(parts) + CODAS[random.integers(len(CODAS))]
