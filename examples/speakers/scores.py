"""Scores of pairs of utterances: error rates, and AS-norm.

Shapes: N utterances, P pairs, K speakers of the cohort, E embedding.
"""

import numpy as np

P_TARGET = 0.01  # probability of a genuine pair, for minDCF; both errors cost 1
TOP = 20  # nearest speakers of the cohort: 5 % of 400, as WeSpeaker's 300 of 5,994


def unit(rows: np.ndarray) -> np.ndarray:
    """Returns rows (N, E) of length 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def figures(scores: np.ndarray, speakers: np.ndarray) -> dict[str, float]:
    """Returns the equal error rate and minDCF of all pairs of two utterances, given scores (N, N) and speakers (N,)."""
    left, right = np.triu_indices(len(speakers), 1)
    order = np.argsort(-scores[left, right], kind="stable")
    same = (speakers[left] == speakers[right])[order]
    rejected = 1 - np.cumsum(same) / same.sum()  # of the genuine pairs, if those up to here are accepted
    accepted = np.cumsum(~same) / (~same).sum()
    ends = np.flatnonzero(np.diff(scores[left, right][order], append=-np.inf))  # equal scores have one threshold
    rejected, accepted = np.append(1.0, rejected[ends]), np.append(0.0, accepted[ends])
    after = int(np.argmax(rejected <= accepted))
    gaps = (rejected - accepted)[after - 1 : after + 1]
    share = gaps[0] / (gaps[0] - gaps[1])
    cost = P_TARGET * rejected + (1 - P_TARGET) * accepted
    return {
        "eer": float(accepted[after - 1] + share * (accepted[after] - accepted[after - 1])),
        "min_dcf": float(cost.min() / min(P_TARGET, 1 - P_TARGET)),
    }


def as_norm(embeddings: np.ndarray, cohort: np.ndarray) -> np.ndarray:
    """Returns scores (N, N) by adaptive symmetric normalization (Matejka et al., Interspeech 2017).

    A cosine is measured by mean and standard deviation of each utterance's cosines with the TOP nearest speakers.

    Args:
        embeddings: (N, E) of length 1.
        cohort: (K, E) of length 1, one for each speaker.
    """
    nearest = np.sort(embeddings @ cohort.T, axis=1)[:, -TOP:]
    mean, deviation = nearest.mean(axis=1, keepdims=True), nearest.std(axis=1, keepdims=True)
    scores = embeddings @ embeddings.T
    return ((scores - mean) / deviation + (scores - mean.T) / deviation.T) / 2


def speaker_means(embeddings: np.ndarray, speakers: np.ndarray) -> np.ndarray:
    """Returns the mean embedding of each speaker (K, E), given (N, E) and speakers (N,) from 0."""
    sums = np.zeros((speakers.max() + 1, embeddings.shape[1]))
    np.add.at(sums, speakers, embeddings)
    return sums / np.bincount(speakers)[:, None]
