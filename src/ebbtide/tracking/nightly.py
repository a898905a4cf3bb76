"""The summary of a nightly run: changes of prices, models, policies and expected savings."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_text
from ebbtide.market.ingestion import BatchVerdict
from ebbtide.tracking.due_runs import DueResult

# Reports of the pipeline whose figures are compared; lower is better in all.
METRICS = ("metrics", "revpred", "price-chains", "earlycurve")


@dataclass(frozen=True)
class PipelineFigures:
    """The figures of one state of the pipeline.

    Attributes:
        models: Error of each model on later data, by name.
        costs: Mean cost in USD, by job and policy.
        unfinished: Number of unfinished or late runs, by job and policy.
        champions: Version number in the registry of the champion of each kind of model, by name.
        verdicts: What came of the newest version of each kind of model, in a sentence, by name.
        versions: Version of each part of the model bundle, by name.
    """

    models: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unfinished: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    champions: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def best(self, job: str) -> str:
        """Name of the cheapest policy of a job that always finishes in time; empty: none does."""
        costs, unfinished = self.costs.get(job, {}), self.unfinished.get(job, {})
        able = [name for name in costs if not unfinished.get(name)]
        return min(able, key=lambda name: costs[name], default="")

    def saving(self, job: str) -> float | None:
        """Saving of a job's best policy against on-demand, as a fraction; None: one of them is unknown."""
        costs, best = self.costs.get(job, {}), self.best(job)
        on_demand = costs.get("on-demand")
        return 1.0 - costs[best] / on_demand if on_demand and best else None


def read_figures(reports: Path, versions: Mapping[str, str] | None = None) -> PipelineFigures:
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
    costs: dict[str, dict[str, float]] = {}
    unfinished: dict[str, dict[str, int]] = {}
    for job, told in reports_by_name["metrics"].get("jobs", {}).items():
        means = {name: row["cost_usd"]["mean"] for name, row in told["policies"].items()}
        costs[job] = {name: mean for name, mean in means.items() if mean is not None}
        unfinished[job] = {
            name: int(row.get("missed", row["unfinished"])) for name, row in told["policies"].items()
        }
    kinds = _read(reports / "promotion.json").get("kinds", {})
    champions = {name: row["champion_after"] for name, row in kinds.items() if row["champion_after"] is not None}
    verdicts = {name: f"version {row['version']} {row['reason']}" for name, row in kinds.items()}
    return PipelineFigures(models, costs, unfinished, champions, verdicts, versions or {})


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
        pushed: Whether data and models were pushed to the store or the DVC remote.
        jobs: How each due job went.
        promoted: Names of the models that the night has promoted.
        commit: Commit that keeps the night; empty: it is not kept.
    """

    accepted: Sequence[BatchVerdict]
    set_aside: Sequence[BatchVerdict]
    change_points: tuple[int, int]
    stages: Sequence[str]
    before: PipelineFigures
    after: PipelineFigures
    pushed: bool
    jobs: Sequence[DueResult] = ()
    promoted: Sequence[str] = ()
    commit: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model, and for each policy of each job: before, after, and which is better."""
        compared = [("model", name, self.before.models.get(name), new) for name, new in self.after.models.items()]
        for job, costs in self.after.costs.items():
            olds = self.before.costs.get(job, {})
            compared += [("policy", f"{job}: {name}", olds.get(name), new) for name, new in costs.items()]
        found = []
        for kind, name, old, new in compared:
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
        lines += ["", *self._savings(), ""]
        if self.after.verdicts:
            lines += ["Models, compared with the champions by what policies pay:", ""]
            lines += [f"- {name}: {verdict}." for name, verdict in self.after.verdicts.items()] + [""]
        lines += self._changed_models() + self._trained()
        if self.pushed:
            lines += ["Data and models are pushed.", ""]
        if self.commit:
            again = f"`git worktree add ../night {self.commit[:12]}`, and there `python -m pipelines pull`"
            lines += [f"This night again: {again}.", ""]
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

    def _savings(self) -> list[str]:
        """A line for each job: its best policy, and what that saves."""
        lines = [line for job in self.after.costs if (line := self._saving(job))]
        return lines or ["No policy was compared with on-demand machines."]

    def _saving(self, job: str) -> str:
        now, was = self.after.saving(job), self.before.saving(job)
        if now is None:
            return ""
        text = f"- {job}: cheapest policy that always finishes: {self.after.best(job)}, {now:.0%} below on-demand"
        return f"{text}." if was is None else f"{text} (before: {self.before.best(job)}, {was:.0%})."


def costs_picture(night: Night) -> bytes:
    """Mean cost of each policy of each job, before and after, as PNG."""
    from matplotlib.figure import Figure

    rows = [row for row in night.rows() if row["kind"] == "policy"]
    names = [row["name"] for row in rows]
    figure = Figure(figsize=(8.0, 1.0 + 0.4 * len(names)), layout="tight")
    axes = figure.subplots()
    for shift, label in enumerate(("before", "after")):
        places = [place + 0.4 * shift for place in range(len(names))]
        axes.barh(places, [row[label] or 0.0 for row in rows], height=0.38, label=label)
    axes.set_yticks([place + 0.2 for place in range(len(names))], names)
    axes.set_xlabel("mean cost, USD")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def keep_figures(figures: PipelineFigures, path: Path) -> None:
    """Write figures as accepted, for comparison with the next night."""
    write_text(path, json.dumps(asdict(figures), indent=2) + "\n")


def kept_figures(path: Path) -> PipelineFigures:
    """The last accepted figures; empty if there are none."""
    known = {each.name for each in fields(PipelineFigures)}
    # Other versions of Ebbtide have kept other figures.
    return PipelineFigures(**{name: value for name, value in _read(path).items() if name in known})


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _formatted(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
