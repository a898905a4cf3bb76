"""Known formats of log lines: what a line of each says of how far a training is.

Most are rows of `FORMATS`. A row is added for a further tool by its name, a pattern, and how the tool counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
# A count as people write it: 1200, 1,200, 1_200, 1.2k.
COUNT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+|\d+(?:\.\d+)?[kKM]?)"
MOST_CHARACTERS = 2_000
_TIMES = {"k": 1_000, "K": 1_000, "M": 1_000_000}


class Counts(Enum):
    """What the number of a line means."""

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
    counts: Counts = Counts.ORDINAL
    first: int | None = None
    is_global: bool = False


@dataclass(frozen=True)
class Reading:
    """What a line says of how far the training is.

    Attributes:
        format: Name of the format.
        unit: What is counted: `epoch`, `step` and so on; bars with different totals count different things.
        number: The number as it stands there.
        total: How many there are in all; None: not said.
        counts: What the number means.
        first: Number of the first one; None: it follows from what is printed first.
        is_global: Whether the steps go on over all epochs.
        inner: How far an epoch is, and how far it goes; None: not said.
        is_weak: Whether it may be a bar of something else than training.
    """

    format: str
    unit: str
    number: int
    total: int | None = None
    counts: Counts = Counts.ORDINAL
    first: int | None = None
    is_global: bool = False
    inner: tuple[int, int] | None = None
    is_weak: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether its epoch is done when it says so, and not before: a bar, which goes to its end."""
        return self.format in ("tqdm", "ultralytics", "Lightning")


def count_of(text: str) -> int:
    """A count as people write it, fractions rounded down."""
    factor = _TIMES.get(text[-1:], 1)
    # A sum of floats may be a hair below what it stands for.
    return int(float(text.rstrip("kKM").replace(",", "").replace("_", "")) * factor + 1e-6)


def _format(name: str, pattern: str, counts: Counts = Counts.ORDINAL, first: int | None = None) -> LogFormat:
    return LogFormat(name, re.compile(pattern), counts, first)


def _steps(name: str, pattern: str, counts: Counts = Counts.ORDINAL, first: int | None = None) -> LogFormat:
    return LogFormat(name, re.compile(pattern), counts, first, is_global=True)


_INNER = r"\[\s*(?P<inner>\d+)/(?P<inner_total>\d+)\]"
# Names with values, and nothing else, to the end of the line.
_SCORES = rf"(?:\s+[A-Za-z_][^\t:]{{0,80}}:\s*(?:{NUMBER}|nan|inf)(?:\s*\+\s*{NUMBER})?)+\s*$"

