"""The results of a live run as objects: a data frame with a row for each trial, and a table for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ebbtide.base import html as html
from ebbtide.clouds.settings import LiveSettings
from ebbtide.jobs.job_list import runnable
from ebbtide.runs.status import RunStanding, TrialStanding

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("best", "best_step", "last", "steps", "state", "checkpoint", "problem")
# More trials are left out of the table, not of the frame.
_MOST_ROWS = 30


def results_frame(found: RunStanding, settings: LiveSettings) -> pd.DataFrame:
    """A row for each trial, the best first, indexed by its number.

    The first columns are its parameters; one with the name of another column becomes `parameter.NAME`.
    """
    import pandas as pd

    rows = [{**_parameters(trial, settings), **_figures(trial)} for trial in found.trials]
    numbers = pd.Index([trial.number for trial in found.trials], name="trial")
    names = dict.fromkeys(name for row in rows for name in row if name not in _COLUMNS)
    return pd.DataFrame(rows, index=numbers, columns=[*names, *_COLUMNS])


def results_html(found: RunStanding) -> str:
    """State and money of a run, and a table of its trials, as an HTML fragment; all texts are escaped."""
    title = f"{found.run}: {found.state}" + (f" ({found.why})" if found.why else "")
    metric = found.metric or "metric"
    rows = [
        (
            trial.setting or f"trial {trial.number}",
            trial.state,
            "" if trial.steps_done is None else f"{trial.steps_done:,.0f}",
            *("" if value is None else f"{value:.6g}" for value in (trial.best, trial.last)),
            trial.machine,
            trial.problem,
        )
        for trial in found.trials[:_MOST_ROWS]
    ]
    left = len(found.trials) - len(rows)
    revoked = f"{found.revoked} of {found.rented_ever} machines were taken"
    notes = [f"and {left} more trials"] if left else []
    notes += [f"{found.policy}; {revoked}; {found.money.in_words(simulated=found.is_simulated)}"]
    headings = ("setting", "state", "steps", f"best {metric}", f"last {metric}", "machine", "problem")
    return html.table(title, headings, rows, notes)


def _parameters(trial: TrialStanding, settings: LiveSettings) -> Mapping[str, Any]:
    work = runnable(settings.sweep)
    part, own = work.part_of(trial.number)
    job = {"job": part.name} if work.is_list else {}
    taken = {*_COLUMNS, *job}
    return job | {f"parameter.{name}" if name in taken else name: value for name, value in own.values.items()}


def _figures(trial: TrialStanding) -> Mapping[str, Any]:
    own = (trial.best, trial.best_step, trial.last, trial.steps_done, trial.state, trial.checkpoint, trial.problem)
    return dict(zip(_COLUMNS, own, strict=True))
