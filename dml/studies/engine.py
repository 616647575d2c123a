"""The engine of all studies: it trains what the searches try, then what is tested, and collects the results."""

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dml.report.statistics import sum_test_by_class
from dml.runtime.configuration import check_set_elsewhere, key_of
from dml.runtime.run_folder import RunFolder
from dml.studies.experiments import describe_training
from dml.studies.results import SEARCH, TEST, Result
from dml.studies.runs import Plan, Run, check_data
from dml.studies.study import Cell, Key, Overrides, Study, choose_best

SEARCH_SEED = 0
"""The seed of the runs that searches compare."""


@dataclass(frozen=True)
class Job:
    """A run of a cell."""

    cell: Cell
    stage: str  # `SEARCH` or `TEST`
    overrides: Overrides  # overrides that the search tries, or that it chose
    run: Run


class Engine:
    """The runs of a study, whose results come from their folders, or from earlier commands."""

    def __init__(self, study: Study, plan: Plan, stored: Iterable[Result]) -> None:
        self.study = study
        self.plan = plan
        self._stored: dict[Key, list[Result]] = {}
        for result in stored:
            self._stored.setdefault(result.key, []).append(result)
        self._read: dict[Job, Result] = {}

    def check(self) -> None:
        """Make sure, before any training, that nothing is set twice, and that the data is there."""
        setters, rows = dict[str, str](), dict[str, str]()
        for cell in self.study.selected:
            setters |= dict.fromkeys(map(key_of, cell.after), "the study")
            if not self.study.is_table:  # a row of a table may be changed
                rows |= dict.fromkeys(map(key_of, cell.training.overrides), "the study")
            setters |= dict.fromkeys(cell.search.keys if cell.search else (), f"the search of {cell.row}")
        check_set_elsewhere(self.plan.overrides, setters, below=setters)
        check_set_elsewhere(self.plan.overrides, rows)
        runs = [self._make_job(cell, TEST, ()).run for cell in self.study.selected]
        check_data(self.study.name, runs, self.plan.data)

    def train(self) -> bool:
        """Train what is missing of the searches and then of the tests, seed after seed -> whether a run failed."""
        has_failed = False
        while jobs := self._list_open_trials():
            has_failed |= self.plan.train([job.run for job in jobs], "search on the validation classes")
            self.discard_checkpoints()
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
        """Collect the results of the selected cells; stored results of further seeds stay."""
        results = [result for cell in self._with_parents() for _, result in self.list_trials(cell) if result]
        for cell in self.study.selected:
            tests = self._list_tests(cell)
            results += filter(None, map(self._find, tests))
            known = {job.run.configuration for job in tests}
            stored = [result for result in self._stored.get(cell.key, ()) if result.seed >= self.plan.seeds]
            results += [result for result in stored if result.stage == TEST and result.configuration in known]
        return results

    def discard_checkpoints(self) -> None:
        """Delete the checkpoints of the selected cells, unless the study keeps those of tested runs."""
        for cell in [] if self.study.is_table else self._with_parents():
            trials, tests = self.list_trials(cell), self._list_tests(cell)
            tried = [(job.overrides, result.metrics["score"]) for job, result in trials if result]
            best = choose_best(tried) if tried else ()  # as long as the search goes on, it may become the tested one
            tested = {job.run.folder for job in tests or [job for job, _ in trials if job.overrides == best]}
            for run in [job.run for job in (*(job for job, _ in trials), *tests)]:
                run.discard_checkpoints(keeps_best=self.study.keeps_models and run.folder in tested)

    def select_valid(self, results: Iterable[Result]) -> list[Result]:
        """Select the results of the study's cells whose trainings haven't changed, or don't say what was trained."""

        def is_valid(result: Result) -> bool:
            cell = self.study.by_key.get(result.key)
            if cell is None or not result.configuration:
                return cell is not None
            job = self._make_job(cell, result.stage, tuple(shlex.split(result.overrides)))
            return job.run.configuration == result.configuration

        return [result for result in results if is_valid(result)]

    def choose(self, cell: Cell) -> Overrides | None:
        """Return the overrides that are chosen for a cell; None as long as a search isn't complete."""
        if cell.choice_from is not None:
            stored = self._find_stored_choice(cell.choice_from)
            return tuple(shlex.split(stored.overrides)) if stored else self.choose(self.study.by_key[cell.choice_from])
        if cell.search is None:
            return ()
        trials = self.list_trials(cell)
        if not all(result for _, result in trials):
            return None
        return choose_best([(job.overrides, result.metrics["score"]) for job, result in trials if result])

    def list_trials(self, cell: Cell) -> list[tuple[Job, Result | None]]:
        """List what the search of a cell has tried, and tries next, with the results; nothing without a search."""
        trials: list[tuple[Job, Result | None]] = []
        while cell.search is not None and all(result for _, result in trials):
            tried = [(job.overrides, result.metrics["score"]) for job, result in trials if result]
            jobs = [self._make_job(cell, SEARCH, overrides) for overrides in cell.search.propose(tried)]
            if not jobs:
                break
            trials += [(job, self._find(job)) for job in jobs]
        return trials

    def _find_stored_choice(self, key: Key) -> Result | None:
        return next((result for result in self._stored.get(key, ()) if result.stage == TEST), None)

    def _with_parents(self) -> list[Cell]:
        """List the selected cells behind those whose choices they take, unless these are stored, each once."""
        ordered: dict[Key, Cell] = {}
        for cell in self.study.selected:
            if cell.choice_from and self._find_stored_choice(cell.choice_from) is None:
                ordered[cell.choice_from] = self.study.by_key[cell.choice_from]
            ordered[cell.key] = cell
        return list(ordered.values())

    def _make_job(self, cell: Cell, stage: str, overrides: Overrides, seed: int = SEARCH_SEED) -> Job:
        training = cell.training.extended(overrides if stage == SEARCH else (*overrides, *cell.after))
        return Job(cell, stage, overrides, self.plan.list_runs(training)[seed])

    def _list_tests(self, cell: Cell) -> list[Job]:
        chosen = self.choose(cell)
        return [] if chosen is None else [self._make_job(cell, TEST, chosen, seed) for seed in range(self.plan.seeds)]

    def _list_open_trials(self) -> list[Job]:
        return [job for cell in self._with_parents() for job, result in self.list_trials(cell) if result is None]

    def _list_open_tests(self) -> list[Job]:
        tests = [job for cell in self.study.selected for job in self._list_tests(cell)]
        return [job for job in tests if self._find(job) is None]

    def _find(self, job: Job) -> Result | None:
        """Return the result of a job, of its run or a stored one; None as long as there is none."""
        if job not in self._read and job.run.is_finished:
            self._read[job] = self._read_result(job)
        known = (job.stage, job.run.seed, job.run.configuration)
        stored = self._stored.get(job.cell.key, ())
        same = (result for result in stored if (result.stage, result.seed, result.configuration) == known)
        return self._read.get(job) or next(same, None)

    def _read_result(self, job: Job) -> Result:
        """Read the result of a finished job from the folder of its run."""
        result = Result(
            *job.cell.key,
            stage=job.stage,
            seed=job.run.seed,
            overrides=shlex.join(job.overrides),
            configuration=job.run.configuration,
            seconds=round(job.run.seconds, 1),
        )
        if job.stage == SEARCH and job.cell.search is not None:
            return replace(result, metrics={"score": job.run.read_score(job.cell.search.score)})
        stored = job.run.metrics
        kept = {name: value for name, value in stored.items() if name.endswith(self.study.metrics)}
        metrics = {name: float(value) for name, value in kept.items() if isinstance(value, int | float)}
        facts = describe_training(job.run.training, job.cell.heads, stored)
        result = replace(result, facts=facts, metrics=metrics)
        if self.study.is_table:
            return result
        tested = sum_test_by_class(RunFolder(job.run.folder))
        return replace(result, counts=tested.counts, sums={metric: rows[0] for metric, rows in tested.sums.items()})