FORMATS = (
    _steps(
        "Stable-Baselines3", rf"^\|\s+(?:time/)?\s*total_timesteps\s*\|\s*(?P<step>{COUNT})\s*\|$", Counts.DONE
    ),
    _format("mmengine", rf"^Epoch\(train\)\s+\[(?P<epoch>\d+)\]\s*{_INNER}", first=1),
    _format("mmengine", r"^Epoch\(val\)\s+\[(?P<epoch>\d+)\]\s*\[\s*\d+/\d+\]", first=1),
    _steps("mmengine", r"^Iter\(train\)\s+\[\s*(?P<step>\d+)/(?P<total>\d+)\]", first=1),
    _format("ImageNet example", rf"^(?:Train )?Epoch:?\s*\[?(?P<epoch>\d+)\]?\s*{_INNER}"),
    _format("timm", r"^Train: (?P<epoch>\d+) \[\s*(?P<inner>\d+)/(?P<inner_total>\d+)"),
    _format("MNIST example", r"^Train Epoch: (?P<epoch>\d+) \[(?P<inner>\d+)/(?P<inner_total>\d+) \("),
    _format(
        "ultralytics",
        r"^(?P<epoch>\d+)/(?P<total>\d+)\s+[\d.]+[GM]\s.*?(?P<percent>\d{1,3})%",
    ),
    _steps("LightGBM", rf"^\[(?P<step>\d+)\](?=\s+\S+'s ){_SCORES}", first=1),
    _steps("XGBoost", rf"^\[(?P<step>\d+)\](?=\s+[\w.]+-\w){_SCORES}", first=0),
    _steps("CatBoost", rf"^(?P<step>\d+):\s+(?:learn|test): {NUMBER}\s", first=0),
    _steps("nanoGPT", rf"^(?:iter|step) (?P<step>\d+): (?:train )?loss {NUMBER}"),
    _steps("Megatron", r"^iteration\s+(?P<step>\d+)/\s*(?P<total>\d+)\s*\|"),
    _steps("fairseq", r"\bnum_updates[\"']?[ :=]+[\"']?(?P<step>\d+)", Counts.DONE),
    _steps("detectron2", r"\biter: (?P<step>\d+)\s+total_loss: "),
    _steps("DeepSpeed", r"\bstep=(?P<step>\d+), skipped=\d+, lr=", Counts.DONE),
    _steps("Lightning", r"\bEpoch \d+, global step (?P<step>\d+): ", Counts.DONE),
    _steps("Lightning", r"\bepoch=\d+-step=(?P<step>\d+)", Counts.DONE),
    _format("Lightning", r"^Epoch (?P<epoch>\d+)/\d+\s+[━╸╺ ]{4,}\s*(?P<inner>\d+)/(?P<inner_total>\d+)\s"),
    _format("Hugging Face Trainer", r"^\{.*['\"]epoch['\"]: ['\"]?(?P<epoch>\d+(?:\.\d+)?)\b.*\}$", Counts.DONE),
    _steps(
        "words",
        rf"(?<![\w.])(?P<step>{COUNT})\s*(?:/|of|out of)\s*(?P<total>{COUNT})\s+(?:steps|iterations)\b",
        Counts.DONE,
    ),
    _format(
        "words", rf"(?<![\w.])(?P<epoch>{COUNT})\s*(?:/|of|out of)\s*(?P<total>{COUNT})\s+epochs\b", Counts.DONE
    ),
    _format(
        "fraction",
        rf"^[\[(]?(?P<step>{COUNT})\s*/\s*(?P<total>{COUNT})[\])]?\s*[:|,;-]?\s*(?=[A-Za-z])"
        r"(?=.*loss\S{0,20}?[=: ]\s*[-\d])",
    ),
    _steps("CLU", rf"^\[(?P<step>\d+)\] (?:[\w/.]+={NUMBER}(?:, |$))+$"),
)

# Counters by their words, as programs of one's own print them; the larger unit first.
_WORDS = tuple(
    (
        unit,
        re.compile(rf"(?<![\w.])(?:train(?:ing|er)?[_/])?(?:{words})\b[\"']?\s*[:=#\[(]*\s*[\"']?({COUNT})", re.I),
    )
    for unit, words in (
        ("global step", r"global[_ -]?steps?"),
        ("epoch", "epochs?"),
        ("step", "steps?"),
        ("iteration", "iterations?|iters?|it"),
        ("episode", "episodes?|ep"),
        ("round", "rounds?"),
        ("update", "updates?"),
    )
)
_OF = re.compile(rf"\s*(?:/|of|out of)\s*({COUNT})(?![\w.])", re.I)
# After the number: another number of a version, date or time, a share, a word.
_NO_COUNT = re.compile(r"[\w%]|\.\d+\.\d|-\d|:\d|\.\w|\s*%")
_FRACTION = re.compile(r"\.\d+(?![\w.])")
# Words before a counter: with these it counts, with those it is a setting or was long ago.
_MAY_PRECEDE = frozenset(
    [
        "train",
        "training",
        "trainer",
        "start",
        "starting",
        "started",
        "begin",
        "beginning",
        "began",
        "finish",
        "finished",
        "finishing",
        "end",
        "ended",
        "ending",
        "complete",
        "completed",
        "done",
        "running",
        "processing",
        "at",
        "of",
        "current",
        "now",
        "info",
        "debug",
        "epoch",
        "and",
    ]
)
_FORBIDS = re.compile(
    r"\b(?:max(?:imum)?|min(?:imum)?|num(?:ber)?(?: of)?|total|warm[- ]?up|every|each|per|save|saving|log|logging"
    r"|eval|evaluation|validation|accumulation|best|last|since|from|after|until|before|next"
    r"|decay|patience|for|first|resum\w*|restor\w*|load\w*|continu\w*|restart\w*)[ _-]*[:=]?\s*$",
    re.I,
)
_LONG_AGO = re.compile(r"\b(?:best|earlier|previous|resum|restor|load|continu|restart)", re.I)
_MEASURED = re.compile(
    r"(?:loss|acc|err|reward|return|score|lr|learning[ _]rate|ppl|perplex|auc|f1|mse|mae|rmse|iou|bleu|grad|norm"
    r"|time|sec|elapsed|tok|speed|fps|eta|train|val|eval|mfu|mem|metric)\w*\W{0,12}(?:is |was )?"
    rf"(?:{NUMBER}|nan|[-+]?inf)|^\s*[:,|]?\s*{NUMBER}\s*(?:$|[,|])",
    re.I,
)
_OVER = re.compile(r"\b(?:done|complete[ds]?|finished|ended|took)\b", re.I)
_PLAIN_END = re.compile(r"[\s\W]*$")
_DOCKER = re.compile(r"\s*:\s*[A-Z]{3,}\b")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
# What loggers and launchers put before a message. A number alone in brackets is a counter of boosters.
_PREFIX = re.compile(
    r"\s*(?:\[(?!\s*\d+\s*\]|\s*\d+/\d|[^\]]{0,20}\b(?i:step|epoch|iter)\w*\W{0,3}\d)[^\]\[]{0,80}\](?:\s*:)?(?=\s)"
    r"|\(\w[^()]{0,60}=\d[^()]*\)"
    r"|\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d\S*)?"
    r"|\d\d:\d\d:\d\d\S*"
    r"|[IWED]\d{4} [\d:.]+\s+\d+ [\w./]+:\d+\]"
    r"|(?:DEBUG|INFO|NOTICE)\b(?::[\w.]+:|:)?"
    r"|[\w.-]+ (?=- )|[\w.]+ (?=\| )|[\w./]+\.py:\d+:?|[-|](?=\s))\s*"
)
_MOST_PREFIXES = 8
# Of one word; a line in which it is none so often has no counter.
_MOST_TRIED = 4

