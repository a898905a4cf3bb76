"""The summary of a nightly run: changes of prices, models, policies and expected savings."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ebbtide._files import write_text
from ebbtide.analysis.due_runs import DueResult
from ebbtide.market.ingestion import Verdict

# Reports of the pipeline whose figures are compared; lower is better in all.
METRICS = ("metrics", "revpred", "price-chains", "earlycurve")


@dataclass(frozen=True)
class Figures:
    """The figures of one state of the pipeline.

    Attributes:
        models: Error of each model on later data, by name.
        costs: Mean cost by policy, USD.
        unfinished: Number of unfinished runs by policy.
        champions: Version number in the registry of the champion of each kind of model, by name.
        verdicts: What came of the newest version of each kind of model, in a sentence, by name.
        versions: Version of each part of the model bundle, by name.
    """

    models: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    unfinished: Mapping[str, int] = field(default_factory=dict)
    champions: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """Name of the cheapest policy that always finishes; empty: none does."""
        able = [name for name in self.costs if not self.unfinished.get(name)]
        return min(able, key=lambda name: self.costs[name], default="")

    @property
    def saving(self) -> float | None:
        """Saving of the best policy against on-demand, as a fraction; None: one of them is unknown."""
        on_demand = self.costs.get("on-demand")
        return 1.0 - self.costs[self.best] / on_demand if on_demand and self.best else None


def read_figures(reports: Path, versions: Mapping[str, str] | None = None) -> Figures:
    """Read the figures from the stages' reports; missing reports are left out.

    Args:
        reports: Folder with the stages' reports.
        versions: Version of each part of the model bundle, by name; None: there is no bundle.
    """
    reports_by_name = {name: _read(reports / f"{name}.json") for name in METRICS}
    models = {}
    pooled = reports_by_name["revpred"].get("pooled", {})
    if pooled:
        models["revpred (Brier)"] = sum(row["brier"] for row in pooled.values()) / len(pooled)
    chains = reports_by_name["price-chains"].get("scores", {})
    if "log_likelihood" in chains:
        models["price chains (negative log-likelihood)"] = -float(chains["log_likelihood"])
    for name, rows in reports_by_name["earlycurve"].get("methods", {}).items():
        if name == "earlycurve":
            models["earlycurve (relative error at 0.7)"] = rows["0.7"]["relative_error_mean"]
    policies = reports_by_name["metrics"].get("policies", {})
    means = {name: row["cost_usd"]["mean"] for name, row in policies.items()}
    costs = {name: mean for name, mean in means.items() if mean is not None}
    unfinished = {name: int(row["unfinished"]) for name, row in policies.items()}
    kinds = _read(reports / "promotion.json").get("kinds", {})
    champions = {name: row["champion_after"] for name, row in kinds.items() if row["champion_after"] is not None}
    verdicts = {name: f"version {row['version']} {row['reason']}" for name, row in kinds.items()}
    return Figures(models, costs, unfinished, champions, verdicts, versions or {})


@dataclass(frozen=True)
class Night:
    """The results of one nightly run.

    Attributes:
        accepted: Batches of prices that were added.
        set_aside: Batches of prices that were rejected, and why.
        change_points: Number of known price changes before and after.
        stages: Names of the stages that ran.
        before: Figures of the last accepted run.
        after: Figures of this run.
        pushed: Whether data was pushed to the DVC remote.
        jobs: How each due job went.
        promoted: Names of the models that the night has promoted.
    """

    accepted: Sequence[Verdict]
    set_aside: Sequence[Verdict]
    change_points: tuple[int, int]
    stages: Sequence[str]
    before: Figures
    after: Figures
    pushed: bool
    jobs: Sequence[DueResult] = ()
    promoted: Sequence[str] = ()

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
        """The results as Markdown."""
        was, now = self.change_points
        lines = ["# Ebbtide, nightly", "", f"Prices: {now} change points, {now - was} new.", ""]
        lines += [f"- added `{verdict.file.name}`: {verdict.rows} rows" for verdict in self.accepted]
        lines += [f"- **set aside** `{verdict.file.name}`: {verdict.problem}" for verdict in self.set_aside]
        lines += ["", f"Stages run: {', '.join(self.stages) or 'none, all is up to date'}.", ""]
        lines += ["| | | before | after | |", "|---|---|---|---|---|"]
        for row in self.rows():
            before, after = _formatted(row["before"]), _formatted(row["after"])
            lines.append(f"| {row['kind']} | {row['name']} | {before} | {after} | {row['verdict']} |")
        lines += ["", self._saving(), ""]
        if self.after.verdicts:
            lines += ["Models, compared with the champions by what policies pay:", ""]
            lines += [f"- {name}: {verdict}." for name, verdict in self.after.verdicts.items()] + [""]
        lines += self._changed_models() + self._trained()
        if self.pushed:
            lines += ["Data and models are pushed to the DVC remote.", ""]
        return "\n".join(lines)

    def _changed_models(self) -> list[str]:
        was, now = self.before.versions, self.after.versions
        changed = [name for name in now if was.get(name) != now[name]]
        lines = [f"- `{name}`: {was.get(name, 'none')}, now {now[name]}" for name in changed]
        lines = ["Models that changed:", "", *lines, ""] if lines else []
        return lines + ([f"Promoted: {', '.join(self.promoted)}.", ""] if self.promoted else [])

    def _trained(self) -> list[str]:
        if not self.jobs:
            return ["No job was due.", ""]
        cost_usd = math.fsum(job.cost_usd for job in self.jobs)
        on_demand_usd = math.fsum(job.on_demand_usd for job in self.jobs)
        lines = [f"Trained for {cost_usd:.4f} USD; on demand {on_demand_usd:.4f} USD.", ""]
        for job in self.jobs:
            text = f"- `{job.job}`: {job.cost_usd:.4f} USD, {job.revocations} revocations, {job.state}"
            lines.append(text if job.is_done else f"- **`{job.job}` did not finish**: {job.problem}")
        return [*lines, ""]

    def _saving(self) -> str:
        if self.after.saving is None:
            return "No policy was compared with on-demand machines."
        text = f"Cheapest policy that always finishes: {self.after.best}, {self.after.saving:.0%} below on-demand"
        if self.before.saving is None:
            return f"{text}."
        return f"{text} (before: {self.before.best}, {self.before.saving:.0%})."


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
    """Write figures as accepted, for comparison with the next night."""
    write_text(path, json.dumps(asdict(figures), indent=2) + "\n")


def kept_figures(path: Path) -> Figures:
    """The last accepted figures; empty if there are none."""
    known = {each.name for each in fields(Figures)}
    # Other versions of Ebbtide have kept other figures.
    return Figures(**{name: value for name, value in _read(path).items() if name in known})


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _formatted(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
