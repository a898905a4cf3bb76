"""Progress of programs that do not use `ebbtide.trial`, read from the lines that they print for people.

One counter of a program is chosen, and kept; epochs may take over from steps, which may begin anew in each of them.
What cannot be right is counted and told once, and goes no further.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ebbtide.live.agent.log_formats import Counts, Reading, count_of, message_of, readings_of, shown
from ebbtide.live.agent.metric_words import MetricWords, names_in
from ebbtide.live.agent.program_lines import number_of
from ebbtide.live.agent.protocol import MOST_STEPS

# Such a line names what was done before, in whichever way the program counts.
_RESUMES = re.compile(r"\b(?:resum|restor|load|continu|restart|start(?:ing|ed)? (?:from|after|at))", re.IGNORECASE)
_HEADER = re.compile(r"^Epoch:? (?P<epoch>\d+)\s*/\s*(?P<total>\d+)$", re.IGNORECASE)
_KERAS = re.compile(
    r"^(?P<inner>\d+)/(?P<inner_total>\d+|Unknown)\s*(?:\[[=>.]+\]|[━╸╺ ]{3,}|- \d+m?s\b|-? ?\d+s \d)"
)
_BAR = re.compile(r"\d%\s?\|[^|]*\|\s*(?P<inner>\d+)/(?P<inner_total>\d+)\s*\[")
_RULE = re.compile(r"[-=*_\s]*$")
_COUNTERS = {"epoch": "epoch", "iter": "iteration", "iteration": "iteration", "step": "step", "round": "round"}
# Names of counters in lines of JSON, the best first; such lines may have no `step`, which is Ebbtide's own.
_FIELDS = ("global_step", "num_updates", "total_timesteps", "training_step", "iteration", "iter", "epoch")
_TOTALS = ("max_steps", "total_steps", "total", "total_epochs")
_MESSAGES = ("message", "msg", "event")
# Lines after a counter in which its metric may stand.
_LINES_BELOW = 30
# No machine goes further between two lines, unless it did before.
_FARTHEST, _TIMES_FARTHER, _FIRST_FARTHEST = 1_000_000, 1_000, 100_000_000
_MOST_EPOCHS = 1_000_000
# A pattern of the user's that takes longer for a line is not asked again.
_SLOW_S = 0.1
_MOST_OF_LINE, _MOST_FOR_PATTERN = 80, 1_000


@dataclass
class LogLines:
    """Reads the lines of one program.

    Attributes:
        metric: Name of the metric to look for; empty: none.
        began: Steps that were done when the program was started, in the units that are reported here.
        most: Steps of the whole training; 0: not known.
        pattern: A pattern of the user's, instead of the known formats: groups `step`, and perhaps `total` and
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
    _news: list[str] = field(default_factory=list)
    _last: int | None = None
    _step: int | None = None
    _farthest: int = 0
    _may_go_back: bool = False
    _held: float | None = None
    _looks_below: int = 0
    _header: Reading | None = None
    _has_bars: bool | None = None
    _interval: int = 0
    _table: tuple[str, int] | None = None
    _open_bar: Reading | None = None
    _inner_bars: set[str] = field(default_factory=set)
    _in_box: bool = False

    def __post_init__(self) -> None:
        self._words = MetricWords(self.metric) if self.metric else None
        self._own = re.compile(self.pattern) if self.pattern else None

    def news(self) -> list[str]:
        """What is to be said of what was recognised and refused, each once."""
        news, self._news = self._news, []
        return news

    @property
    def is_recognised(self) -> bool:
        """Whether a counter was found."""
        return bool(self.unit)

    @property
    def total(self) -> int | None:
        """How many there are in all, as the program says; None: it does not."""
        return self._chosen.total if self._chosen is not None else None

    def report_of(self, line: str) -> dict[str, float | int]:
        """What a line reports: `step`, and the metric by its name, as in a line of JSON; empty: nothing."""
        text = shown(line)
        if not text:
            return {}
        self.lines += 1
        if self._own is not None:
            return self._reported(self._own_reading(text), text)
        if self._says_what_was_before(text):
            return {}
        found = self._below_header(text) or self._row(text)
        if found is None:
            found = self._best(list(readings_of(text)))
            if found is None and self._header is not None and not _RULE.match(text):
                # An epoch that was only announced, as some programs do at its end.
                self._has_bars, found, self._header = False, self._header, None
        return self._reported(found, text)

    def checked(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """A line of JSON with the step that it reports in its own words, and without one that cannot be right."""
        self.lines += 1
        if "started" in line or "saved" in line:
            return line
        if "step" not in line:
            return self._in_fields(line)
        step = line["step"]
        reading = Reading("JSON", "step of JSON", step) if type(step) is int and step >= 0 else None
        if reading is None:
            return line
        self._choose(reading, str(dict(line)))
        if self._is_wrong(reading, step, may_go_back=True):
            return {name: value for name, value in line.items() if name != "step"}
        self._went(step)
        self._step = step
        return line

    # What a line says.

    def _says_what_was_before(self, text: str) -> bool:
        match = _RESUMES.search(text)
        if match is None:
            return False
        if self.began and not self.unit:
            return True
        is_long_ago = next(readings_of(text[: match.start()]), None) is None
        if is_long_ago and next(readings_of(text), None) is None:
            self._may_go_back = self._may_go_back or bool(re.search(r"\d", text))
        return False

    def _own_reading(self, text: str) -> Reading | None:
        assert self._own is not None
        began_s = time.perf_counter()
        match = self._own.search(text[:_MOST_FOR_PATTERN])
        if time.perf_counter() - began_s > _SLOW_S:
            self._news.append(
                f"the pattern for progress takes too long for a line, and is not used: {self.pattern}"
            )
            self._own = None
        if match is None:
            return None
        groups = match.groupdict()
        try:
            total = count_of(groups["total"]) if groups.get("total") else None
            found = Reading("your pattern", "own", count_of(groups["step"]), total, is_global=True)
        except (ValueError, OverflowError):
            return None
        if groups.get("metric") and self.metric:
            self._held = number_of_text(groups["metric"])
        return found

    def _below_header(self, text: str) -> Reading | None:
        """Keras and its like print `Epoch 3/10` by itself, and a bar below it."""
        match = _HEADER.match(message_of(text))
        if match is not None:
            header = Reading("words", "epoch", int(match["epoch"]), int(match["total"]))
            if self._has_bars is False:
                return header
            self._header = header
            if self._has_bars:
                return replace(header, format="Keras", counts=Counts.BEGUN)
            return None
        if self._header is None:
            return None
        bar = _KERAS.match(text)
        form = "Keras" if bar else "tqdm"
        bar = bar or _BAR.search(text)
        if bar is None:
            return None
        self._has_bars = True
        inner = int(bar["inner"]), int(bar["inner_total"]) if bar["inner_total"].isdecimal() else 0
        if self._interval not in (0, inner[1]):
            return None  # a bar of another length: an evaluation
        is_over = 0 < inner[1] <= inner[0]
        if is_over and not self._interval:
            self._interval = inner[1]
        first = 1 if form == "Keras" else None
        counts = Counts.ORDINAL if is_over else Counts.BEGUN
        return replace(self._header, format=form, counts=counts, first=first)

    def _row(self, text: str) -> Reading | None:
        """A row of a table whose head names the counter: fastai, spaCy, scikit-learn, CSV."""
        cells = text.replace(",", " ").replace("|", " ").split()
        if len(cells) < 2:
            return None
        if not any(cell[:1].isdecimal() for cell in cells):
            if cells[:2] == ["E", "#"]:
                self._table = "spaCy", 1
            elif cells[0].lower() in _COUNTERS and not any("%" in cell for cell in cells):
                self._table = cells[0].lower(), 0
            return None
        if self._table is None:
            return None
        name, place = self._table
        is_row = all(re.match(r"[-+]?[\d.]|nan|inf|None|-", cell) for cell in cells)
        if not is_row or not re.fullmatch(r"\d+", cells[place]):
            return None
        if name == "spaCy":
            return Reading(name, "step", int(cells[1]), counts=Counts.DONE, is_global=True)
        return Reading("table", _COUNTERS[name], int(cells[0]))

    def _best(self, readings: list[Reading]) -> Reading | None:
        """Of several counters of a line the one that is used, or could be."""
        if not readings:
            return None
        bar = readings[0]
        if bar.unit.startswith("bar of "):
            return self._of_bar(bar)
        if readings[0].format == "Hugging Face Trainer" and self._open_bar is not None and not self._is_sure():
            # Its bar beside it counts steps.
            self._change(replace(self._open_bar, format="Hugging Face Trainer", is_weak=False), "")
        same = [each for each in readings if each.unit == self.unit]
        if same and not (self._chosen and self._chosen.total != self.most and self._fits(readings) is not None):
            return same[0]
        return self._fits(readings) or readings[0]

    def _of_bar(self, bar: Reading) -> Reading | None:
        if bar.unit in self._inner_bars:
            return None
        if self.unit == bar.unit and self._last is not None and bar.number < self._last and not self._may_go_back:
            # It began anew: a bar for each epoch, or of an evaluation.
            self._inner_bars.add(bar.unit)
            self.unit, self._chosen = "", None
            return None
        self._open_bar = bar
        return None if bar.is_weak and bar.total != self.most and self.unit != bar.unit else bar

    def _fits(self, readings: list[Reading]) -> Reading | None:
        """The counter that goes as far as the training."""
        return next((each for each in readings if self.most and each.total == self.most), None)

    def _is_sure(self) -> bool:
        return self._chosen is not None and self._chosen.unit == (self._open_bar and self._open_bar.unit)

    def _in_fields(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        plain = {name: _plain(value) for name, value in line.items()}
        total = next((plain[name] for name in _TOTALS if _is_count(plain.get(name))), None)
        found = [
            Reading(
                "JSON",
                name,
                int(plain[name]),
                int(total) if total is not None else None,
                Counts.DONE,
                is_global=name != "epoch",
            )
            for name in _FIELDS
            if _is_count(plain.get(name))
        ]
        if not found:
            message = next((line[name] for name in _MESSAGES if isinstance(line.get(name), str)), "")
            return {**self.report_of(message), **line} if message else line
        if self.metric and self.metric in plain:
            self._held = number_of(plain[self.metric])
        return {**line, **self._reported(self._best(found), str(dict(line)), is_json=True)}

    # What is made of it.

    def _reported(self, reading: Reading | None, text: str, *, is_json: bool = False) -> dict[str, float | int]:
        value = None if is_json else self._value_in(text, reading)
        if reading is None:
            return self._below(value)
        if not self._choose(reading, text):
            return {}
        self._looks_below = _LINES_BELOW
        step = self._step_of(reading)
        if self._is_wrong(reading, step):
            return {}
        self._went(reading.number)
        is_new = self._step is None or step > self._step
        self._step = step
        told = self._told(value, is_open=self._is_open(reading), is_new=is_new)
        found: dict[str, float | int] = {"step": step}
        if told is not None and self.metric and math.isfinite(told):
            found[self.metric] = told
            self._looks_below = 0
        return found

    def _told(self, value: float | None, *, is_open: bool, is_new: bool) -> float | None:
        """The metric of what is done; that of an epoch which is not is held back until it is."""
        held, self._held = self._held, None
        if not is_open:
            return held if value is None else value
        self._held = held if value is None and not is_new else value
        return held if is_new else None

    def _below(self, value: float | None) -> dict[str, float | int]:
        """A metric on a line of its own belongs to the counter above it."""
        if value is None or not math.isfinite(value):
            self._looks_below -= 1
            return {}
        if self._in_box or self._step is None or (self._chosen and self._is_open(self._chosen)):
            self._held = value
            return {}
        if self._looks_below <= 0:
            return {}
        self._looks_below = 0
        return {"step": self._step, self.metric: value}

    def _value_in(self, text: str, reading: Reading | None) -> float | None:
        if set(text) == {"-"}:
            # Stable-Baselines3 prints a box, in which the metric stands above the counter or below it.
            self._in_box = True
        elif reading is not None:
            self._in_box = False
        if self._words is None:
            return None
        if reading is None and self._has_finer(text):
            return None
        value = self._words.value_in(text)
        if value is None and reading is not None and reading.format in ("XGBoost", "LightGBM"):
            value = self._words.value_of_end(text)
        return value

    def _has_finer(self, text: str) -> bool:
        return self._own is None and next(readings_of(text), None) is not None

    def _choose(self, reading: Reading, text: str) -> bool:
        """Whether a counter is the one that is used."""
        if reading.unit == self.unit:
            self._chosen = reading
            return True
        if self.most and reading.total is not None and self._misses(reading):
            return False
        chosen = self._chosen
        if chosen is not None:
            fits = bool(self.most) and reading.total == self.most != chosen.total
            coarser = reading.unit == "epoch" and not chosen.is_global and chosen.total != (self.most or -1)
            if not (fits or coarser):
                return False
        self._change(reading, text)
        return True

    def _misses(self, reading: Reading) -> bool:
        # From 0 on, some programs name the last one instead of how many there are.
        return reading.total not in (self.most, self.most - 1)

    def _change(self, reading: Reading, text: str) -> None:
        self.unit, self._chosen, self._last, self._step, self._farthest = reading.unit, reading, None, None, 0
        if reading.counts is Counts.DONE or reading.unit == "step of JSON":
            self.first = 1
        else:
            self.first = reading.first if reading.first is not None else 0 if reading.number == self.began else 1
        of = "" if reading.total is None else f" of {reading.total:,}"
        from_line = f" from `{text[:_MOST_OF_LINE]}`" if text else ""
        what = "step" if reading.unit.startswith(("bar of", "own", "step of")) else reading.unit
        self._news.append(f"progress: {what} {reading.number:,}{of}{from_line} ({reading.format})")

    def _step_of(self, reading: Reading) -> int:
        if reading.counts is Counts.DONE:
            return reading.number
        done = reading.number + 1 - self.first
        if self._is_open(reading):
            done -= 1
        # From 0 on, some programs do one more than they say.
        return min(done, self.most) if self.most and reading.number <= self.most else done

    def _is_open(self, reading: Reading) -> bool:
        """Whether its epoch has begun and is not done."""
        if reading.counts is Counts.BEGUN:
            return True
        if reading.inner is None:
            return False
        done, total = reading.inner
        return done + self._every(reading) <= total if done < total else False

    def _every(self, reading: Reading) -> int:
        """How much of an epoch is done between two lines of it, so that the last one can be known."""
        assert reading.inner is not None
        if reading.format in ("tqdm", "ultralytics"):
            return 0
        return max(self._interval, 1)

    def _went(self, number: int) -> None:
        if self._last is not None:
            self._farthest = max(self._farthest, number - self._last)
        self._last, self._may_go_back = number, False
        inner = self._chosen.inner if self._chosen is not None else None
        if inner is not None:
            before = getattr(self, "_inner_before", 0)
            if before < inner[0] < inner[1]:
                self._interval = min(self._interval or inner[0], inner[0] - before) if before else self._interval
            self._inner_before = inner[0]

    def _is_wrong(self, reading: Reading, step: int, *, may_go_back: bool = False) -> bool:
        """Whether progress cannot be right; it is counted, and said once."""
        number, last = reading.number, self._last
        why = ""
        if reading.total is not None and number > reading.total:
            why = f"{number:,} is more than its total of {reading.total:,}"
        elif self.most and step > self.most:
            why = f"{step:,} is more than the {self.most:,} steps of the job"
        elif step > MOST_STEPS or (reading.unit == "epoch" and number > _MOST_EPOCHS):
            why = f"{number:,} is more than any training has"
        elif last is not None and number < last and not (may_go_back or self._may_go_back):
            why = f"it went back from {last:,} to {number:,}"
        elif last is None and number - self.began > _FIRST_FARTHEST and reading.total is None and not self.most:
            why = f"{number:,} is too far for a beginning"
        elif last is not None and number - last > max(_FARTHEST, _TIMES_FARTHER * self._farthest):
            why = f"no machine goes from {last:,} to {number:,} between two lines"
        if not why:
            return False
        self.refused += 1
        if self.refused == 1:
            self._news.append(f"progress that cannot be right is passed over: {why}")
        return True


def number_of_text(text: str) -> float:
    """A number in words; NaN: it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def reported_names(line: str) -> dict[str, float]:
    """Names that a line gives values of, so that a misspelt metric can be explained."""
    return dict.fromkeys(names_in(shown(line)), 0.0)


def _plain(value: object) -> object:
    """A number that a tool wrote as text."""
    if isinstance(value, str):
        try:
            return float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            return value
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