_BAR = re.compile(
    rf"^(?P<label>.*?)(?P<percent>\d{{1,3}})%\s?\|[^|]*\|\s*(?P<step>{COUNT})/(?P<total>{COUNT})\s*"
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*(?:,\s*(?P<rate>[^,\]]*))?(?P<postfix>,[^\]]*)?\]"
)
_BAR_EPOCH = re.compile(r"\bepoch\s*[:#\[]?\s*(?P<epoch>\d+)(?:\s*/\s*(?P<total>\d+))?", re.I)
_BAR_EPOCHS = re.compile(r"\s*(?:training )?epochs?\W*$", re.I)
_BAR_OF_TRAINING = re.compile(
    r"\W*(?:(?:train|training|trainer|steps?|iters?|iterations?|fit|fitting|optimizing|optimization|updates?"
    r"|rank|\d+)\b\W*)+$",
    re.I,
)
_STEP_RATE = re.compile(r"(?:\?|[\d.]+)\s*(?:(?:it|steps?|batch)/s|s/(?:it|steps?|batch))$", re.I)
_LOSS = re.compile(rf"loss\S{{0,20}}?(?:[=:]|\s)\s*(?:{NUMBER}|nan)", re.I)
# A bar without a name that has run so long, by its own clock, is hardly one of a download or of an evaluation.
_LONG_S = 10


def shown(line: str) -> str:
    """A line as a terminal would show it in the end: without colours, and without what was written over."""
    line = line[-MOST_CHARACTERS * 4 :] if "\b" in line else line
    return _ANSI.sub("", line.rpartition("\b")[2])[:MOST_CHARACTERS].strip()


def message_of(text: str) -> str:
    """A line without what a logger put before it."""
    at = 0
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(text, at)
        if found is None or found.end() == at:
            break
        at = found.end()
    return text[at:]


def readings_of(text: str) -> Iterator[Reading]:
    """What a line says, as `shown` gave it, in the order in which it is to be believed."""
    message = message_of(text)
    if not any(character.isdecimal() for character in message):
        return
    bar = _BAR.match(message)
    if bar is not None:
        found = _of_bar(bar)
        if found is not None:
            yield found
        elif not bar["label"].strip() and (own := _of_table(text)) is not None:
            yield own
        return
    specific = [found for each in (message, text) if (found := _of_table(each)) is not None]
    yield from specific[:1]
    if not specific:
        yield from _of_words(message)


