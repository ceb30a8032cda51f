"""One training from its settings to its results: build, start, the loop, finish.

Everything that depends on a framework is behind the protocols of engine.py.
"""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from tqdm import tqdm

from partial_fc.data.batch import Inputs
from partial_fc.distributed.errors import JobError, Preempted, StopRequested
from partial_fc.utils.config import parse_options, write_settings
from partial_fc.utils.garbage import infrequent_gc
from partial_fc.utils.options import options_of

from . import resume
from .building import Training, build_data, build_log, build_training, build_verification, job_facts, versions
from .callbacks import CallBackFinite
from .checkpointing import CallBackCheckpoint
from .framework import Framework
from .log_lines import TodaysNames, changes_since, log_resume, log_start, log_summary, warn_empty_classes, warn_missing
from .loop import LoopState, seed_step, updates
from .new_centers import take_new_centers
from .report import try_report, write_results
from .results import TrainingResult
from .resume import RUN, ResumePlan, checkpoint_folder, writes_checkpoints
from .run_folder import RunFolder, begin_run, console, open_run_folder, output_folder, progress_bar
from .saving import SaveCallback, onnx_metadata
from .schedule import describe_rates
from .schedules import value_in_epoch
from .tasks import build_task
from .trackers import Trackers, build_trackers, find_tracker

EXAMPLES = 4  # items on which the ONNX file is compared with the framework


def train(settings, framework: Framework, todays_names: TodaysNames = dict) -> None:
    """Trains until ``max_update`` updates are done and writes the results.

    Args:
        settings: those of generate_config.
        framework: of the trainer.
        todays_names: converts the settings in a checkpoint of an earlier version, to log what has changed since.

    Raises:
        JobError: On every rank, if one of them cannot train or save.
    """
    collectives = framework.collectives
    collectives.watch(settings.step_timeout, settings.host_timeout)
    folder, task = output_folder(settings), build_task(settings)
    with console(collectives.rank), closing(build_data(settings, task, framework)) as data:
        facts = job_facts(settings, data, framework)
        collectives.assert_same_on_all_ranks(facts)
        plan = resume.find_checkpoint(settings, folder, collectives, framework.read_checkpoint)
        resume.prepare_output(settings, folder, plan, collectives)
        with open_run_folder(folder, collectives.rank, plan.keep_folder) as run_folder:
            trackers = collectives.on_rank_zero("trackers", _build_trackers, settings, framework) or Trackers({})
            training = build_training(settings, task, framework, data, folder, plan)
            with (
                progress_bar(collectives.rank, training.settings.max_update, plan.num_update) as bar,
                closing(trackers),
            ):
                Trainer(training, framework, run_folder, trackers, bar, plan, facts, todays_names).train()


def _build_trackers(settings, framework: Framework) -> Trackers:
    options = parse_options("tracker_options", settings.tracker_options, *map(find_tracker, settings.trackers))
    return build_trackers(settings.trackers, options, framework.open_writer)


