"""One training, from its settings to its results."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from functools import partial

import horovod
import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

import partial_fc
from partial_fc.data.pairs_bin import read_pairs
from partial_fc.distributed.consistency import code_digest
from partial_fc.evaluation.collapse import find_problems, suggest_changes
from partial_fc.evaluation.pixel_baseline import raw_pixel_distances
from partial_fc.evaluation.verification import VerificationPoint, verify_distances
from partial_fc.training.run_folder import Output, check_writable, prepare_folder
from partial_fc.utils.text import plural

from . import build, collectives, resume, sharing, step_seed
from .callbacks import CallBackFinite, CallBackLogging, Timed
from .checkpointing import CallBackCheckpoint
from .embedder import Embedder
from .onnx_export import OnnxExport
from .results import TrainingResult, log_summary, write_results
from .saved_training import SavedTraining
from .saving import CallBackCenterSave, CallBackModelSave
from .verifying import CallBackVerification


def train(settings) -> None:
    """Trains for exactly ``max_update`` updates and writes the results.

    Args:
        settings: of default.py, filled in by its generate_config.

    Raises:
        JobError: on every rank, where something was wrong on one before training.
    """
    rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("context", lambda: build.check_context(settings, local_rank))
    collectives.run_on_all_ranks(
        "room", lambda: build.require_memory(settings, rank, size, local_rank, hvd.local_size())
    )
    folder = os.path.join(settings.models_root, f"{settings.network}-{settings.loss}-{settings.dataset}")
    data = collectives.run_on_all_ranks("data", lambda: build.build_data(settings, rank, size, hvd.local_size()))
    collectives.assert_same_on_all_ranks(facts(settings, data))
    beginning = resume.find_checkpoint(settings, folder, run_name())
    collectives.run_on_all_ranks("output", lambda: rank == 0 and _prepare(settings, folder, beginning))
    collectives.run_on_all_ranks("output_of_ranks", lambda: check_writable(folder, rank))
    _check_shared(settings, folder)
    num_update = beginning.saved.manifest.num_update if beginning.saved else 0
    with Output(folder, rank, settings.max_update, num_update, _open_writer) as output:
        bank = collectives.run_on_all_ranks(
            "memory_bank", lambda: build.build_bank(settings, rank, size, local_rank, folder)
        )
        module, optimizer_params = collectives.run_on_all_ranks(
            "module", lambda: build.build_module(settings, bank, size)
        )
        run = _Run(settings, module, output, data, beginning)
        run.fit(optimizer_params)
        run.finish()


def run_name() -> str:
    """What run.sh calls this run and its restarts; empty where something else has started it."""
    return os.environ.get("PARTIAL_FC_RUN", "")


def _prepare(settings, folder: str, beginning: resume.ResumePlan) -> None:
    prepare_folder(folder, beginning.keep)
    resume.checkpoint_folder(settings, folder).clean()


def _check_shared(settings, folder: str) -> None:
    """Now rather than when the first checkpoint is complete, as far as its files are on one disk."""
    hosts = sharing.hosts_without_shared_folder(folder)
    if hosts and settings.checkpoint_every:
        raise collectives.JobError(
            f"{', '.join(hosts)} and rank 0's host do not see the same folder {folder}, and a checkpoint is of all: "
            "set models_root to a disk that they share, or train without checkpoints (checkpoint_every=0)"
        )


def _open_writer(folder: str):
    from mxboard import SummaryWriter  # only rank 0 needs it

    return SummaryWriter(logdir=folder, verbose=False)


def facts(settings, data) -> dict:
    """What must be the same on every rank of a job, by name."""
    return {
        **{f"setting {name}": value for name, value in settings.items()},
        "code": code_digest([os.path.dirname(partial_fc.__file__), os.path.dirname(__file__)]),
        "data set": data.digest,
        **{f"version of {name}": version for name, version in versions().items()},
    }


def versions() -> dict[str, str]:
    """Of what the numbers of a training depend on."""
    return {
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "horovod": horovod.__version__,
        "numpy": np.__version__,
    }


FACES = 4


class _Run:
    """The callbacks of a training and what is told before and after it."""

    def __init__(self, settings, module, output: Output, data, beginning: resume.ResumePlan):
        self.settings, self.module, self.output, self.data = settings, module, output, data
        self.beginning, self.saved = beginning, beginning.saved
        self.rank, self.size = module.rank, module.size
        sets = build.validation_sets(settings)
        # A set that one host lacks is left out on all of them: they embed it together.
        absent = collectives.gather("validation_sets", [path for path in sets.values() if not os.path.isfile(path)])
        self.missing = sorted(set().union(*absent))
        self.sets = {name: path for name, path in sets.items() if path not in self.missing}
        self.log = CallBackLogging(
            settings.frequent,
            self.rank,
            self.size,
            settings.batch_size,
            output.writer,
            output.bar,
            waited=lambda: module.waited_for_data,
        )
        embedder = Embedder(module, settings.batch_size, settings.image_size)
        self.verification = CallBackVerification(
            embedder,
            self.sets,
            settings.verify_every,
            self.rank,
            output.writer,
            self._find_problems,
            suggest_changes(settings),
        )
        self.verification.prepare()
        prefix = os.path.join(output.folder, "model")
        symbol = build.build_symbol(settings, fp16=False)
        faces = collectives.run_on_all_ranks("faces", self._faces)
        self.export = OnnxExport(symbol, settings.image_size, module.context, faces, self._metadata)
        self.model_save = CallBackModelSave(symbol, module, prefix, self.rank, settings.save_every, self.export)
        self.center_save = CallBackCenterSave(module.memory_bank, settings.save_every)
        self.checkpoint = CallBackCheckpoint(
            module,
            resume.checkpoint_folder(settings, output.folder),
            settings.checkpoint_every,
            self._notes,
            {**facts(settings, data), "time": time.strftime("%Y-%m-%d %H:%M:%S %z")},
            self.saved.manifest.num_update if self.saved and beginning.here else 0,
        )
        self.baselines: dict[str, float] = {}
        self.start = self.seconds = 0.0
        self.skipped = 0

    def fit(self, optimizer_params) -> None:
        """Measures the baselines, then trains."""
        settings, module, saved = self.settings, self.module, self.saved
        self._tell_start()
        # Every rank draws the same weights; dropout, which comes later, is each rank's own.
        mx.random.seed(settings.seed)
        module.bind(self.data.provide_data, for_training=True)
        initializer = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
        collectives.run_on_all_ranks("init_params", lambda: module.init_params(initializer))
        # Days of training should not end in a network that cannot be exported.
        collectives.run_on_all_ranks(
            "export", lambda: self.rank == 0 and self.export.try_out(*module.get_export_params())
        )
        if saved is not None:
            self._take_notes(saved.manifest.state)
        else:
            if settings.pretrained:
                resume.take_pretrained(settings, module)
            self._measure_baselines()
        callbacks = [lambda param: collectives.report_progress(param.num_update), self.log]
        callbacks += [CallBackFinite(module, settings.frequent)]
        callbacks += [Timed(self.log, [self.verification, self.model_save, self.center_save, self.checkpoint])]
        if step_seed.draws(module.symbol):
            seed = step_seed.StepSeed(settings.seed, self.rank)
            seed.after(saved.manifest.num_update if saved else 0)
            callbacks.append(seed)  # after the verification, which draws too
        self.start = time.perf_counter()
        self.log.restart()
        if saved is None:
            self._begin()
        module.fit(
            self.data,
            optimizer_params,
            callbacks,
            None,
            max_update=settings.max_update,
            saved=None if saved is None else self,
        )

    def restore(self, module, train_data) -> None:
        """What fit calls to go on from a checkpoint."""
        self.saved.restore(module, train_data)
        self._begin()

    def _begin(self) -> None:
        """From here on nothing can be refused: the output folder becomes this run's."""
        claim = partial(resume.take_ownership, self.settings, self.output.folder, run_name(), self.beginning)
        collectives.run_on_all_ranks("claim", lambda: self.rank == 0 and claim())
        collectives.training_begun()

    def finish(self) -> None:
        """Verifies and saves what was trained, and writes the summary."""
        num_update = self.module.num_update
        self.log.write(self.module.num_epoch, num_update)
        if self.settings.checkpoint_every:
            # Before the running statistics are averaged: a longer training would not do that here.
            self.checkpoint.save(num_update)
        try:
            self.verification.verify_all(num_update)  # first, as the ONNX file tells its threshold
        except collectives.JobError:
            self._save_models(num_update)
            raise
        self._save_models(num_update)
        self.seconds = self._seconds_so_far()
        self.skipped = sum(collectives.gather("skipped_images", self.data.skipped))
        collectives.run_on_all_ranks("results", lambda: self.rank == 0 and self._write_results())

    def _save_models(self, num_update: int) -> None:
        self.model_save.save(num_update)
        self.center_save.save(num_update)

    def _write_results(self) -> None:
        ended = TrainingResult(
            folder=self.output.folder,
            settings=self.settings,
            ranks=self.size,
            updates=self.module.num_update,
            seconds=self.seconds,
            log=self.log,
            verification=self.verification,
            baselines=self.baselines,
            skipped=self.skipped,
            missing=self.missing,
            versions=versions(),
            problems={
                name: self._find_problems(name, points[-1]) for name, points in self.verification.history.items()
            },
        )
        write_results(ended)
        self._warn_of_missing()
        log_summary(ended)

    def _find_problems(self, name: str, point: VerificationPoint) -> list[str]:
        """What is wrong with the training by a verification of this set; nothing is with an untrained network."""
        raw_pixels = self.baselines.get("raw_pixels") if name == next(iter(self.sets)) else None
        return find_problems(point, raw_pixels) if point.num_update else []

    def _faces(self) -> np.ndarray:
        """A few faces to hold the ONNX file against MXNet with: (n, H, W, 3) uint8."""
        for pairs in self.verification.embedder.pairs.values():
            return pairs.decode(0, FACES, self.settings.image_size)
        return self.data.sample(FACES)

    def _metadata(self, num_update: int) -> dict[str, str]:
        """What the ONNX file tells of itself: where it comes from, and at which distance people differ."""
        settings = self.settings
        told = {name: str(settings[name]) for name in ("network", "dataset", "loss", "num_classes", "sample_ratio")}
        told["num_update"] = str(num_update)
        for name, points in self.verification.history.items():
            if points and points[-1].num_update == num_update > 0:
                last = points[-1]
                return {**told, "verification_set": name, "verification_threshold": repr(last.threshold)}
        return told

    def _notes(self) -> dict:
        """What the rest of this training tells of its beginning, for a checkpoint."""
        return {
            "log": self.log.state(),
            "verification": self.verification.history,
            "baselines": self.baselines,
            "seconds": self._seconds_so_far(),
        }

    def _take_notes(self, notes: dict) -> None:
        if "log" not in notes:  # of a program of one's own
            return
        self.log.restore(notes["log"])
        self.verification.restore(notes["verification"])
        self.baselines = notes["baselines"]
        self.seconds = notes["seconds"]

    def _seconds_so_far(self) -> float:
        return self.seconds + time.perf_counter() - self.start

    def _tell_start(self) -> None:
        settings, shown = self.settings, ("batch_size", "sample_ratio", "embedding_size", "num_classes", "max_update")
        logging.info(
            "%s on %s with %s, %s on %s, %s",
            settings.network,
            settings.dataset,
            settings.loss,
            plural(self.size, "rank"),
            self.module.context,
            ", ".join(f"{name} {settings[name]}" for name in shown),
        )
        logging.info("rates: backbone %g, class centers %g", *build.learning_rates(settings, self.size))
        for remark in self.beginning.remarks:
            logging.info("%s", remark)
        if self.saved is not None:
            self._tell_saved(self.saved)
        if settings.debug:
            logging.info("debug mode: dummy images, so the speed below is what training does without IO")
        self._warn_of_missing()

    def _tell_saved(self, saved: SavedTraining) -> None:
        manifest = saved.manifest
        logging.info("goes on from update %d, saved by %d ranks in %s", manifest.num_update, manifest.ranks, saved.path)
        for name, value in facts(self.settings, self.data).items():
            before = manifest.origin.get(name, value)
            if json.dumps(value) != json.dumps(before) and name not in _OF_A_START:
                logging.info("  %s was %s, now it is %s", name, before, value)

    def _warn_of_missing(self) -> None:
        if self.rank == 0:
            for path in self.missing:
                logging.warning("no validation set at %s: nothing is verified on it", path)

    def _measure_baselines(self) -> None:
        """What the first validation set gives without training, to hold the result against."""
        if not self.sets or not self.settings.baselines:
            return
        name, path = next(iter(self.sets.items()))
        untrained = self.verification.verify_all(0)[name]
        raw = collectives.run_on_all_ranks(
            "raw_pixels", lambda: _raw_pixel_accuracy(path, self.settings.image_size, self.rank)
        )
        if self.rank == 0:
            self.baselines = {"raw_pixels": raw, "untrained": untrained}
            logging.info("[%s] without training: raw pixels %.5f, untrained network %.5f", name, raw, untrained)


# Settings that say how a training starts, not how it goes on.
_OF_A_START = {"setting resume", "setting pretrained", "setting class_map"}


def _raw_pixel_accuracy(path: str, image_size: int, rank: int) -> float | None:
    """Verification accuracy of the pixels themselves, on rank 0."""
    if rank:
        return None
    images, issame = read_pairs(path)
    return verify_distances(raw_pixel_distances(images, image_size, path), issame).accuracy
