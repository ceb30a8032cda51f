"""One training, from its settings to its results: set up, load the checkpoint, fit, finish."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np

from partial_fc.distributed.shared_folder import hosts_without_shared_folder
from partial_fc.evaluation.collapse import find_problems, suggest_changes
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.training.log_lines import log_resume, log_start, log_summary, warn_missing
from partial_fc.training.results import TrainingResult, write_results
from partial_fc.training.resume import checkpoint_folder, take_ownership
from partial_fc.training.run_folder import RunFolder, check_writable, prepare_folder
from partial_fc.training.saving import onnx_metadata
from partial_fc.utils.config import write_settings

from . import build, collectives, resume, step_seed
from .callbacks import CallBackFinite, CallBackLogging, Timed
from .checkpointing import CallBackCheckpoint
from .embedder import Embedder
from .job_facts import job_facts, versions
from .onnx_export import OnnxExport
from .resume import ResumePlan
from .saving import CallBackCenterSave, CallBackModelSave
from .verifying import CallBackVerification

FACES = 4  # faces on which the ONNX file is compared with MXNet


def train(settings) -> None:
    """Trains until ``max_update`` updates are done and writes the results.

    Args:
        settings: of default.py, completed by its generate_config.

    Raises:
        JobError: On every rank, if one of them cannot train or save.
    """
    rank, size, local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("context", lambda: build.require_device(settings, local_rank))
    collectives.run_on_all_ranks(
        "room", lambda: build.require_memory(settings, rank, size, local_rank, hvd.local_size())
    )
    folder = os.path.join(settings.models_root, f"{settings.network}-{settings.loss}-{settings.dataset}")
    data = collectives.run_on_all_ranks("data", lambda: build.build_data(settings, rank, size, hvd.local_size()))
    facts = job_facts(settings, data)
    collectives.assert_same_on_all_ranks(facts)
    plan = resume.find_checkpoint(settings, folder, resume.run_name())
    collectives.on_rank_zero("output", _prepare_folder, settings, folder, plan)
    collectives.run_on_all_ranks("output_of_ranks", lambda: check_writable(folder, rank))
    _require_shared_folder(settings, folder)
    with RunFolder(folder, rank, settings.max_update, plan.num_update, _open_writer) as run_folder:
        bank = collectives.run_on_all_ranks(
            "memory_bank", lambda: build.build_bank(settings, rank, size, local_rank, folder)
        )
        module, optimizer_params = collectives.run_on_all_ranks(
            "module", lambda: build.build_module(settings, bank, size)
        )
        trainer = Trainer(settings, module, data, run_folder, plan, facts)
        trainer.set_up()
        trainer.load_checkpoint(optimizer_params)
        trainer.fit()
        trainer.finish()


def _prepare_folder(settings, folder: str, plan: ResumePlan) -> None:
    prepare_folder(folder, plan.keep_folder)
    checkpoint_folder(settings, folder).clean()


def _require_shared_folder(settings, folder: str) -> None:
    """Raises an error before training, and not only when the first checkpoint is written."""
    hosts = hosts_without_shared_folder(collectives.OF_PROCESS, folder)
    if hosts and settings.checkpoint_every:
        raise collectives.JobError(
            f"{', '.join(hosts)} and rank 0's host do not see the same folder {folder}, but all ranks write to one "
            "checkpoint: set models_root to a shared disk, or train without checkpoints (checkpoint_every=0)"
        )


def _open_writer(folder: str):
    from mxboard import SummaryWriter  # only rank 0 needs it

    return SummaryWriter(logdir=folder, verbose=False)


class Trainer:
    """A training and its callbacks. Call set_up, load_checkpoint, fit and finish, in this order, on every rank.

    Args:
        settings: of default.py.
        module: SampleDistributeModule.
        data: the training iterator.
        run_folder: the open output folder.
        plan: how the training starts.
        facts: see job_facts.
    """

    def __init__(self, settings, module, data, run_folder: RunFolder, plan: ResumePlan, facts: dict[str, Any]):
        self.settings, self.module, self.data = settings, module, data
        self.run_folder, self.plan, self.facts = run_folder, plan, facts
        self.rank, self.size = module.rank, module.size
        self.baselines: dict[str, float] = {}
        self._previous_seconds = 0.0  # of the training resumed from
        self._start = time.perf_counter()
        writer, batch_size = run_folder.writer, settings.batch_size
        self.log = CallBackLogging(
            settings.frequent, self.rank, self.size, batch_size, writer, run_folder.bar, lambda: module.waited_for_data
        )
        self.verification = CallBackVerification(
            Embedder(module, batch_size, settings.image_size),
            build.validation_sets(settings),
            settings.verify_every,
            self.rank,
            writer,
            self._find_problems,
            suggest_changes(settings),
        )
        symbol = build.build_symbol(settings, fp16=False)
        metadata = partial(onnx_metadata, settings, self.verification.history)
        self.export = OnnxExport(symbol, settings.image_size, module.context, metadata=metadata)
        prefix = os.path.join(run_folder.path, "model")
        self.model_save = CallBackModelSave(symbol, module, prefix, self.rank, settings.save_every, self.export)
        self.center_save = CallBackCenterSave(module.memory_bank, settings.save_every)
        self.checkpoint = CallBackCheckpoint(
            module,
            checkpoint_folder(settings, run_folder.path),
            settings.checkpoint_every,
            self._state,
            {**facts, "time": time.strftime("%Y-%m-%d %H:%M:%S %z")},
            plan.resumed_update or 0,
        )

    def set_up(self) -> None:
        """Reads the validation sets, initializes the backbone and checks that it can be exported.

        Collectives: those of CallBackVerification.prepare, all-gather ``together.faces``, those of
        SampleDistributeModule.bind, all-gathers ``together.init_params`` and ``together.export``.

        Raises:
            JobError: On every rank, if one fails.
        """
        settings, module = self.settings, self.module
        self.verification.prepare()
        self.export.faces = collectives.run_on_all_ranks("faces", self._sample_faces)
        self._log_start()
        mx.random.seed(settings.seed)  # the same weights on every rank
        module.bind(self.data.provide_data, for_training=True)
        initializer = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
        collectives.run_on_all_ranks("init_params", lambda: module.init_params(initializer))
        # A network that cannot be exported is refused now, not after days of training.
        collectives.on_rank_zero("export", lambda: self.export.try_out(*module.get_export_params()))

    def load_checkpoint(self, optimizer_params: dict[str, Any]) -> None:
        """Restores the checkpoint, or loads pretrained weights, and takes ownership of the output folder.

        Args:
            optimizer_params: of the backbone, see SampleDistributeModule.init_optimizer.

        Raises:
            JobError: On every rank, if the checkpoint or the weights do not fit this training.
        """
        checkpoint = self.plan.checkpoint
        if checkpoint is None:
            if self.settings.pretrained:
                resume.load_pretrained(self.settings, self.module)
            if self.settings.baselines:
                self.baselines = self.verification.measure_baselines(self.settings.image_size)
        self.module.prepare_training(self.data, optimizer_params)
        if checkpoint is not None:
            self._restore_state(checkpoint.manifest.state)
            checkpoint.restore(self.module, self.data)
        # Last, because a training that is refused must leave the folder as it was.
        collectives.on_rank_zero("claim", self._take_ownership)
        collectives.training_begun()

    def fit(self) -> None:
        """Trains until ``max_update`` updates are done."""
        self._start = time.perf_counter()
        self.log.restart()
        self.module.run_updates(self.data, self._callbacks(), self.settings.max_update)

    def finish(self) -> None:
        """Verifies and saves the trained model, and writes the results."""
        num_update = self.module.num_update
        self.log.write(self.module.num_epoch, num_update)
        if self.settings.checkpoint_every:
            # Before the running statistics are averaged: a training resumed from here continues with each rank's own.
            self.checkpoint.save(num_update)
        try:
            self.verification.verify_all(num_update)  # before saving: the ONNX file contains the threshold
        except collectives.JobError:
            self._save_models(num_update)
            raise
        self._save_models(num_update)
        seconds = self._seconds()
        skipped = sum(collectives.gather("skipped_images", self.data.skipped))
        collectives.on_rank_zero("results", self._write_results, seconds, skipped)

    def _take_ownership(self) -> None:
        folder = self.run_folder.path
        take_ownership(folder, resume.run_name(), self.checkpoint.folder, self.plan.resumed_update)
        write_settings(os.path.join(folder, "settings.json"), self.settings)

    def _callbacks(self) -> list[Callable]:
        callbacks: list[Callable] = [
            lambda param: collectives.report_progress(param.num_update),
            self.log,
            CallBackFinite(self.module, self.settings.frequent),
            Timed(self.log, [self.verification, self.model_save, self.center_save, self.checkpoint]),
        ]
        if step_seed.draws_random_numbers(self.module.symbol):
            # From here on each rank draws its own numbers. Last, because the verification draws too.
            seed = step_seed.StepSeed(self.settings.seed, self.rank)
            seed.after(self.module.num_update)
            callbacks.append(seed)
        return callbacks

    def _save_models(self, num_update: int) -> None:
        self.model_save.save(num_update)
        self.center_save.save(num_update)

    def _write_results(self, seconds: float, skipped: int) -> None:
        verification = self.verification
        result = TrainingResult(
            folder=self.run_folder.path,
            settings=self.settings,
            ranks=self.size,
            updates=self.module.num_update,
            seconds=seconds,
            training_seconds=self.log.seconds,
            losses=self.log.points,
            waiting=self.log.waiting,
            validation_sets=verification.sets,
            history=verification.history,
            figures=verification.figures,
            problems={name: self._find_problems(name, points[-1]) for name, points in verification.history.items()},
            suggestion=verification.suggestion,
            baselines=self.baselines,
            skipped=skipped,
            missing=verification.missing,
            versions=versions(),
        )
        write_results(result)
        warn_missing(result.missing)
        log_summary(result)

    def _find_problems(self, name: str, point: VerificationPoint) -> list[str]:
        """Returns the problems that a verification of this set shows; none for an untrained network."""
        raw_pixels = self.baselines.get("raw_pixels") if name == next(iter(self.verification.sets)) else None
        return find_problems(point, raw_pixels) if point.num_update else []

    def _sample_faces(self) -> np.ndarray:
        """(n, H, W, 3) uint8 faces on which the ONNX file is compared with MXNet."""
        for pairs in self.verification.embedder.pairs.values():
            return pairs.decode(0, FACES, self.settings.image_size)
        return self.data.sample(FACES)

    def _state(self) -> dict[str, Any]:
        """Returns the state of log and verification for a checkpoint, as JSON."""
        return {
            "log": self.log.state(),
            "verification": self.verification.history,
            "baselines": self.baselines,
            "seconds": self._seconds(),
        }

    def _restore_state(self, state: dict[str, Any]) -> None:
        if "log" not in state:  # the checkpoint of a user's own program
            return
        self.log.restore(state["log"])
        self.verification.restore(state["verification"])
        self.baselines = state["baselines"]
        self._previous_seconds = state["seconds"]

    def _seconds(self) -> float:
        return self._previous_seconds + time.perf_counter() - self._start

    def _log_start(self) -> None:
        rates = build.learning_rates(self.settings, self.size)
        log_start(self.settings, self.size, self.module.context, rates)
        for message in self.plan.messages:
            logging.info("%s", message)
        if self.plan.checkpoint is not None:
            log_resume(self.plan.checkpoint.path, self.plan.checkpoint.manifest, self.facts)
        if self.rank == 0:
            warn_missing(self.verification.missing)