class Trainer:
    """A training and its callbacks; every rank has one.

    Attributes:
        loop: how far the training is in its data.
    """

    def __init__(
        self,
        training: Training,
        framework: Framework,
        run_folder: RunFolder,
        trackers: Trackers,
        bar: tqdm,
        plan: ResumePlan,
        facts: dict[str, Any],
        todays_names: TodaysNames,
    ):
        settings, engine = training.settings, training.engine
        self.settings, self.engine, self.data = settings, engine, training.data
        self.framework, self.run_folder, self.plan, self.facts = framework, run_folder, plan, facts
        self.trackers, self.epochs, self.todays_names = trackers, training.epochs, todays_names
        self.collectives, self.rank = engine.collectives, engine.collectives.rank
        self.loop = LoopState()
        self._previous_seconds = 0.0  # of the training resumed from
        self._start_time = time.perf_counter()
        self.log = build_log(training, trackers, bar, self.loop)
        self.check_finite = CallBackFinite(engine, settings.log_every)
        self.verification = build_verification(training, trackers)
        self.checkpoint = CallBackCheckpoint(
            engine,
            checkpoint_folder(settings, run_folder.path),
            settings.checkpoint_every,
            self._state,
            {**facts, "time": time.strftime("%Y-%m-%d %H:%M:%S %z")},
            plan.resumed_update or 0,
            self.loop,
            options_of(settings, "checkpoint_options").minutes,
        )
        self._draws_random_numbers = engine.draws_random_numbers

    def train(self) -> None:
        """Trains until ``max_update`` updates are done, and writes the results.

        Raises:
            Preempted: On every rank, if one was asked to stop; the checkpoint is complete.
            JobError: On every rank, if one cannot train or save.
        """
        savers = self._start()
        try:
            self._train(savers)
        except Preempted:  # by the checkpoint callback, which has saved
            raise
        except StopRequested:  # in a verification or a save; the checkpoint lacks the figures of the former
            self.checkpoint.save(self.engine.num_update)
            raise Preempted(self.engine.num_update) from None

    def _train(self, savers: Sequence[SaveCallback]) -> None:
        self.verification.catch_up(self.engine.num_update)
        self._prepare_step(self.engine.num_update)  # after the verification, as in the loop
        self.log.restart()
        for update in updates(self.engine, self.data, self.loop, self.settings.max_update):
            self.collectives.report_progress(update.num_update)
            self.log(update)
            self.check_finite(update)
            with self.log.excluded_time():
                self.verification(update)
                self._save_model(savers, update)
                if update.num_update % self.settings.save_every == 0:
                    # The export of a large network takes longer than a step, and who asks to stop waits for seconds.
                    self.collectives.end_if_stopped()
                self.checkpoint(update)  # if a rank was asked to stop, saves and ends the training here
                self._update_report(update)
            self._prepare_step(update.num_update)  # last, because the verification draws random numbers too
        self._finish(savers)

    def _save_model(self, savers: Sequence[SaveCallback], update) -> None:
        """Calls the savers. If one fails, which ends the training, its updates are in a checkpoint."""
        try:
            for save in savers:
                save(update)
        except JobError:
            if self._writes_checkpoints and update.num_update > 1:
                with suppress(JobError):  # perhaps of the same full disk: the first error is the one to report
                    self.checkpoint.save(update.num_update)
            raise

    @property
    def _writes_checkpoints(self) -> bool:
        return writes_checkpoints(self.settings)

    def _start(self) -> Sequence[SaveCallback]:
        """Reads the held-out sets, restores or initializes the training, and takes ownership of the output folder.

        Returns:
            The callbacks that save the backbone and the class centers.

        Collectives: those of CallBackVerification.prepare, all-gather ``status.examples``, those of build_savers,
        all-gather ``status.restore``, those of SavedTraining.restore and take_new_centers, or measure_baselines,
        all-gather ``status.claim``.

        Raises:
            JobError: On every rank, if one fails, or the checkpoint does not fit this training.
        """
        self.verification.prepare()
        examples = self.collectives.run_on_all_ranks("examples", self._examples)
        self._log_start()
        metadata = partial(onnx_metadata, self.settings, self.verification.metadata)
        # A network that cannot be exported is refused now, not after days of training.
        with infrequent_gc():  # imports exporters
            savers = self.framework.build_savers(self.settings, self.engine, self.run_folder.path, examples, metadata)
        if self.plan.checkpoint is not None:
            self.collectives.run_on_all_ranks("restore", self._restore_state)
            self.plan.checkpoint.restore(self.engine, self.data, self.loop)
            if self.plan.checkpoint.class_map is not None:
                take_new_centers(self.settings, self.plan.checkpoint.class_map, self.engine, self.data)
        elif self.settings.baselines:
            self.verification.measure_baselines()
        # Last, because a training that is refused must leave the folder as it was.
        self.collectives.on_rank_zero("claim", self._take_ownership)
        self.collectives.training_begun()
        self._start_time = time.perf_counter()
        return savers

    def _prepare_step(self, num_update: int) -> None:
        """Sets the sample ratio of the step after ``num_update``, and seeds the generators of this rank for it."""
        ratio = value_in_epoch(self.settings.sample_ratio, self.epochs.epoch_of(num_update + 1))
        self.engine.memory_bank.set_sample_ratio(ratio)
        if self._draws_random_numbers:
            seed_step(self.engine.seed_generators, self.settings.seed, self.rank, num_update)

    def _finish(self, savers: Sequence[SaveCallback]) -> None:
        """Verifies and saves the trained model, and writes the results."""
        num_update = self.engine.num_update
        self.log.write(self.loop.num_epoch, num_update)
        if self._writes_checkpoints:
            # Before the running statistics are averaged: a training resumed from here continues with each rank's own.
            self.checkpoint.save(num_update)
        try:
            self.verification.verify_all(num_update)  # before saving: the ONNX file contains the threshold
        except JobError:
            _save(savers, num_update)
            raise
        self.collectives.end_if_stopped()
        _save(savers, num_update)
        self.collectives.end_if_stopped()
        result = self._result()
        self.collectives.on_rank_zero("results", self._write_results, result)

    def _take_ownership(self) -> None:
        """Marks the output folder as this run's, and moves an earlier training into a folder within.

        Checkpoints newer than the one resumed from are kept under another name, because this training replaces them.
        """
        folder, resumed_update = self.run_folder, self.plan.resumed_update
        if resumed_update is not None:
            for path in self.checkpoint.folder.leave(resumed_update):
                logging.warning("not resumed from a newer checkpoint; it is kept as %s", path)
        begin_run(folder.path, os.environ.get(RUN, ""), folder.earlier)
        write_settings(os.path.join(folder.path, "settings.json"), self.settings)
        if resumed_update is None or self.plan.checkpoint is None:
            self.trackers.begin(folder.path, self.settings)
        else:
            changes = changes_since(self.plan.checkpoint.manifest, self.facts, self.todays_names)
            self.trackers.begin(folder.path, self.settings, resumed_update + 1, changes)

    def _update_report(self, param) -> None:
        """Writes the report after each verification but the last, so that a training that is killed leaves one."""
        if param.num_update % self.settings.verify_every == 0 and param.num_update < self.settings.max_update:
            self.collectives.on_rank_zero("report", try_report, self._result())

    def _write_results(self, result: TrainingResult) -> None:
        write_results(result)
        warn_missing(result.missing)
        on_one_host = self.collectives.local_size == self.collectives.size
        log_summary(result, self.framework.files, self.framework.script if on_one_host else "")

    def _result(self) -> TrainingResult:
        """Returns the results so far. Collectives: all-gather ``skipped``."""
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
            sets=verification.results(),
            suggestion=verification.suggestion,
            baselines=verification.baselines,
            skipped=sum(self.collectives.gather_object("skipped", self.data.skipped)),
            missing=verification.missing,
            versions=versions(self.framework),
        )

    def _examples(self) -> Inputs:
        """Items on which the ONNX file is compared with the framework."""
        first = next(iter(self.verification.evaluations.values()), None)
        examples = first.examples(EXAMPLES) if first else None
        return self.data.sample(EXAMPLES) if examples is None else examples

    def _state(self) -> dict[str, Any]:
        """Returns the state of log and verification for a checkpoint, as JSON."""
        return {
            "log": self.log.state(),
            "verification": self.verification.history,
            "verification_fields": self.verification.fields(),
            "baselines": self.verification.baselines,
            "seconds": self._seconds(),
        }

    def _restore_state(self) -> None:
        assert self.plan.checkpoint is not None
        state = self.plan.checkpoint.manifest.state
        if "log" not in state:  # the checkpoint of a user's own program
            return
        try:
            self.log.restore(state["log"])
            verified = state["verification"], state["baselines"], state.get("verification_fields")
            self.verification.restore(*verified)
            self._previous_seconds = float(state["seconds"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            path = self.plan.checkpoint.path
            raise ValueError(f"{path} has no state of a training: {error}; use another checkpoint") from None

    def _seconds(self) -> float:
        return self._previous_seconds + time.perf_counter() - self._start_time

    def _log_start(self) -> None:
        ranks = self.collectives.size
        log_start(self.settings, ranks, self.engine.device, describe_rates(self.settings, ranks))
        for message in self.plan.messages:
            logging.info("%s", message)
        if self.plan.checkpoint is not None:
            log_resume(self.plan.checkpoint.path, self.plan.checkpoint.manifest, self.facts, self.todays_names)
        if self.rank == 0:
            warn_missing(self.verification.missing)
            warn_empty_classes(getattr(self.data, "classes_of_set", None), self.settings.num_classes)


def _save(savers: Sequence[SaveCallback], num_update: int) -> None:
    for saver in savers:
        saver.save(num_update)
