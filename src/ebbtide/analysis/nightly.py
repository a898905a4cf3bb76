"""What a night has changed: prices, models, policies and the saving to be expected, in words and as a table."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide.market.ingestion import Verdict

# Statistics of the pipeline, and which figure of each is looked at: lower is better in all.
METRICS = ("metrics", "revpred", "price-chain", "earlycurve")


@dataclass(frozen=True)
class Figures:
    """Of one state of the pipeline.

    Attributes:
        models: Error of each model on later data, by name.
        costs: Mean cost of each policy, USD.
        unfinished: Runs of each that did not finish.
        champion: Version of the revocation model that the registry has as the best on later data.
    """

    models: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    unfinished: Mapping[str, int] = field(default_factory=dict)
    champion: str | None = None

    @property
    def best(self) -> str:
        """The cheapest of the policies that always finish; empty: none does."""
        able = [name for name in self.costs if not self.unfinished.get(name)]
        return min(able, key=lambda name: self.costs[name], default="")

    @property
    def saving(self) -> float | None:
        """What the best saves against on-demand; None: either is not known."""
        dear = self.costs.get("on-demand")
        return 1.0 - self.costs[self.best] / dear if dear and self.best else None


def read_figures(reports: Path, champion: str | None) -> Figures:
    """From what the stages wrote; a report that is not there is left out."""
    told = {name: _read(reports / f"{name}.json") for name in METRICS}
    models = {}
    pooled = told["revpred"].get("pooled", {})
    if pooled:
        models["revpred (Brier)"] = sum(row["brier"] for row in pooled.values()) / len(pooled)
    if "log_likelihood" in told["price-chain"]:
        models["price chain (negative log-likelihood)"] = -float(told["price-chain"]["log_likelihood"])
    for name, rows in told["earlycurve"].get("methods", {}).items():
        if name == "earlycurve":
            models["earlycurve (relative error at 0.7)"] = rows["0.7"]["relative_error_mean"]
    policies = told["metrics"].get("policies", {})
    means = {name: row["cost_usd"]["mean"] for name, row in policies.items()}
    costs = {name: mean for name, mean in means.items() if mean is not None}
    return Figures(models, costs, {name: int(row["unfinished"]) for name, row in policies.items()}, champion)


@dataclass(frozen=True)
class Night:
    """What came of one nightly run.

    Attributes:
        accepted: Batches added.
        set_aside: Batches that were not, and why.
        change_points: Prices known before and after.
        stages: That ran.
        before: As last accepted.
        after: Now.
        pushed: Whether data went to the DVC remote.
    """

    accepted: Sequence[Verdict]
    set_aside: Sequence[Verdict]
    change_points: tuple[int, int]
    stages: Sequence[str]
    before: Figures
    after: Figures
    pushed: bool

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model and policy: before, after, and which is better."""
        found = []
        for kind, olds, news in (
            ("model", self.before.models, self.after.models),
            ("policy", self.before.costs, self.after.costs),
        ):
            for name, new in news.items():
                old = olds.get(name)
                verdict = "new" if old is None else "same" if old == new else "better" if new < old else "worse"
                found.append({"kind": kind, "name": name, "before": old, "after": new, "verdict": verdict})
        return found

    def summary(self) -> str:
        """As Markdown."""
        was, now = self.change_points
        lines = ["# Ebbtide, nightly", "", f"Prices: {now} change points, {now - was} new.", ""]
        lines += [f"- added `{verdict.file.name}`: {verdict.rows} rows" for verdict in self.accepted]
        lines += [f"- **set aside** `{verdict.file.name}`: {verdict.problem}" for verdict in self.set_aside]
        lines += ["", f"Stages run: {', '.join(self.stages) or 'none, all is up to date'}.", ""]
        lines += ["| | | before | after | |", "|---|---|---|---|---|"]
        for row in self.rows():
            before, after = _told(row["before"]), _told(row["after"])
            lines.append(f"| {row['kind']} | {row['name']} | {before} | {after} | {row['verdict']} |")
        lines += ["", self._saving(), ""]
        if self.after.champion is not None:
            kept = "as before" if self.after.champion == self.before.champion else "new: better on later data"
            lines += [f"Champion among revocation models: version {self.after.champion}, {kept}.", ""]
        if self.pushed:
            lines += ["Data and models are pushed to the DVC remote.", ""]
        return "\n".join(lines)

    def _saving(self) -> str:
        if self.after.saving is None:
            return "No policy was compared with on-demand machines."
        told = f"Cheapest policy that always finishes: {self.after.best}, {self.after.saving:.0%} below on-demand"
        if self.before.saving is None:
            return f"{told}."
        return f"{told} (before: {self.before.best}, {self.before.saving:.0%})."


def costs_picture(night: Night) -> bytes:
    """Mean cost of each policy, before and after, as PNG."""
    from matplotlib.figure import Figure

    names = list(night.after.costs)
    figure = Figure(figsize=(8.0, 1.0 + 0.4 * len(names)), layout="tight")
    axes = figure.subplots()
    for shift, (label, costs) in enumerate((("before", night.before.costs), ("after", night.after.costs))):
        places = [place + 0.4 * shift for place in range(len(names))]
        axes.barh(places, [costs.get(name, 0.0) for name in names], height=0.38, label=label)
    axes.set_yticks([place + 0.2 for place in range(len(names))], names)
    axes.set_xlabel("mean cost, USD")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def keep_figures(figures: Figures, path: Path) -> None:
    """As accepted: the next night is compared with it."""
    write_text(path, json.dumps(asdict(figures), indent=2) + "\n")


def kept_figures(path: Path) -> Figures:
    """As last accepted; empty, if nothing was yet."""
    return Figures(**_read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
