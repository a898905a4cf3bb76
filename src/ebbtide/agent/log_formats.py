"""Known formats of log lines, and the progress that a line in each of them states.

Most are rows of `FORMATS`. To support another tool, add a row with its name, a pattern, and how the tool counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# A count as people write it: 1200, 1,200, 1_200, 1.2k.
COUNT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+|\d+(?:\.\d+)?[kKM]?)"
_TIMES = {"k": 1_000, "K": 1_000, "M": 1_000_000}


class CounterMeaning(Enum):
    """Meaning of the number in a progress line."""

    ORDINAL = "the number of what is being done or has been done, from 0 or from 1"
    DONE = "how much has been done"
    BEGUN = "the number of what has begun and is not done"


@dataclass(frozen=True)
class LogFormat:
    """A format of log lines.

    Attributes:
        name: Name of the tool, as users are told it.
        pattern: Finds a line's counter: group `epoch` or `step`, and perhaps `total`; `inner` and `inner_total`
            say how far the epoch is, `percent` the same in percent.
        counts: What the number means.
        first: Number of the first one; None: it follows from what is printed first.
        is_global: Whether the steps go on over all epochs, so that no epochs are needed beside them.
    """

    name: str
    pattern: re.Pattern[str]
    counts: CounterMeaning = CounterMeaning.ORDINAL
    first: int | None = None
    is_global: bool = False


@dataclass(frozen=True)
class Reading:
    """Progress of a training as one line of its log states it.

    Attributes:
        format: Name of the format.
        unit: Unit that is counted: `epoch`, `step` and so on; bars with different totals count different units.
        number: The number as it stands in the line.
        total: Number of units in all; None: not stated.
        counts: Meaning of the number.
        first: Number of the first unit; None: it follows from what is printed first.
        is_global: Whether steps are counted across epochs.
        inner: Steps done within the epoch, and its length (0: not stated); None: neither is stated.
        is_weak: Whether it may be a progress bar of something other than training.
        is_bare: Whether the line is a name with a number and nothing else, as settings are printed.
        is_phase: Whether words after the number name a phase, as in a set-up.
    """

    format: str
    unit: str
    number: int
    total: int | None = None
    counts: CounterMeaning = CounterMeaning.ORDINAL
    first: int | None = None
    is_global: bool = False
    inner: tuple[int, int] | None = None
    is_weak: bool = False
    is_bare: bool = False
    is_phase: bool = False

    @property
    def is_exact(self) -> bool:
        """True for bars, which run to their end: the epoch is done when the line says so, and not before."""
        return self.format in ("tqdm", "ultralytics", "Lightning")


def count_of(text: str) -> int:
    """A count as people write it, fractions rounded down."""
    factor = _TIMES.get(text[-1:], 1)
    # The floating-point product may be slightly below the whole number.
    return int(float(text.rstrip("kKM").replace(",", "").replace("_", "")) * factor + 1e-6)


def _format(
    name: str, pattern: str, counts: CounterMeaning = CounterMeaning.ORDINAL, first: int | None = None
) -> LogFormat:
    return LogFormat(name, re.compile(pattern), counts, first)


def _steps(
    name: str, pattern: str, counts: CounterMeaning = CounterMeaning.ORDINAL, first: int | None = None
) -> LogFormat:
    return LogFormat(name, re.compile(pattern), counts, first, is_global=True)


_INNER = r"\[\s*(?P<inner>\d+)/(?P<inner_total>\d+)\]"
# Names with values, and nothing else, to the end of the line.
_SCORES = rf"(?:\s+[A-Za-z_][^\t:]{{0,80}}:\s*(?:{NUMBER}|nan|inf)(?:\s*\+\s*{NUMBER})?)+\s*$"

FORMATS = (
    _steps(
        "Stable-Baselines3",
        rf"^\|\s+(?:time/)?\s*total_timesteps\s*\|\s*(?P<step>{COUNT})\s*\|$",
        CounterMeaning.DONE,
    ),
    _format("mmengine", rf"^Epoch\(train\)\s+\[(?P<epoch>\d+)\]\s*{_INNER}", first=1),
    _format("mmengine", r"^Epoch\(val\)\s+\[(?P<epoch>\d+)\]\s*\[\s*\d+/\d+\]", first=1),
    _steps("mmengine", r"^Iter\(train\)\s+\[\s*(?P<step>\d+)/(?P<total>\d+)\]", first=1),
    _format(
        "ImageNet example",
        rf"\b(?:[Ee]poch|Train):?\s*\[?(?P<epoch>\d+)(?:/(?P<total>\d+))?\]?:?\s*{_INNER}",
    ),
    _format("PyTorch tutorial", r"^\[(?P<epoch>\d+),\s*(?P<inner>\d+)\]\s*loss\b", first=1),
    _format("timm", r"^Train: (?P<epoch>\d+) \[\s*(?P<inner>\d+)/(?P<inner_total>\d+)"),
    _format("MNIST example", r"\bTrain Epoch: (?P<epoch>\d+) \[\s*(?P<inner>\d+)/(?P<inner_total>\d+) \("),
    _format(
        "ultralytics",
        r"^(?P<epoch>\d+)/(?P<total>\d+)\s+[\d.]+[GM]\s.*?(?P<percent>\d{1,3})%",
    ),
    _steps("LightGBM", rf"^\[(?P<step>\d+)\](?=\s+\S+'s ){_SCORES}", first=1),
    _steps("XGBoost", rf"^\[(?P<step>\d+)\](?=\s+[\w.]+-\w){_SCORES}", first=0),
    _steps("CatBoost", rf"^(?P<step>\d+):\s+(?:learn|test): {NUMBER}\s", first=0),
    _steps("nanoGPT", rf"^(?:iter|step) (?P<step>\d+): (?:train )?loss {NUMBER}"),
    _steps("Megatron", r"^iteration\s+(?P<step>\d+)/\s*(?P<total>\d+)\s*\|"),
    _steps("fairseq", r"\bnum_updates[\"']?[ :=]+[\"']?(?P<step>\d+)", CounterMeaning.DONE),
    _steps("detectron2", r"\biter: (?P<step>\d+)\s+total_loss: "),
    _format("ESPnet", r"\b(?P<epoch>\d+)/(?P<total>\d+)epoch started\b", CounterMeaning.BEGUN, first=1),
    _format("ESPnet", r"\b(?P<epoch>\d+)epoch results:", first=1),
    _steps("Marian", r"\bEp\. \d+ : Up\. (?P<step>\d+) :", CounterMeaning.DONE),
    _steps("Darknet", rf"^(?P<step>\d+): {NUMBER}, {NUMBER} avg\b", CounterMeaning.DONE),
    _steps("StyleGAN", r"^tick (?P<step>\d+)\s+kimg \d", CounterMeaning.DONE),
    _steps("Nerfstudio", r"^(?P<step>\d+) \(\d+(?:\.\d+)?%\)\s{2,}[\d.]+ m?s\b", CounterMeaning.DONE),
    _steps("Composer", rf"(?:^|\s)\[batch=(?P<step>{COUNT})/(?P<total>{COUNT})\]:$", CounterMeaning.DONE),
    _format(
        "Composer",
        r"(?:^|\s)\[epoch=(?P<epoch>\d+)/(?P<total>\d+)\]\[batch=(?P<inner>\d+)/(?P<inner_total>\d+)\]:$",
    ),
    _steps("OLMo", r"(?:^|\s)\[step=(?P<step>\d+)/(?P<total>\d+)(?:,epoch=\d+.*)?\]$", CounterMeaning.DONE),
    _steps(
        "Levanter", rf"\bProgress on:\s*train\s+(?P<step>{COUNT})it/(?P<total>{COUNT})it\b", CounterMeaning.DONE
    ),
    _steps("ML-Agents", r"\. Step: (?P<step>\d+)\. Time Elapsed: ", CounterMeaning.DONE),
    _steps(
        "Flax examples",
        r"^Step\.\.\. \((?P<step>\d+)(?:/(?P<total>\d+))? \| (?:Training |Train )?Loss: ",
        CounterMeaning.DONE,
    ),
    _steps("DeepSpeed", r"\bstep=(?P<step>\d+), skipped=\d+, lr=", CounterMeaning.DONE),
    _steps("Lightning", r"\bEpoch \d+, global step (?P<step>\d+): ", CounterMeaning.DONE),
    _steps("Lightning", r"\bepoch=\d+-step=(?P<step>\d+)", CounterMeaning.DONE),
    _format("Lightning", r"^Epoch (?P<epoch>\d+)/\d+\s+[━╸╺ ]{4,}\s*(?P<inner>\d+)/(?P<inner_total>\d+)\s"),
    _format(
        "Hugging Face Trainer", r"^\{.*['\"]epoch['\"]: ['\"]?(?P<epoch>\d+(?:\.\d+)?)\b.*\}$", CounterMeaning.DONE
    ),
    _steps(
        "words",
        rf"(?<![\w.])(?P<step>{COUNT})\s*(?:/|of|out of)\s*(?P<total>{COUNT})\s+(?:steps|iterations)\b",
        CounterMeaning.DONE,
    ),
    _format(
        "words",
        rf"(?<![\w.])(?P<epoch>{COUNT})\s*(?:/|of|out of)\s*(?P<total>{COUNT})\s+epochs\b",
        CounterMeaning.DONE,
    ),
    _steps("CLU", rf"^\[(?P<step>\d+)\] (?:[\w/.]+={NUMBER}(?:, |$))+$"),
)

# A last resort, since ranks may be printed like this, too.
FRACTION = _format(
    "fraction",
    rf"^[\[(]?(?P<step>{COUNT})\s*/\s*(?P<total>{COUNT})[\])]?\s*[:|,;-]?\s*(?=[A-Za-z])"
    r"(?=.*loss\S{0,20}?[=: ]\s*[-\d])",
)

# Words before a number that make it a setting, a number from the past, or a counter of an evaluation.
FORBIDS = re.compile(
    r"\b(?:max(?:imum)?|min(?:imum)?|num(?:ber)?(?: of)?|total|warm[- ]?up|every|each|per|save|saving|log|logging"
    r"|eval|evaluation|val|valid|validation|test|testing|dev|accumulation|best|last|since|from|after|until|before|next"
    r"|decay|patience|for|first|resum\w*|restor\w*|load\w*|continu\w*|restart\w*)[ _-]*\]?[:=]?\s*$",
    re.I,
)
_SETTINGS = re.compile(
    r"\b[A-Za-z]\w*\([a-z]\w*=|^\W*(?:args?|arguments|config\w*|options|settings|flags|hyper-?param\w*)\b"
    r"|\b(?:batch_?size|seed|num_workers|device|data_(?:dir|path)|output_dir)[\"']?\s*[:=]",
    re.I,
)
_LOSS = re.compile(r"loss[\"']?\s*[:=]\s*[\"']?[-\d]", re.I)
LONG_AGO = re.compile(r"\b(?:best|earlier|previous|resum|restor|load|continu|restart)", re.I)


def reading_of(message: str) -> Reading | None:
    """Return the progress that a message states, by the first format that it matches; None: it matches none."""
    return _first_of(FORMATS, message)


def fraction_of(message: str) -> Reading | None:
    """Return the progress of a message that begins with a fraction and has a loss; None: it does not."""
    return _first_of((FRACTION,), message)


def is_of_settings(text: str) -> bool:
    """Tell whether a line shows a program's arguments, in which names of counters are limits."""
    return _SETTINGS.search(text) is not None and not _LOSS.search(text)


def _first_of(formats: Sequence[LogFormat], message: str) -> Reading | None:
    for form in formats:
        match = form.pattern.search(message)
        if match is None:
            continue
        before = message[: match.start()]
        if not FORBIDS.search(before) and not LONG_AGO.search(before):
            return _reading(form, match)
    return None


def _reading(form: LogFormat, match: re.Match[str]) -> Reading:
    groups: Mapping[str, str | None] = match.groupdict()
    unit = "epoch" if groups.get("epoch") is not None else "step"
    total, inner = groups.get("total"), None
    if (percent := groups.get("percent")) is not None:
        inner = int(percent), 100
    elif (so_far := groups.get("inner")) is not None:
        inner = int(so_far), int(groups.get("inner_total") or 0)
    return Reading(
        form.name,
        unit,
        count_of(groups[unit] or "0"),
        count_of(total) if total else None,
        form.counts,
        form.first,
        form.is_global,
        inner,
    )
