"""Counters in log lines: in known formats, on bars, and in the words of custom programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from ebbtide.agent.log_formats import (
    COUNT,
    FORBIDS,
    LONG_AGO,
    NUMBER,
    CounterMeaning,
    Reading,
    count_of,
    fraction_of,
    is_of_settings,
    reading_of,
)

_MOST_CHARACTERS = 2_000

# Counters by their words, as custom programs print them; the larger unit first.
_WORDS = tuple(
    (
        unit,
        re.compile(
            rf"(?<![\w.])(?<!--)(?:train(?:ing|er)?[_/])?(?:{words})\b[\"']?[\s:=#\[(]*[\"']?({COUNT})", re.I
        ),
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
# Text after a number that makes it part of a version, date or time, a percentage, or a word.
_NO_COUNT = re.compile(r"[\w%]|\.\d+\.\d|-\d|:\d|\.\w|\s*%")
# Another unit after a number, which the number then counts: `1 epoch = 500 steps`.
_OF_OTHERS = re.compile(r"\s+(?:steps|iterations|batches|samples|images|examples|epochs)\b(?!\W*\d)", re.I)
# Progress within the epoch, on the same line; the length may be missing.
_WITHIN = re.compile(
    r"(?<![A-Za-z_])(?:mini-?)?(?:steps?|iters?|iterations?|batch(?:es)?)\b[\"']?[\s:=#\[(]*(?P<inner>\d+)"
    r"(?:\s*(?:/|of)\s*(?P<inner_total>\d+))?(?![\w.%])(?!\s*m?s\b)",
    re.I,
)
_FRACTION = re.compile(r"\.\d+(?![\w.])")
# Words that may precede a counter.
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
        "learning",
    ]
)
_MEASURED = re.compile(
    r"(?:loss|acc|err|reward|return|score|lr|learning[ _]rate|ppl|perplex|auc|f1|mse|mae|rmse|iou|bleu|grad|norm"
    r"|time|sec|elapsed|tok|speed|fps|eta|train|val|eval|mfu|mem|metric)\w*\W{0,12}(?:is |was )?"
    rf"(?:{NUMBER}|nan|[-+]?inf)|^\s*[:,|]?\s*{NUMBER}\s*(?:$|[,|])",
    re.I,
)
_OVER = re.compile(r"\b(?:done|complete[ds]?|finished|ended|took)\b", re.I)
# A line such as `epoch: 100`, as settings are printed; and the most phases that a set-up has.
_BARE = re.compile(r"^[\s{\"'-]*[A-Za-z_]+[\"']?\s*[:=]\s*[\"']?\d[\d_,]*[\s\W]*$")
_MOST_PHASES, _WORD = 100, re.compile(r"[A-Za-z]{3}")
_PLAIN_END = re.compile(r"[\s\W]*$")
_DOCKER = re.compile(r"\s*:\s*[A-Z]{3,}\b")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
# What loggers and launchers put before a message. A number alone in brackets is a counter of boosters.
_PREFIX = re.compile(
    r"\s*(?:\[(?!\s*\d+\s*\]|\s*\d+/\d|(?i:val|test|eval|dev)|[^\]]{0,20}\b(?i:step|epoch|iter)\w*\W{0,3}\d)[^\]\[]{0,80}\](?:\s*:)?(?=\s)"
    r"|\(\w[^()]{0,60}=\d[^()]*\)"
    r"|\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d\S*)?"
    r"|\d\d:\d\d:\d\d\S*"
    r"|[IWED]\d{4} [\d:.]+\s+\d+ [\w./]+:\d+\]"
    r"|(?:DEBUG|INFO|NOTICE)\b(?::[\w.]+:|:)?"
    r"|[\w.-]+ (?=- )|[\w.]+ (?=\| )|[\w./]+\.py:\d+:?|[-|](?=\s))\s*"
)
_MOST_PREFIXES = 8
# Most matches of one word that are tried; a line in which all of these fail has no such counter.
_MOST_TRIED = 4

_BAR = re.compile(
    rf"^(?P<label>.*?)(?P<percent>\d{{1,3}})%\s?\|[^|]*\|\s*(?P<step>{COUNT})/(?P<total>{COUNT})\s*"
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*(?:,\s*(?P<rate>[^,\]]*))?(?P<postfix>,[^\]]*)?\]"
)
_BAR_EPOCH = re.compile(r"\bepoch\s*[:=#\[]?\s*(?P<epoch>\d+)(?!\.\d|\w)(?:\s*/\s*(?P<total>\d+))?", re.I)
_BAR_EPOCHS = re.compile(r"\s*(?:training )?epochs?\W*$", re.I)
_BAR_OF_TRAINING = re.compile(
    r"\W*(?:(?:train|training|trainer|steps?|iters?|iterations?|fit|fitting|optimizing|optimization|updates?"
    r"|progress|rank|\d+)\b\W*)+$",
    re.I,
)
_STEP_RATE = re.compile(r"(?:\?|[\d.]+)\s*(?:(?:it|steps?|batch)/s|s/(?:it|steps?|batch))$", re.I)
_LOSS = re.compile(rf"loss\S{{0,20}}?(?:[=:]|\s)\s*(?:{NUMBER}|nan)", re.I)
_EVALUATES = re.compile(r"\b(?:val|valid\w*|test\w*|eval\w*|dev|predict\w*|infer\w*)\b", re.I)
# A bar without a name that has run this long, by its own clock, is unlikely to be a download or an evaluation.
_LONG_S = 10


def shown(line: str) -> str:
    """A line as a terminal finally shows it: without colours and overwritten text."""
    line = line[-_MOST_CHARACTERS * 4 :] if "\b" in line else line
    return _ANSI.sub("", line.rpartition("\b")[2])[:_MOST_CHARACTERS].strip()


def message_of(text: str) -> str:
    """A line without what a logger put before it."""
    at = 0
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(text, at)
        if found is None or found.end() == at:
            break
        at = found.end()
    return text[at:]


def is_measured(text: str) -> bool:
    """Tell whether a line has a loss or another measured value."""
    return _LOSS.search(text) is not None or _MEASURED.search(text) is not None


def readings_of(text: str) -> Iterator[Reading]:
    """Yield the readings of a line that `shown` returned, the most credible first."""
    message = message_of(text)
    if not any(character.isdecimal() for character in message) or is_of_settings(message):
        return
    bar = _BAR.match(message)
    if bar is not None:
        found = _of_bar(bar)
        if found is not None:
            yield found
            if found.unit != "epoch" and (epoch := _BAR_EPOCH.search(bar["postfix"] or "")) is not None:
                yield _of_epoch(epoch, bar)
        elif not bar["label"].strip() and (own := reading_of(text)) is not None:
            yield own
        return
    specific = [found for each in (message, text) if (found := reading_of(each)) is not None]
    yield from specific[:1]
    if not specific:
        yield from _of_words(message)
        if (fraction := fraction_of(message)) is not None:
            yield fraction


def _of_bar(match: re.Match[str]) -> Reading | None:
    label, total = message_of(match["label"]).strip(), count_of(match["total"])
    done, percent = count_of(match["step"]), int(match["percent"])
    if (row := reading_of(f"{label} {percent}%")) is not None and row.format == "ultralytics":
        return row
    if (epoch := _BAR_EPOCH.search(label)) is not None:
        return _of_epoch(epoch, match)
    if _BAR_EPOCHS.match(label):
        return Reading("tqdm", "epoch", done, total, CounterMeaning.DONE)
    has_loss = _LOSS.search(label) is not None and not _EVALUATES.search(label)
    if (label and not has_loss and not _BAR_OF_TRAINING.match(label)) or not _STEP_RATE.match(
        (match["rate"] or "").strip()
    ):
        return None
    *_, minutes, seconds = f"0:0:{match['elapsed']}".split(":")
    is_long = int(minutes) * 60 + int(seconds) >= _LONG_S or match["elapsed"].count(":") > 1
    is_sure = bool(label) or _LOSS.search(match["postfix"] or "") is not None
    unit = f"bar of {total}"
    return Reading(
        "tqdm", unit, done, total, CounterMeaning.DONE, None, True, None, is_weak=not (is_sure or is_long)
    )


def _of_epoch(epoch: re.Match[str], bar: re.Match[str]) -> Reading:
    done, total = count_of(bar["step"]), count_of(bar["total"])
    # Not by the percentage: 99.6 % are shown as 100 %.
    inner = (done, total) if total else None
    of = int(epoch["total"]) if epoch["total"] else None
    return Reading("tqdm", "epoch", int(epoch["epoch"]), of, CounterMeaning.ORDINAL, None, False, inner)


def _of_words(message: str) -> Iterator[Reading]:
    for unit, pattern in _WORDS:
        for match in islice(pattern.finditer(message), _MOST_TRIED):
            found = _of_word(message, unit, match)
            if found is not None:
                yield found
                break


def _of_word(message: str, unit: str, match: re.Match[str]) -> Reading | None:
    digits, before, rest = match[1], message[: match.start()], message[match.end() :]
    counts = CounterMeaning.ORDINAL
    if "." in digits and not digits[-1].isalpha():
        # A fraction of an epoch is what has been done, not the epoch's number; a step with one is a heading.
        if unit != "epoch":
            return None
        counts = CounterMeaning.DONE
    if _NO_COUNT.match(rest) or _OF_OTHERS.match(rest):
        return None
    of = _OF.match(rest)
    total = count_of(of[1]) if of is not None else None
    rest = rest[of.end() :] if of is not None else rest
    rest = rest.lstrip("]) ")
    has_value = _MEASURED.search(rest) is not None or _LOSS.search(before) is not None
    is_plural = re.search(r"s\W*$", message[match.start() : match.start(1)], re.I) is not None
    if is_plural and total is None and _LOSS.search(rest) is None:
        return None
    if not _may_stand(before, is_measured=has_value):
        return None
    is_short = match[0][:2].lower() in ("it", "ep") and not match[0][2:3].isalpha()
    if (is_short or unit in ("episode", "round", "update")) and not (total is not None or has_value):
        return None
    says_more = _PLAIN_END.match(rest) is None
    is_phase = False
    if unit == "step" and says_more and not has_value and not _OVER.search(rest):
        # `step 1: install`, `Step 1/5 : FROM python`
        has_text = rest[:1].isalpha() or rest.startswith((":", "-", "–", "—", "."))
        if (total is None and has_text) or _DOCKER.match(rest):
            return None
        is_phase = has_text and total is not None and total <= _MOST_PHASES and _WORD.search(rest) is not None
    name = "words" if unit != "global step" else "global step"
    within = _WITHIN.search(rest) if unit == "epoch" and counts is CounterMeaning.ORDINAL else None
    inner = (int(within["inner"]), int(within["inner_total"] or 0)) if within is not None else None
    is_bare = total is None and not says_more and _BARE.match(message) is not None
    return Reading(
        name,
        unit,
        count_of(digits),
        total,
        counts,
        is_global=unit == "global step",
        inner=inner,
        is_bare=is_bare,
        is_phase=is_phase,
    )


def _may_stand(before: str, *, is_measured: bool) -> bool:
    """Return whether the text before a number allows the number to be a counter."""
    if FORBIDS.search(before) or (LONG_AGO.search(before) and not is_measured):
        return False
    left = before.rstrip(" \t=*#>-–")
    if not left or left[-1] in "|,;([{:>])" or left[-1].isdecimal():
        return True
    if left[-1] in "\"'":
        return before[-1].isspace() or left[:-1].rstrip()[-1:] in ("{", ",", "")
    word = re.search(r"\w+$", left)
    if word is None:
        # An arrow or an emoji, as some programs print them.
        return left[-1] in "%}" or not left[-1].isascii()
    return is_measured or word[0].lower() in _MAY_PRECEDE
