"""Progress of programs that do not use `ebbtide.trial`, read from what they print for people.

One counter of a program is chosen, and kept; epochs may take over from steps, which may restart in each epoch.
Progress that cannot be right is dropped and counted, and the user is told once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ebbtide.agent.first_counter import FirstCounter
from ebbtide.agent.log_formats import CounterMeaning, Reading, count_of, is_of_settings
from ebbtide.agent.log_layouts import Bars, EpochEnds, Headers, Tables
from ebbtide.agent.log_readings import is_measured, readings_of, shown
from ebbtide.agent.metric_words import MetricWords, names_in
from ebbtide.agent.plausible import Plausible
from ebbtide.agent.program_lines import is_count, number_of, plain_value, step_of

# Words of lines that state what was done before, in whatever way the program counts.
_RESUMES = re.compile(r"\b(?:resum|restor|load|continu|restart|start(?:ing|ed)? (?:from|after|at))", re.IGNORECASE)
# Names of counters in lines of JSON, the best first; `step` is Ebbtide's own.
_FIELDS = ("global_step", "num_updates", "total_timesteps", "training_step", "iteration", "iter", "epoch")
_TOTALS = ("max_steps", "total_steps", "total", "total_epochs")
_MESSAGES = ("message", "msg", "event")
# Ebbtide's own lines are exact.
_OURS = frozenset({"api", "started", "saved", "finished", "left"})
# Number of lines after a counter that may have its metric.
_LINES_BELOW = 30
# A user's pattern that takes longer than this for a line is not used again.
_SLOW_S = 0.1
_MOST_FOR_PATTERN, _MOST_SHOWN = 1_000, 80


@dataclass
class LogLines:
    """Reads the lines of one program.

    Attributes:
        metric: Name of the metric to look for; empty: none.
        began: Steps that were done when the program was started, in the units that are reported here.
        most: Steps of the whole training; 0: not known.
        pattern: The user's pattern, used instead of the known formats, with groups `step`, and perhaps `total` and
            `metric`; empty: none.
        unit: What the program counts; empty: not seen yet.
        first: Number of the program's first step: 1, or 0 if the first one that it printed had been done already.
        lines: Number of lines that were read.
        refused: Number of lines whose progress cannot be right.
    """

    metric: str = ""
    began: int = 0
    most: int = 0
    pattern: str = ""
    unit: str = ""
    first: int = 1
    lines: int = 0
    refused: int = 0
    _chosen: Reading | None = None
    _step: int | None = None
    _may_go_back: bool = False
    _held: float | None = None
    _looks_below: int = 0
    _is_in_box: bool = False
    _is_open: bool = False
    _misfit: Reading | None = None
    _news: list[str] = field(default_factory=list)
    _headers: Headers = field(default_factory=Headers)
    _tables: Tables = field(default_factory=Tables)
    _bars: Bars = field(default_factory=Bars)
    _ends: EpochEnds = field(default_factory=EpochEnds)

    def __post_init__(self) -> None:
        self._words = MetricWords(self.metric) if self.metric else None
        self._own = re.compile(self.pattern) if self.pattern else None
        self._plausible = Plausible(self.began, self.most)
        self._firsts = FirstCounter(self.began, self.most)

    @property
    def total(self) -> int | None:
        """Total up to which the program counts, in its own units; None: it does not say."""
        return self._chosen.total if self._chosen is not None else None

    def news(self) -> list[str]:
        """Return remarks on progress that was recognised or refused, each once."""
        news, self._news = self._news, []
        return news

    def silence(self) -> list[str]:
        """Return remarks for a user whose program has shown no recognised progress for a while."""
        # A program that resumes at its last step makes no progress.
        if self.unit or 0 < self.most <= self.began:
            return []
        if not self.lines:
            return ["no progress yet: it has printed nothing, or keeps it back where no terminal reads it"]
        if self._misfit is not None:
            return [
                f"no progress recognised yet: the program counts to {self._misfit.total:,}, and the job has "
                f"{self.most:,} steps; write how many it counts (steps, in a sweep max_trial_steps)"
            ]
        looked_for = (
            f"none fits the pattern {self.pattern}" if self.pattern else "none is of a format that is known"
        )
        return [
            f"no progress recognised yet in {self.lines:,} lines: {looked_for}; print lines such as "
            "`step 120/1000 loss 0.31`, or give a pattern of your own with --progress (in a file: progress)"
        ]

    def report_of(self, line: str) -> dict[str, float | int]:
        """Return what a line reports: `step`, and the metric by its name, as a line of JSON; empty: nothing."""
        text = shown(line)
        if not text:
            return {}
        self.lines += 1
        if self._own is not None:
            return self._reported(self._own_reading(self._own, text), text)
        if self._says_what_was_before(text):
            return {}
        is_read, found = self._headers.reading_of(text)
        if not is_read:
            found = self._tables.reading_of(text) or self._best(list(readings_of(text)))
        return self._reported(found, text)

    def checked(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """A line of JSON with the step that its own fields state, and without a step that cannot be right."""
        self.lines += 1
        if not _OURS.isdisjoint(line):
            return line
        if "step" not in line:
            return self._of_fields(line)
        step = step_of(line["step"])
        if step is None:
            return line
        reading = Reading("JSON", "step of JSON", step, first=1, is_global=True)
        if self.unit != reading.unit:
            # The program itself reports a step, so nothing was guessed that the user should know of.
            self._change(reading, "", is_said=False)
        # Results of an evaluation beside the training may come with an earlier step.
        if self._is_wrong(reading, step, may_go_back=True):
            return {name: value for name, value in line.items() if name != "step"}
        return line

    # What a line says.

    def _says_what_was_before(self, text: str) -> bool:
        match = _RESUMES.search(text)
        if match is None:
            return False
        if next(readings_of(text), None) is None:
            # The program may go on from an earlier step.
            self._may_go_back = True
        return bool(self.began) and not self.unit

    def _own_reading(self, pattern: re.Pattern[str], text: str) -> Reading | None:
        began_s = time.perf_counter()
        match = pattern.search(text[:_MOST_FOR_PATTERN])
        if time.perf_counter() - began_s > _SLOW_S:
            self._news.append(f"the pattern for progress takes too long, and is used no more: {self.pattern}")
            self._own = None
        if match is None:
            return None
        groups = match.groupdict()
        try:
            total = count_of(groups["total"]) if groups.get("total") else None
            found = Reading("your pattern", "own", count_of(groups["step"]), total, is_global=True)
            if groups.get("metric"):
                self._held = float(groups["metric"])
        except (ValueError, OverflowError, TypeError):
            return None
        return found

    def _best(self, readings: Sequence[Reading]) -> Reading | None:
        """Return the counter of a line that is in use, or could be; None: there is none."""
        if not readings:
            return None
        first, chosen = readings[0], self._chosen
        if first.unit.startswith("bar of "):
            bar, behind = self._of_bar(first), readings[1:]
            # Take the epoch that follows the bar, if the bar restarts in each epoch.
            is_of_epoch = bar is None or self.unit == "epoch" or bar.total != (self.most or bar.total)
            return behind[0] if behind and is_of_epoch else bar
        if first.format == "Hugging Face Trainer" and chosen is None and self._bars.newest is not None:
            # The Trainer's bar, which is printed as well, counts steps.
            self._change(replace(self._bars.newest, format=first.format, is_weak=False), "")
        fits = next((each for each in readings if self.most and each.total == self.most), None)
        same = next((each for each in readings if each.unit == self.unit), None)
        if same is not None and (fits is None or same.total == self.most):
            return same
        return fits or first

    def _of_bar(self, bar: Reading) -> Reading | None:
        if self._bars.is_anew(bar, may_go_back=self._may_go_back):
            if self.unit == bar.unit:
                self.unit, self._chosen = "", None
            return None
        return None if bar.is_weak and bar.total != self.most and self.unit != bar.unit else bar

    def _of_fields(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        plain = {name: plain_value(value) for name, value in line.items()}
        counts = {name: int(plain[name]) for name in (*_FIELDS, *_TOTALS) if is_count(plain.get(name))}
        total = next((counts[name] for name in _TOTALS if name in counts), None)
        found = [
            Reading("JSON", name, counts[name], total, CounterMeaning.DONE, is_global=name != "epoch")
            for name in _FIELDS
            if name in counts
        ]
        if found and is_of_settings(str(dict(line))):
            return line
        if not found:
            message = next((line[name] for name in _MESSAGES if isinstance(line.get(name), str)), "")
            return {**line, **self.report_of(message)} if message else line
        value = number_of(plain.get(self.metric)) if self.metric in plain else None
        return {**line, **self._told(self._best(found), str(dict(line)), value)}

    # What is made of it.

    def _reported(self, reading: Reading | None, text: str) -> dict[str, float | int]:
        if set(text) == {"-"}:
            # Stable-Baselines3 prints a box, in which the metric stands above the counter or below it.
            self._is_in_box = True
        elif reading is not None:
            self._is_in_box = False
        return self._told(reading, text, self._value_in(text, reading))

    def _told(self, reading: Reading | None, text: str, value: float | None) -> dict[str, float | int]:
        if value is not None and not math.isfinite(value):
            value = None
        if reading is None:
            return self._below(value)
        if not self._choose(reading, text):
            is_of_chosen = self._chosen is not None and self._chosen.is_global and reading.unit == "epoch"
            return self._below(value, is_near=True) if is_of_chosen else {}
        step, is_open = self._step_of(reading)
        if self._is_wrong(reading, step, may_go_back=self._may_go_back):
            return {}
        is_new = self._step is None or step > self._step
        self._step, self._is_open, self._may_go_back = step, is_open, False
        self._firsts.note(reading, is_measured=value is not None or is_measured(text))
        if is_new:
            self._looks_below = _LINES_BELOW
        found: dict[str, float | int] = {"step": step}
        value = self._value_of_step(value, is_open=is_open, is_new=is_new)
        if value is not None and self.metric:
            found[self.metric] = value
            self._looks_below = 0
        return found

    def _value_of_step(self, value: float | None, *, is_open: bool, is_new: bool) -> float | None:
        """The metric to report; that of an unfinished epoch is held back until the epoch is done."""
        held, self._held = self._held, None
        if not is_open:
            return held if value is None else value
        self._held = held if value is None and not is_new else value
        return held if is_new else None

    def _below(self, value: float | None, *, is_near: bool = False) -> dict[str, float | int]:
        """A metric on a line of its own belongs to the counter above it."""
        self._looks_below -= 1
        if value is None:
            return {}
        if self._is_in_box or self._step is None or self._is_open:
            self._held = value
            return {}
        if self._looks_below < 0 and not is_near:
            return {}
        self._looks_below = 0
        return {"step": self._step, self.metric: value}

    def _value_in(self, text: str, reading: Reading | None) -> float | None:
        if self._words is None or (reading is None and self._own is None and self._is_of_finer(text)):
            return None
        if reading is not None and reading.format in ("XGBoost", "LightGBM"):
            return self._words.value_of_end(text)
        return self._words.value_in(text)

    def _is_of_finer(self, text: str) -> bool:
        """Return whether a line has an unused counter, to which a metric on the line then belongs."""
        return next(readings_of(text), None) is not None

    def _choose(self, reading: Reading, text: str) -> bool:
        """Return whether a counter is the one in use, after a change to it if it fits the training better."""
        if self._firsts.is_setting(reading) or self._firsts.is_phase(reading):
            return False
        is_own = not self.most or reading.total in (self.most, self.most - 1)
        if is_own and self._firsts.is_taken_over(reading, is_measured=is_measured(text)):
            self._change(reading, text)
            self._news.append("what was counted before that was not the training, and is counted no more")
            return True
        if reading.unit == self.unit:
            if self._firsts.is_beside(reading):
                return False
            # Some lines of a program leave the total out.
            said = self._chosen.total if self._chosen is not None else None
            self._chosen = replace(reading, total=said) if reading.total is None else reading
            return True
        # Programs that count from 0 may state the last number instead of the total.
        if self.most and reading.total not in (None, self.most, self.most - 1):
            self._misfit = self._misfit or reading
            return False
        if (chosen := self._chosen) is not None:
            fits = bool(self.most) and reading.total == self.most != chosen.total
            coarser = reading.unit == "epoch" and not chosen.is_global and chosen.total != (self.most or -1)
            if not (fits or coarser):
                return False
        self._change(reading, text)
        return True

    def _change(self, reading: Reading, text: str, *, is_said: bool = True) -> None:
        self.unit, self._chosen, self._step = reading.unit, reading, None
        self._plausible = Plausible(self.began, self.most)
        self._firsts.forget()
        self.first = reading.first if reading.first is not None else 0 if reading.number == self.began else 1
        if not is_said:
            return
        of = "" if reading.total is None else f" of {reading.total:,}"
        said = f" from `{text[:_MOST_SHOWN]}`" if text else ""
        what = reading.unit if " of " not in reading.unit and reading.unit != "own" else "step"
        self._news.append(f"progress: {what} {reading.number:,}{of}{said} ({reading.format})")

    def _step_of(self, reading: Reading) -> tuple[int, bool]:
        """Steps that are done, and whether another has begun."""
        if reading.counts is CounterMeaning.DONE:
            return reading.number, False
        is_open = self._ends.is_open(reading)
        done = max(reading.number + (0 if is_open else 1) - self.first, 0)
        # Programs that count from 0 may do one more than they state.
        return min(done, self.most) if self.most and reading.number <= self.most else done, is_open

    def _is_wrong(self, reading: Reading, step: int, *, may_go_back: bool) -> bool:
        why = self._plausible.why_not(reading, step, may_go_back=may_go_back)
        if why:
            self.refused += 1
            if self.refused == 1:
                self._news.append(f"progress that cannot be right is passed over: {why}")
        return bool(why)


def reported_names(line: str) -> dict[str, float]:
    """Names to which a line gives values, so that a misspelt metric can be explained."""
    return dict.fromkeys(names_in(shown(line)), 0.0)