def _of_table(message: str) -> Reading | None:
    for form in FORMATS:
        match = form.pattern.search(message)
        if match is None:
            continue
        before = message[: match.start()]
        if not _FORBIDS.search(before) and not _LONG_AGO.search(before):
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


def _of_bar(match: re.Match[str]) -> Reading | None:
    label, total = message_of(match["label"]).strip(), count_of(match["total"])
    done, percent = count_of(match["step"]), int(match["percent"])
    if (row := _of_table(f"{label} {percent}%")) is not None and row.format == "ultralytics":
        return row
    if (epoch := _BAR_EPOCH.search(label)) is not None:
        # 99.6 % are shown as 100 %.
        inner = (done, total) if total else None
        of = int(epoch["total"]) if epoch["total"] else None
        return Reading("tqdm", "epoch", int(epoch["epoch"]), of, Counts.ORDINAL, None, False, inner)
    if _BAR_EPOCHS.match(label):
        return Reading("tqdm", "epoch", done, total, Counts.DONE)
    if (label and not _BAR_OF_TRAINING.match(label)) or not _STEP_RATE.match((match["rate"] or "").strip()):
        return None
    *_, minutes, seconds = f"0:0:{match['elapsed']}".split(":")
    is_long = int(minutes) * 60 + int(seconds) >= _LONG_S or match["elapsed"].count(":") > 1
    is_sure = bool(label) or _LOSS.search(match["postfix"] or "") is not None
    unit = f"bar of {total}"
    return Reading("tqdm", unit, done, total, Counts.DONE, None, True, None, is_weak=not (is_sure or is_long))


def _of_words(message: str) -> Iterator[Reading]:
    for unit, pattern in _WORDS:
        for match in islice(pattern.finditer(message), _MOST_TRIED):
            found = _of_word(message, unit, match)
            if found is not None:
                yield found
                break


def _of_word(message: str, unit: str, match: re.Match[str]) -> Reading | None:
    digits, before, rest = match[1], message[: match.start()], message[match.end() :]
    counts = Counts.ORDINAL
    if "." in digits and not digits[-1].isalpha():
        # Half an epoch is no number of one; a step with a fraction is a heading.
        if unit != "epoch":
            return None
        counts = Counts.DONE
    if _NO_COUNT.match(rest):
        return None
    of = _OF.match(rest)
    total = count_of(of[1]) if of is not None else None
    rest = rest[of.end() :] if of is not None else rest
    rest = rest.lstrip("]) ")
    is_measured = _MEASURED.search(rest) is not None or _LOSS.search(before) is not None
    is_plural = re.search(r"s\W*$", message[match.start() : match.start(1)], re.I) is not None
    if is_plural and total is None and _LOSS.search(rest) is None:
        return None
    if not _may_stand(before, is_measured=is_measured):
        return None
    is_short = match[0][:2].lower() in ("it", "ep") and not match[0][2:3].isalpha()
    if (is_short or unit in ("episode", "round", "update")) and not (total is not None or is_measured):
        return None
    says_more = _PLAIN_END.match(rest) is None
    if unit == "step" and says_more and not is_measured and not _OVER.search(rest):
        # `step 1: install`, `Step 1/5 : FROM python`
        has_text = rest[:1].isalpha() or rest.startswith((":", "-", "–", "."))
        if (total is None and has_text) or _DOCKER.match(rest):
            return None
    name = "words" if unit != "global step" else "global step"
    return Reading(name, unit, count_of(digits), total, counts, None, unit == "global step")


def _may_stand(before: str, *, is_measured: bool) -> bool:
    """Whether what stands before a counter lets it be one."""
    if _FORBIDS.search(before) or (_LONG_AGO.search(before) and not is_measured):
        return False
    left = before.rstrip(" \t=*#>-–")
    if not left or left[-1] in "|,;([{:>])" or left[-1].isdecimal():
        return True
    if left[-1] in "\"'":
        return before[-1].isspace() or left[:-1].rstrip()[-1:] in ("{", ",", "")
    word = re.search(r"[A-Za-z]+$", left)
    if word is None:
        return left[-1] in "%}"
    return is_measured or word[0].lower() in _MAY_PRECEDE
