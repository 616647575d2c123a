"""The engine of all studies: it trains what the searches try, then what is tested, and collects the results."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt

from dml.inference.loading import load
from dml.inference.split_embeddings import build_evaluator, embed_split, read_data_set
from dml.report.provenance import UNKNOWN, describe_configuration, describe_measurement
from dml.report.statistics import PER_QUERY, ClassSums, shorten, sum_by_class, sum_runs_by_class
from dml.runtime.configuration import check_set_elsewhere, key_of
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.studies.experiments import read_described_keys
from dml.studies.results import ENSEMBLE, SEARCH, TEST, Result
from dml.studies.runs import Plan, Run, check_data
from dml.studies.searches import Overrides, choose_best
from dml.studies.study import Cell, Key, Study

SEARCH_SEED = 0
"""The seed of the runs that searches compare."""


@dataclass(frozen=True)
class Job:
    """A run of a cell.

    Args:
        cell: cell that the run belongs to.
        stage: `SEARCH` or `TEST`.
        overrides: overrides that the search tries, or that it chose.
        fold: fold that validates the training, counted from 1; 0 without folds.
        run: the training with its seed and folder.
    """

    cell: Cell
    stage: str
    overrides: Overrides
    fold: int
    run: Run


@dataclass(frozen=True)
class Trial:
    """Overrides that a search tries: a job for each fold, and the results of those that are finished."""

    overrides: Overrides
    jobs: tuple[Job, ...]
    results: tuple[Result, ...]

    @property
    def is_finished(self) -> bool:
        """Whether all jobs are finished."""
        return len(self.results) == len(self.jobs)

    @property
    def score(self) -> float:
        """The mean score over the folds."""
        return fmean(result.metrics["score"] for result in self.results)


class Engine:
    """The runs of a study, whose results come from their folders, or from earlier commands.

    Args:
        study: the study to run.
        plan: the folders and options of the study's runs, see `dml.studies.runs.Plan`.
        stored: results of earlier commands, also those of the study that this one takes choices from.
    """

    def __init__(self, study: Study, plan: Plan, stored: Iterable[Result]) -> None:
        self.study = study
        self.plan = plan
        self._stored: dict[Key, list[Result]] = {}
        for result in stored:
            self._stored.setdefault(result.key, []).append(result)
        self._read: dict[Job, Result] = {}

    def check(self) -> None:
        """Make sure, before any training, that nothing is set twice, and that the data is there.

        Raises:
            InputError: if an override sets what the study sets, data is missing, or embeddings can't be joined.
        """
        setters, rows, shared = dict[str, str](), dict[str, str](), self.study.content.get("overrides", ())
        for cell in self.study.selected:
            setters |= dict.fromkeys(map(key_of, cell.after), "the study")
            if self.study.kind == "file":  # a row of a table may be changed
                rows |= {
                    key_of(override): "the study" for override in cell.training.overrides if override not in shared
                }
            setters |= dict.fromkeys(cell.search.keys if cell.search else (), f"the search of {cell.row}")
        check_set_elsewhere([*self.plan.overrides, *shared], setters, below=setters)
        check_set_elsewhere(self.plan.overrides, rows)
        runs = [job.run for cell in self.study.selected for job in self._make_jobs(cell, TEST, ())]
        check_data(self.study.name, runs, self.plan.data)

    def train(self) -> bool:
        """Train what is missing of the searches and then of the tests, seed after seed -> whether a run failed."""
        has_failed = False
        while jobs := self._list_open_trials():
            has_failed |= self.plan.train([job.run for job in jobs], "search on the validation classes")
            self._discard(jobs)
            if not any(job.run.is_finished for job in jobs):
                break
        runs = [job.run for job in self._list_open_tests()]
        for seed in sorted({run.seed for run in runs}):
            has_failed |= self.plan.train([run for run in runs if run.seed == seed], f"tests with seed {seed}")
        if unchosen := [cell.row for cell in self.study.selected if self.choose(cell) is None]:
            sys.stderr.write(f"error: not trained, as a run of a search failed: {', '.join(unchosen)}\n")
        return has_failed or bool(unchosen)

    def list_commands(self) -> list[list[str]]:
        """List the commands of the runs that are next, each once: those of searches come before those of tests."""
        jobs = self._list_open_trials() or self._list_open_tests()
        return [self.plan.command(run) for run in {job.run.folder: job.run for job in jobs}.values()]

    def collect(self) -> list[Result]:
        """Collect the results of the selected cells; ensembles of folds are tested first.

        Stored results of further seeds stay.
        """
        results: list[Result] = []
        for cell in self._with_parents():
            for trial in self.list_trials(cell):
                results += trial.results
        for cell in self.study.selected:
            tests = self._list_tests(cell)
            for jobs in tests:
                tested = self._find_all(jobs)
                results += tested
                if self.study.content.get("ensembles") and len(tested) == len(jobs):
                    results.append(self._find_ensemble(jobs))
            known = {job.run.configuration for jobs in tests for job in jobs}
            stored = [result for result in self._stored.get(cell.key, ()) if result.seed >= self.plan.seeds]
            results += [result for result in stored if result.stage == TEST and result.configuration in known]
        return results

    def discard_checkpoints(self) -> None:
        """Delete the checkpoints of the selected cells, unless the study keeps them."""
        for cell in self.study.selected:
            for jobs in self._list_tests(cell):
                self._discard(jobs)

    def select_valid(self, results: Iterable[Result]) -> list[Result]:
        """Select the results of cells that the study has, and whose trainings haven't changed since.

        Results of older versions, which don't say what was trained, are valid.
        """
        by_key = self.study.by_key
        return [
            result
            for result in results
            if (cell := by_key.get(result.key))
            and (not result.configuration or result.configuration == self._identify(cell, result))
        ]

    def choose(self, cell: Cell) -> Overrides | None:
        """Return the overrides that are chosen for a cell; None as long as a search isn't complete."""
        inherited = self._inherit(cell)
        if inherited is None or cell.search is None:
            return inherited
        trials = self.list_trials(cell)
        if not all(trial.is_finished for trial in trials):
            return None
        return (*inherited, *choose_best([(trial.overrides, trial.score) for trial in trials]))

    def list_trials(self, cell: Cell) -> list[Trial]:
        """List what the search of a cell has tried, and tries next; nothing without a search."""
        trials: list[Trial] = []
        if cell.search is None or self._inherit(cell) is None:
            return trials
        while all(trial.is_finished for trial in trials):
            proposed = cell.search.propose([(trial.overrides, trial.score) for trial in trials])
            if not proposed:
                break
            for overrides in proposed:
                jobs = self._make_jobs(cell, SEARCH, overrides)
                trials.append(Trial(overrides, jobs, self._find_all(jobs)))
        return trials

    def _inherit(self, cell: Cell) -> Overrides | None:
        """Return the overrides that a cell takes from another one; None as long as these aren't chosen."""
        if cell.choice_from is None:
            return ()
        if stored := self._find_stored_choice(cell):
            return tuple(shlex.split(stored.overrides))
        parent = self.study.by_key[cell.choice_from]
        if parent.study:
            raise InputError(
                f"{self.study.name}: no results of {parent.row} in {parent.study}; dml study {parent.study} run"
            )
        return self.choose(parent)

    def _find_stored_choice(self, cell: Cell) -> Result | None:
        """Return a stored test of the cell whose choice another one takes, if it has another condition."""
        if cell.choice_from is None or cell.choice_from[1] == cell.condition:
            return None
        return next((result for result in self._stored.get(cell.choice_from, ()) if result.stage == TEST), None)

    def _with_parents(self) -> list[Cell]:
        """List the selected cells behind those whose choices they take, each once."""
        ordered: dict[Key, Cell] = {}

        def add(cell: Cell) -> None:
            if (
                cell.choice_from
                and self._find_stored_choice(cell) is None
                and not self.study.by_key[cell.choice_from].study
            ):
                add(self.study.by_key[cell.choice_from])
            ordered[cell.key] = cell

        for cell in self.study.selected:
            add(cell)
        return list(ordered.values())

    def _make_jobs(self, cell: Cell, stage: str, overrides: Overrides, seed: int = SEARCH_SEED) -> tuple[Job, ...]:
        """Make the jobs of all folds, which train with some overrides."""
        if stage == SEARCH and cell.search is not None:
            further = (*(self._inherit(cell) or ()), *overrides, *cell.search.overrides)
        else:
            further = (*overrides, *cell.after)
        return tuple(
            Job(cell, stage, overrides, fold, self.plan.list_runs(training)[seed])
            for fold, training in cell.divide(further)
        )

    def _list_tests(self, cell: Cell) -> list[tuple[Job, ...]]:
        """List the tested jobs of all folds for each seed; none as long as the search isn't complete."""
        chosen = self.choose(cell)
        return [] if chosen is None else [self._make_jobs(cell, TEST, chosen, seed) for seed in range(self.plan.seeds)]

    def _list_open_trials(self) -> list[Job]:
        trials = [trial for cell in self._with_parents() for trial in self.list_trials(cell)]
        return [job for trial in trials for job in trial.jobs if self._find(job) is None]

    def _list_open_tests(self) -> list[Job]:
        tests = [jobs for cell in self.study.selected for jobs in self._list_tests(cell)]
        return [job for jobs in tests for job in jobs if self._find(job) is None]

    def _find_all(self, jobs: Iterable[Job]) -> tuple[Result, ...]:
        results = map(self._find, jobs)
        return tuple(result for result in results if result is not None)

    def _find(self, job: Job) -> Result | None:
        """Return the result of a job; None as long as there is none."""
        if job not in self._read and job.run.is_finished:
            self._read[job] = self._read_result(job)
        return self._read.get(job) or self._find_stored(job, job.stage, job.run.configuration)

    def _find_stored(self, job: Job, stage: str, configuration: str) -> Result | None:
        stored = self._stored.get(job.cell.key, ())
        known = (stage, job.run.seed, configuration)
        return next((result for result in stored if (result.stage, result.seed, result.configuration) == known), None)

    def _read_result(self, job: Job) -> Result:
        """Read the result of a finished job from the folder of its run."""
        result = Result(
            *job.cell.key,
            stage=job.stage,
            seed=job.run.seed,
            fold=job.fold,
            overrides=shlex.join(job.overrides),
            configuration=job.run.configuration,
            seconds=round(job.run.seconds, 1),
        )
        if job.stage == SEARCH and job.cell.search is not None:
            return replace(result, metrics={"score": job.run.read_score(job.cell.search.score)})
        stored_metrics = {name: value for name, value in job.run.metrics.items() if name.endswith(self.study.metrics)}
        metrics = {name: float(value) for name, value in stored_metrics.items() if isinstance(value, int | float)}
        result = replace(result, facts=describe_run(job.run, job.cell.heads), metrics=metrics)
        return _add_sums(result, sum_runs_by_class([RunFolder(job.run.folder)])) if self.study.sums_classes else result

    def _find_ensemble(self, jobs: Sequence[Job]) -> Result:
        """Test the models of all folds together, unless an earlier command has stored the result."""
        configuration = _join_configurations(jobs)
        stored = self._find_stored(jobs[0], ENSEMBLE, configuration)
        if stored is not None:
            return stored
        single = self._find_all(jobs)[0]
        result = replace(single, stage=ENSEMBLE, fold=0, configuration=configuration, seconds=0.0, metrics={})
        return _add_sums(result, rank_ensemble([RunFolder(job.run.folder) for job in jobs]))

    def _identify(self, cell: Cell, result: Result) -> str:
        """Return the configuration of the jobs that would make a result today."""
        stage = SEARCH if result.stage == SEARCH else TEST
        jobs = self._make_jobs(cell, stage, tuple(shlex.split(result.overrides)))
        if result.stage == ENSEMBLE:
            return _join_configurations(jobs)
        return next((job.run.configuration for job in jobs if job.fold == result.fold), "changed")

    def _discard(self, jobs: Iterable[Job]) -> None:
        for job in [] if self.study.keeps_checkpoints else jobs:
            job.run.discard_checkpoints()


