"""State of a nightly run, kept in a file so that a killed run is continued and not begun anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_text
from ebbtide.base.json_values import misfit
from ebbtide.errors import InputError
from ebbtide.market.ingestion import BatchVerdict


@dataclass(frozen=True)
class NightState:
    """State of a nightly run, from its beginning until it has been reported.

    Attributes:
        began_s: Time at which the run began, seconds since 1970; it decides which jobs are due.
        change_points: Number of known price changes before it.
        pipeline_run: Id of its MLflow run; empty: there is none yet.
        verdicts: For each batch of prices its path, its number of rows, and why it was rejected.
        stages: Names of the pipeline's stages that ran.
        due: Pairs of a due job's file and the time for which it is run, seconds since 1970.
    """

    began_s: float
    change_points: int = 0
    pipeline_run: str = ""
    verdicts: tuple[tuple[str, int, str], ...] = ()
    stages: tuple[str, ...] = ()
    due: tuple[tuple[str, float], ...] = ()

    def with_verdicts(self, verdicts: Sequence[BatchVerdict]) -> NightState:
        """The same with batches that were checked; one that was checked before it was killed counts once."""
        known = {path: (path, rows, problem) for path, rows, problem in self.verdicts}
        known |= {str(each.file): (str(each.file), each.rows, each.problem) for each in verdicts}
        return replace(self, verdicts=tuple(known.values()))

    def with_stages(self, stages: Sequence[str]) -> NightState:
        """The same with stages that ran."""
        return replace(self, stages=tuple(dict.fromkeys((*self.stages, *stages))))

    def with_due(
        self, due: Sequence[tuple[str, float]], is_begun: Callable[[str, float], bool] = lambda _file, _due_s: True
    ) -> NightState:
        """The same with jobs that are due; those that a night began before it was killed stay.

        Args:
            due: Pairs of a due job's file and its time.
            is_begun: Tells whether the run of a pair was begun; if several times of a job were missed, one counts.
        """
        begun = [one for one in self.due if is_begun(*one)]
        return replace(self, due=tuple(dict.fromkeys((*begun, *due))))

    def batches(self, *, accepted: bool) -> list[BatchVerdict]:
        """The batches that were accepted, or those that were rejected."""
        found = [BatchVerdict(Path(path), rows, problem) for path, rows, problem in self.verdicts]
        return [verdict for verdict in found if (not verdict.problem) == accepted]

    def write(self, path: Path) -> NightState:
        """Write it to a file, whole or not at all; returns it."""
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")
        return self

    @classmethod
    def read(cls, path: Path) -> NightState | None:
        """The nightly run that a file holds; None: the last one was brought to its end.

        Raises:
            InputError: The file holds something else.
        """
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                values["began_s"],
                values["change_points"],
                values["pipeline_run"],
                tuple((path, rows, problem) for path, rows, problem in values["verdicts"]),
                tuple(values["stages"]),
                tuple((file, due_s) for file, due_s in values["due"]),
            )
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            problem = f"is no state of a nightly run ({misfit(error)}); delete it to begin a new night"
            raise InputError(problem, file=path) from None


@dataclass(frozen=True)
class NightReport:
    """The figures of a nightly run, for `reports/nightly.json`.

    Attributes:
        jobs_done: Number of due jobs that were trained to their end.
        revocations: Number of machines that were revoked from them.
        cost_usd: USD paid for them, net of refunds.
        on_demand_usd: What their work would have cost on demand, USD.
        models: Version of each model of the bundle, by name.
        promoted: Names of the models that the night has promoted.
        seconds: Real seconds from the beginning of the night to its report, kills and pauses included.
        jobs: How each due job went, as plain values.
    """

    jobs_done: int
    revocations: int
    cost_usd: float
    on_demand_usd: float
    models: Mapping[str, str] = field(default_factory=dict)
    promoted: Sequence[str] = ()
    seconds: float = 0.0
    jobs: Sequence[Mapping[str, Any]] = ()

    def write(self, path: Path) -> None:
        """Write the figures as JSON."""
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by which nights are compared in MLflow."""
        names = ("jobs_done", "revocations", "cost_usd", "on_demand_usd", "seconds")
        return {name: float(getattr(self, name)) for name in names}
