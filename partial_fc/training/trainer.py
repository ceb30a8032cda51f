"""One training from its settings to its results: build, start, the loop, finish.

Everything that depends on a framework is behind the protocols of engine.py and framework.py.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from partial_fc.data.batch import Inputs
from partial_fc.distributed.collectives import Collectives
from partial_fc.distributed.errors import JobError, Preempted, StopRequested
from partial_fc.distributed.shared_folder import hosts_without_shared_folder
from partial_fc.utils.config import parse_options, write_settings
from partial_fc.utils.garbage import infrequent_gc
from partial_fc.utils.options import options_of

from .building import Training, build_data, build_log, build_training, build_verification, job_facts, versions
from .callbacks import CallBackFinite
from .checkpointing import CallBackCheckpoint
from .framework import Framework
from .heads import Head
from .log_lines import (
    TodaysNames,
    changes_since,
    log_heads,
    log_resume,
    log_start,
    log_summary,
    warn_empty_classes,
    warn_missing,
)
from .loop import LoopState, seed_step, updates
from .new_centers import take_new_centers
from .quiet_phases import lines_in_quiet_phases
from .report import try_report, write_results
from .results import TrainingResult
from .run_folder import (
    RunFolder,
    begin_run,
    check_writable,
    console,
    open_run_folder,
    output_folder,
    prepare_folder,
    progress_bar,
)
from .saved_training import RUN, ResumePlan, SavedTraining, checkpoint_folder, find_checkpoint, writes_checkpoints
from .saving import SaveCallback, onnx_metadata
from .schedule import describe_rates
from .schedules import value_in_epoch
from .tasks import build_task
from .trackers import Trackers, build_trackers, find_tracker

EXAMPLES = 4  # number of items on which the ONNX file is compared with the framework
INPUTS = ("rec", "labels", "heads", "sampling", "teacher")  # settings whose files are also read after a restart


def train(
    settings,
    framework: Framework,
    todays_names: TodaysNames = dict,
    heads: Sequence[Head] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Trains until ``max_update`` updates are done and writes the results.

    Args:
        settings: settings from generate_config.
        framework: framework of the trainer.
        todays_names: converts the settings of a checkpoint from an earlier version, to log what has changed since.
        heads: heads_of(settings); none is one head.
        defaults: declared defaults; the report folds the settings that have them.

    Raises:
        JobError: On every rank, if one of them cannot train or save.
    """
    collectives = framework.collectives
    watch = collectives.watch(settings.step_timeout, settings.host_timeout)
    folder, job_settings = output_folder(settings), settings
    settings = heads[0].settings if heads else settings  # the first head's settings also apply to what the heads share
    task = build_task(settings)
    quiet = lines_in_quiet_phases(collectives)
    with watch, console(collectives.rank), quiet, closing(build_data(settings, task, framework, heads)) as data:
        if not settings.heads:  # else every head has its number
            job_settings.num_classes = settings.num_classes
        facts = job_facts(job_settings, data, framework, heads)
        collectives.assert_same_on_all_ranks(facts)
        plan = find_checkpoint(settings, folder, collectives, framework.read_checkpoint)
        inputs = [each[name] for each in (job_settings, *(head.settings for head in heads)) for name in INPUTS]
        is_new = _prepare_output(settings, folder, plan, collectives, inputs)

        def make_trackers() -> Trackers:
            makers = map(find_tracker, settings.trackers)
            options = parse_options("tracker_options", settings.tracker_options, *makers)
            return build_trackers(settings.trackers, options, framework.open_writer)

        with open_run_folder(folder, collectives.rank, plan.keep_folder, is_new) as run_folder:
            trackers = collectives.on_rank_zero("trackers", make_trackers) or Trackers({})
            training = build_training(settings, task, framework, data, folder, plan, heads)
            with (
                progress_bar(collectives.rank, training.settings.max_update, plan.num_update) as bar,
                closing(trackers),
            ):
                trainer = Trainer(
                    training, framework, run_folder, trackers, bar, plan, facts, todays_names, job_settings, defaults
                )
                trainer.train()


def _prepare_output(settings, folder: str, plan: ResumePlan, collectives: Collectives, inputs: list[str]) -> bool:
    """Creates the output folder, or checks that the training may begin in it, and that all ranks can write there.

    Returns whether rank 0 has created it, on rank 0.

    Collectives: all-gathers ``status.output`` and ``status.output_of_ranks``, those of hosts_without_shared_folder.

    Raises:
        JobError: On every rank, if one cannot write, or if hosts see different folders but write to one checkpoint.
    """

    def prepare() -> bool:
        weights = [plan.checkpoint.path] if plan.checkpoint else [settings.pretrained, settings.class_map]
        # Paths are absolute, unlike words such as sampling=uniform.
        is_new = prepare_folder(folder, plan.keep_folder, filter(os.path.isabs, [*inputs, *weights]))
        checkpoint_folder(settings, folder).clean()
        return is_new

    is_new = collectives.on_rank_zero("output", prepare)
    collectives.run_on_all_ranks("output_of_ranks", lambda: check_writable(folder, collectives.rank))
    hosts = hosts_without_shared_folder(collectives, folder)
    if hosts and writes_checkpoints(settings):
        raise JobError(
            f"{', '.join(hosts)} and rank 0's host do not see the same folder {folder}, but all ranks write to one "
            "checkpoint: set output or models_root to a shared disk, or train without checkpoints "
            "(checkpoint_every=0 checkpoint_options=minutes=0)"
        )
    return bool(is_new)