def describe_run(run: Run, heads: tuple[str, ...] = ()) -> dict[str, str]:
    """Return what the metrics of a finished run are of: the facts that it stored, else those by its configuration.

    With heads, they are of the embeddings of these; else of the whole embedding.
    """
    config = read_described_keys(run.training, heads)
    stored = describe_measurement(run.metrics, config)
    if heads:
        del stored["vector"]  # that of the whole embedding
    return describe_configuration(config) | {name: value for name, value in stored.items() if value != UNKNOWN}


def _add_sums(result: Result, tested: ClassSums) -> Result:
    return replace(result, counts=tested.counts, sums={metric: rows[0] for metric, rows in tested.sums.items()})


def _join_configurations(jobs: Iterable[Job]) -> str:
    return "+".join(job.run.configuration for job in jobs)


Vectors = npt.NDArray[np.float32]


def join_embeddings(members: Sequence[Vectors]) -> Vectors:
    """Concatenate the embeddings (N, D) of several models, each scaled to unit length, and scale the result so too.

    The cosine of two joined embeddings is then the mean of the models' cosines. -> (N, sum of D)
    """
    return _scale(np.concatenate([_scale(member) for member in members], axis=1))


def _scale(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return scaled


def rank_ensemble(folders: Sequence[RunFolder]) -> ClassSums:
    """Embed the test split by the models of runs of one seed, one a fold, join the embeddings, and rank by them.

    Raises:
        InputError: if a checkpoint is missing.
    """
    members = []
    for folder in folders:
        if not folder.last_checkpoint.exists():
            raise InputError(f"{folder.path}: no checkpoints of a finished run; delete the folder to train it again")
        model = load(folder.path)
        settings, table = read_data_set(model)
        embedded = embed_split(model, table, "test", on_corrupt=settings.data.on_corrupt)
        members.append(embedded.vectors)
    evaluator = build_evaluator(settings, table, embedded.table)
    labels: list[npt.NDArray[np.int64]] = []
    values: dict[str, list[npt.NDArray[np.float64]]] = {metric: [] for metric in PER_QUERY}
    for ranked in evaluator.evaluate(join_embeddings(members)).lists:
        if all(name in ranked.values for name in PER_QUERY.values()):  # the finest level's, of several lists
            labels.append(embedded.table.labels[ranked.queries, 0])
            for metric, name in PER_QUERY.items():
                values[metric].append(ranked.values[name])
    joined = {metric: np.concatenate(parts) for metric, parts in values.items()}
    counts, sums = sum_by_class(np.concatenate(labels), joined)
    return ClassSums(counts, {metric: [shorten(row)] for metric, row in sums.items()})
