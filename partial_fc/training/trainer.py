"""The training loop, and one training from its settings to its results: set up, load the checkpoint, fit, finish.

Everything that depends on a framework is behind the protocols of engine.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError
from partial_fc.distributed.shared_folder import hosts_without_shared_folder
from partial_fc.evaluation.collapse import find_problems, suggest_changes
from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.utils.config import write_settings

from . import inputs, resume
from .bank_memory import require_bank_memory
from .callbacks import BatchEndParam, CallBackFinite, CallBackLogging, Timed
from .checkpointing import CallBackCheckpoint
from .embedder import Embedder
from .engine import Engine, Framework, TrainingData
from .epochs import iterate_epochs
from .job_facts import job_facts, versions
from .learning_rate import learning_rates
from .log_lines import log_resume, log_start, log_summary, warn_missing
from .results import TrainingResult, try_report, write_results
from .resume import ResumePlan, checkpoint_folder, take_ownership
from .run_folder import RunFolder, check_writable, output_folder, prepare_folder
from .saving import onnx_metadata
from .schedule import Epochs, Schedule, resolve_schedule
from .step_seed import StepSeed
from .verifying import CallBackVerification

FACES = 4  # faces on which the ONNX file is compared with the framework


def run_updates(
    engine: Engine,
    data,
    callbacks: Sequence[Callable[[Any], object]],
    max_update: int | None = None,
    batch_end_param: Callable[[Any, int, int], Any] = BatchEndParam,
) -> None:
    """Trains until ``engine.num_update`` is ``max_update``, and returns when the last update is complete.

    Args:
        engine: with parameters and optimizer.
        data: iterator over batches with ``reset()``, such as TrainingData.
        callbacks: called in this order after every update.
        max_update: total number of updates; None trains for one epoch.
        batch_end_param: (loss, num_epoch, num_update) -> argument of the callbacks.
    """
    epochs = iterate_epochs(data, first=engine.num_epoch, endless=max_update is not None)
    batch = _next_batch(engine, data, epochs, max_update)
    while batch is not None:
        engine.num_epoch, loss = batch[0], engine.step(batch[1])
        # The device still runs this step's backward pass while Python reads the next batch.
        batch = _next_batch(engine, data, epochs, max_update)
        param = batch_end_param(loss, engine.num_epoch, engine.num_update)
        for callback in callbacks:
            callback(param)
    engine.wait_for_update()


def _next_batch(engine: Engine, data, epochs, max_update: int | None):
    """Returns (epoch, batch), or None after the last one."""
    engine.data_state = data.state() if hasattr(data, "state") else None
    if max_update is not None and engine.num_update >= max_update:
        return None
    start = time.perf_counter()
    batch = next(epochs, None)
    engine.waited_for_data += time.perf_counter() - start
    return batch


def train(settings, framework: Framework) -> None:
    """Trains until ``max_update`` updates are done and writes the results.

    Args:
        settings: of default.py, completed by its generate_config.
        framework: builds the engine, its data and the files of its format.

    Raises:
        JobError: On every rank, if one of them cannot train or save.
    """
    collectives = framework.collectives
    collectives.watch(settings.step_timeout, settings.host_timeout)
    collectives.run_on_all_ranks("context", lambda: framework.require_device(settings))
    collectives.run_on_all_ranks("room", lambda: require_bank_memory(settings, framework))
    folder = output_folder(settings)
    data = collectives.run_on_all_ranks("data", lambda: framework.build_data(settings))
    facts = job_facts(settings, data, framework)
    collectives.assert_same_on_all_ranks(facts)
    plan = resume.find_checkpoint(settings, folder, resume.run_name(), collectives)
    epochs = Epochs(data.cursor.num_images, data.cursor.global_batch, plan.num_update, plan.place)
    settings, schedule = resolve_schedule(settings, epochs)
    collectives.on_rank_zero("output", _prepare_folder, settings, folder, plan)
    collectives.run_on_all_ranks("output_of_ranks", lambda: check_writable(folder, collectives.rank))
    _require_shared_folder(settings, folder, collectives)
    progress = settings.max_update, plan.num_update
    with closing(data), RunFolder(folder, collectives.rank, *progress, framework.open_writer) as run_folder:
        plan = resume.with_pretrained(plan, settings, framework)
        conventions = plan.conventions(framework.conventions)
        engine = framework.build_engine(settings, schedule, data, folder, conventions)
        trainer = Trainer(settings, schedule, framework, engine, data, run_folder, plan, facts)
        del plan  # with the arrays of pretrained weights
        trainer.set_up()
        trainer.load_checkpoint()
        trainer.fit()
        trainer.finish()


def _prepare_folder(settings, folder: str, plan: ResumePlan) -> None:
    inputs = [plan.checkpoint.path] if plan.checkpoint else [settings.pretrained, settings.class_map]
    prepare_folder(folder, plan.keep_folder, [path for path in inputs if path not in ("", resume.SAME)])
    checkpoint_folder(settings, folder).clean()


def _require_shared_folder(settings, folder: str, collectives: Collectives) -> None:
    """Raises an error before training, and not only when the first checkpoint is written."""
    hosts = hosts_without_shared_folder(collectives, folder)
    if hosts and settings.checkpoint_every:
        raise JobError(
            f"{', '.join(hosts)} and rank 0's host do not see the same folder {folder}, but all ranks write to one "
            "checkpoint: set output or models_root to a shared disk, or train without checkpoints (checkpoint_every=0)"
        )


class Trainer:
    """A training and its callbacks. Call set_up, load_checkpoint, fit and finish, in this order, on every rank.

    Args:
        settings: of default.py.
        schedule: length and rates of the training.
        framework: see Framework.
        engine: in training.
        data: of this rank.
        run_folder: the open output folder.
        plan: how the training starts.
        facts: see job_facts.
    """

    def __init__(
        self,
        settings,
        schedule: Schedule,
        framework: Framework,
        engine: Engine,
        data: TrainingData,
        run_folder: RunFolder,
        plan: ResumePlan,
        facts: dict[str, Any],
    ):
        self.settings, self.framework, self.engine, self.data = settings, framework, engine, data
        self.run_folder, self.plan, self.facts = run_folder, plan, facts
        self.collectives, self.rank = engine.collectives, engine.collectives.rank
        self.baselines: dict[str, float] = {}
        self._previous_seconds = 0.0  # of the training resumed from
        self._start = time.perf_counter()
        writer, batch_size = run_folder.writer, settings.batch_size
        backbone_lr, _ = learning_rates(settings, self.collectives.size)
        self.log = CallBackLogging(
            settings.frequent,
            self.rank,
            self.collectives.size,
            batch_size,
            writer,
            run_folder.bar,
            engine=engine,
            max_update=settings.max_update,
            rate=lambda num_update: backbone_lr * schedule.factor(num_update),
        )
        self.verification = CallBackVerification(
            Embedder(engine, batch_size, settings.image_size, mirrored=settings.rand_mirror),
            inputs.validation_sets(settings),
            settings.verify_every,
            self.rank,
            writer,
            self._find_problems,
            suggest_changes(settings),
        )
        self.checkpoint = CallBackCheckpoint(
            engine,
            checkpoint_folder(settings, run_folder.path),
            settings.checkpoint_every,
            self._state,
            {**facts, "time": time.strftime("%Y-%m-%d %H:%M:%S %z")},
            plan.resumed_update or 0,
        )

    def set_up(self) -> None:
        """Reads the validation sets and checks that the backbone can be exported.

        Collectives: those of CallBackVerification.prepare, all-gathers ``together.faces`` and ``together.export``.

        Raises:
            JobError: On every rank, if one fails.
        """
        self.verification.prepare()
        faces = self.collectives.run_on_all_ranks("faces", self._sample_faces)
        self._log_start()
        metadata = partial(onnx_metadata, self.settings, self.verification.history)
        self.model_save, self.center_save = self.framework.build_savers(
            self.settings, self.engine, self.run_folder.path, faces, metadata
        )
        # A network that cannot be exported is refused now, not after days of training.
        self.model_save.try_out()

    def load_checkpoint(self) -> None:
        """Restores the checkpoint, or loads pretrained weights, and takes ownership of the output folder.

        Raises:
            JobError: On every rank, if the checkpoint or the weights do not fit this training.
        """
        checkpoint = self.plan.checkpoint
        if checkpoint is None:
            if self.plan.pretrained:
                resume.take_pretrained(self.plan.pretrained, self.settings, self.engine)
                self.plan = self.plan._replace(pretrained=None)  # its arrays are not needed any more
            if self.settings.baselines:
                self.baselines = self.verification.measure_baselines(self.settings.image_size)
        else:
            self._restore_state(checkpoint.manifest.state)
            checkpoint.restore(self.engine, self.data)
        # Last, because a training that is refused must leave the folder as it was.
        self.collectives.on_rank_zero("claim", self._take_ownership)
        self.collectives.training_begun()

    def fit(self) -> None:
        """Trains until ``max_update`` updates are done."""
        self._start = time.perf_counter()
        self.log.restart()
        run_updates(self.engine, self.data, self._callbacks(), self.settings.max_update)

    def finish(self) -> None:
        """Verifies and saves the trained model, and writes the results."""
        num_update = self.engine.num_update
        self.log.write(self.engine.num_epoch, num_update)
        if self.settings.checkpoint_every:
            # Before the running statistics are averaged: a training resumed from here continues with each rank's own.
            self.checkpoint.save(num_update)
        try:
            self.verification.verify_all(num_update)  # before saving: the ONNX file contains the threshold
        except JobError:
            self._save_models(num_update)
            raise
        self._save_models(num_update)
        result = self._result()
        self.collectives.on_rank_zero("results", self._write_results, result)

    def _take_ownership(self) -> None:
        folder = self.run_folder.path
        take_ownership(folder, resume.run_name(), self.checkpoint.folder, self.plan.resumed_update)
        write_settings(os.path.join(folder, "settings.json"), self.settings)

    def _callbacks(self) -> list[Callable]:
        callbacks: list[Callable] = [
            lambda param: self.collectives.report_progress(param.num_update),
            self.log,
            CallBackFinite(self.engine, self.settings.frequent),
            Timed(
                self.log,
                [self.verification, self.model_save, self.center_save, self.checkpoint, self._update_report],
            ),
        ]
        if self.engine.draws_random_numbers:
            # From here on each rank draws its own numbers. Last, because the verification draws too.
            seed = StepSeed(self.engine.seed_generators, self.settings.seed, self.rank)
            seed.after(self.engine.num_update)
            callbacks.append(seed)
        return callbacks

    def _save_models(self, num_update: int) -> None:
        self.model_save.save(num_update)
        self.center_save.save(num_update)

    def _update_report(self, param) -> None:
        """Writes the report after each verification but the last, so that a training that is killed leaves one."""
        if param.num_update % self.settings.verify_every == 0 and param.num_update < self.settings.max_update:
            self.collectives.on_rank_zero("report", try_report, self._result())

    def _write_results(self, result: TrainingResult) -> None:
        write_results(result)
        warn_missing(result.missing)
        log_summary(result, self.framework.files, self.framework.command)

    def _result(self) -> TrainingResult:
        """Returns the results so far. Collectives: all-gather ``skipped_images``."""
        verification = self.verification
        return TrainingResult(
            folder=self.run_folder.path,
            settings=self.settings,
            ranks=self.collectives.size,
            updates=self.engine.num_update,
            seconds=self._seconds(),
            training_seconds=self.log.seconds,
            losses=self.log.points,
            waiting=self.log.waiting,
            validation_sets=verification.sets,
            history=verification.history,
            figures=verification.figures,
            problems={name: self._find_problems(name, points[-1]) for name, points in verification.history.items()},
            suggestion=verification.suggestion,
            baselines=self.baselines,
            skipped=sum(self.collectives.gather_object("skipped_images", self.data.skipped)),
            missing=verification.missing,
            versions=versions(self.framework),
        )

    def _find_problems(self, name: str, point: VerificationPoint) -> list[str]:
        """Returns the problems that a verification of this set shows; none for an untrained network."""
        raw_pixels = self.baselines.get("raw_pixels") if name == next(iter(self.verification.sets)) else None
        return find_problems(point, raw_pixels) if point.num_update else []

    def _sample_faces(self) -> np.ndarray:
        """(n, H, W, 3) uint8 faces on which the ONNX file is compared with the framework."""
        pairs = next(iter(self.verification.embedder.pairs.values()), None)
        return self.data.sample(FACES) if pairs is None else pairs.decode(0, FACES, self.settings.image_size)

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
        ranks = self.collectives.size
        log_start(self.settings, ranks, self.engine.device, learning_rates(self.settings, ranks))
        for message in self.plan.messages:
            logging.info("%s", message)
        if self.plan.checkpoint is not None:
            log_resume(self.plan.checkpoint.path, self.plan.checkpoint.manifest, self.facts)
        if self.rank == 0:
            warn_missing(self.verification.missing)