class Trainer:
    """A training and its callbacks; every rank has one."""

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
        job_settings: Any,
        defaults: Mapping[str, Any],
    ):
        settings, engine = training.settings, training.engine
        self.settings, self.engine, self.data = settings, engine, training.data
        self.heads, self.job_settings, self.defaults = training.heads, job_settings, defaults
        self.framework, self.run_folder, self.plan, self.facts = framework, run_folder, plan, {**facts, **engine.facts}
        self.trackers, self.epochs, self.todays_names = trackers, training.epochs, todays_names
        self.collectives, self.rank = engine.collectives, engine.collectives.rank
        self.loop = LoopState()
        self._previous_seconds = 0.0  # total time before the checkpoint that the training resumes from
        self._start_time = time.perf_counter()
        self.log = build_log(training, trackers, bar, self.loop)
        self.check_finite = CallBackFinite(engine, settings.log_every)
        self.verification = build_verification(training, trackers)
        self.checkpoint = CallBackCheckpoint(
            engine,
            checkpoint_folder(settings, run_folder.path),
            settings.checkpoint_every,
            self._state,
            {**self.facts, "time": time.strftime("%Y-%m-%d %H:%M:%S %z")},
            plan.resumed_update or 0,
            self.loop,
            options_of(settings, "checkpoint_options").minutes,
        )
        self._draws_random_numbers, self._writes_checkpoints = engine.draws_random_numbers, writes_checkpoints(settings)

    def train(self) -> None:
        """Trains until ``max_update`` updates are done, and writes the results.

        Raises:
            Preempted: On every rank, if one was asked to stop; the checkpoint is complete.
            JobError: On every rank, if one cannot train or save.
        """
        savers = self._start()
        try:
            if self.engine.num_update < self.settings.max_update:  # otherwise `_finish` verifies
                self.verification.catch_up(self.engine.num_update)
            self._prepare_step(self.engine.num_update)
            self.log.restart()
            for update in updates(self.engine, self.data, self.loop, self.settings.max_update):
                self.collectives.report_progress(update.num_update)
                self.log(update)
                self.check_finite(update)
                with self.log.excluded_time():
                    if update.num_update < self.settings.max_update or not self.settings.average_checkpoints:
                        # Otherwise `_finish` does it, with the mean.
                        self.verification(update)
                        self._save_model(savers, update)
                    if update.num_update % self.settings.save_every == 0:
                        # Exporting a large network takes longer than a step; a stop request can wait only seconds.
                        self.collectives.end_if_stopped()
                    self.checkpoint(update)  # if a rank was asked to stop, saves and ends the training here
                    if (
                        update.num_update % self.settings.verify_every == 0
                        and update.num_update < self.settings.max_update
                    ):
                        # So that a killed training leaves a report.
                        self.collectives.on_rank_zero("report", try_report, self._result())
                # Last, because the verification draws random numbers too.
                self._prepare_step(update.num_update)
                self.collectives.report_progress(update.num_update)  # ends the phase of a verification or save
            self._finish(savers)
        except Preempted:  # the checkpoint callback has saved
            raise
        except StopRequested:  # during a save, or a verification; the checkpoint lacks its figures
            self.checkpoint.save(self.engine.num_update)
            raise Preempted(self.engine.num_update) from None
        except KeyboardInterrupt:  # the second Ctrl-C
            newest, _ = next(iter(self.checkpoint.folder.complete()), (None, ""))
            if newest is None:
                raise
            saved = f"the newest checkpoint is of update {newest}: continue with --resume auto"
            raise KeyboardInterrupt(f"interrupted: {saved}") from None

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
        settings, checkpoint, ranks = self.settings, self.plan.checkpoint, self.collectives.size
        self.verification.prepare()
        examples = self.collectives.run_on_all_ranks("examples", self._examples)
        log_start(settings, ranks, self.engine.device, describe_rates(settings, ranks))
        log_heads(self.heads)
        for message in self.plan.messages:
            logging.info("%s", message)
        if checkpoint is not None:
            log_resume(checkpoint.path, checkpoint.manifest, self.facts, self.todays_names)
        if self.rank == 0:
            warn_missing(self.verification.missing)
            sets = getattr(self.data, "sets", {"": self.data}).values()
            for head, data in zip(self.heads, sets):
                warn_empty_classes(getattr(data, "classes_of_set", None), head.settings.num_classes)
        metadata = partial(onnx_metadata, settings, self.verification.metadata)
        # A network that cannot be exported is refused now, not after days of training.
        with infrequent_gc():  # imports exporters
            savers = self.framework.build_savers(settings, self.engine, self.run_folder.path, examples, metadata)
        if checkpoint is not None:
            self.collectives.run_on_all_ranks("restore", lambda: self._restore_state(checkpoint))
            checkpoint.restore(self.engine, self.data, self.loop)
            if checkpoint.class_map is not None:
                take_new_centers(settings, checkpoint.class_map, self.engine, self.data)
        elif settings.baselines:
            self.verification.measure_baselines()
        # Last, because a refused training must leave the folder as it was.
        self.collectives.on_rank_zero("claim", self._take_ownership)
        self.collectives.training_begun()
        self._start_time = time.perf_counter()
        return savers

    def _take_ownership(self) -> None:
        """Marks the output folder as this run's, and moves an earlier training into a subfolder.

        Checkpoints newer than the one resumed from are renamed, because this training writes ones of the same name.
        """
        folder, resumed_update = self.run_folder, self.plan.resumed_update
        if resumed_update is not None:
            for path in self.checkpoint.folder.set_aside_newer(resumed_update):
                logging.warning("not resumed from a newer checkpoint; it is kept as %s", path)
        begin_run(folder.path, os.environ.get(RUN, ""), folder.earlier)
        saved = {**self.job_settings, "max_update": self.settings.max_update}
        if saved["heads"]:  # a copy of the file, which may change; of the same name, as it names the output folder
            copy = Path(folder.path, "heads", f"{Path(saved['heads']).stem}.json")
            copy.parent.mkdir(exist_ok=True)
            heads = [{"name": head.name, "weight": head.weight, **head.own} for head in self.heads]
            write_settings(str(copy), {"heads": heads})
            saved["heads"] = str(copy)
        write_settings(os.path.join(folder.path, "settings.json"), saved)
        if resumed_update is None or self.plan.checkpoint is None:
            self.trackers.begin(folder.path, self.settings)
        else:
            changes = changes_since(self.plan.checkpoint.manifest, self.facts, self.todays_names)
            self.trackers.begin(folder.path, self.settings, resumed_update + 1, changes)

    def _prepare_step(self, num_update: int) -> None:
        """Sets the sample ratios of the step after ``num_update``, and seeds this rank's generators for it."""
        epoch = self.epochs.epoch_of(num_update + 1)
        for head, bank in zip(self.heads, self.engine.banks.values()):
            bank.set_sample_ratio(value_in_epoch(head.settings.sample_ratio, epoch))
        if self._draws_random_numbers:
            seed_step(self.engine.seed_generators, self.settings.seed, self.rank, num_update)

    def _save_model(self, savers: Sequence[SaveCallback], update) -> None:
        """Calls the savers. If one fails, which ends the training, saves a checkpoint so that no update is lost."""
        try:
            for save in savers:
                save(update)
        except JobError:
            if self._writes_checkpoints and update.num_update > 1:
                with suppress(JobError):  # the disk may be full; the first error is the one to report
                    self.checkpoint.save(update.num_update)
            raise

    def _finish(self, savers: Sequence[SaveCallback]) -> None:
        """Verifies and saves the trained model, and writes the results."""
        num_update = self.engine.num_update
        self.log.write(self.loop.num_epoch, num_update)
        if self._writes_checkpoints:
            # Before the verification averages the running statistics: a resumed training needs each rank's own.
            self.checkpoint.save(num_update)
        with self.engine.final_weights():
            try:
                self.verification.verify_all(num_update)  # before saving: the ONNX file contains the threshold
            except JobError:
                _save(savers, num_update)
                raise
            self.collectives.end_if_stopped()
            _save(savers, num_update)
        self.collectives.end_if_stopped()
        self.collectives.on_rank_zero("results", self._write_results, self._result())

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
            heads=self.heads,
            defaults=self.defaults,
        )

    def _examples(self) -> Inputs:
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

    def _restore_state(self, checkpoint: SavedTraining) -> None:
        """Restores the state that `_state` returned; a checkpoint of a user's own program has none."""
        state = checkpoint.manifest.state
        if "log" not in state:
            return
        try:
            self.log.restore(state["log"])
            self.verification.restore(state["verification"], state["baselines"], state.get("verification_fields"))
            self._previous_seconds = float(state["seconds"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{checkpoint.path} has no state of a training: {error}; use another checkpoint") from None

    def _seconds(self) -> float:
        return self._previous_seconds + time.perf_counter() - self._start_time


def _save(savers: Sequence[SaveCallback], num_update: int) -> None:
    for saver in savers:
        saver.save(num_update)
