"""Sections of params.yaml as checked models, as flows and stages read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, create_model

from ebbtide.errors import InputError
from ebbtide.jobs.parsing import Frozen, read_mapping, validated
from ebbtide.market.billing import billing_preset
from ebbtide.market.ingestion import BatchRules
from ebbtide.policies.dynamic_pricing.policy import Goal
from ebbtide.replay.generated_markets import MarketKind

PARAMS = Path("params.yaml")
# An input of the stages that replay policies.
OWN_POLICIES = Path("pipelines/inputs/policies")

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def _known_billing(name: str) -> str:
    try:
        billing_preset(name)
    except InputError as error:
        raise ValueError(error.problem) from None
    return name


BillingName = Annotated[str, AfterValidator(_known_billing)]
# Workloads of SpotTune's Table II.
Workload = Literal["svm", "linear-regression", "gbt-regression", "logistic-regression", "alexnet", "resnet"]
# A name that becomes a folder of the pipeline's outputs.
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class GeneratedPrices(Frozen):
    """A generated market: its kind, its length in days, and the seed."""

    kind: MarketKind
    days: Positive
    seed: int


class ExportedPrices(Frozen):
    """Format of exports (None: recognised from each file), and the time zone of times without an offset."""

    format: str | None
    timezone: str | None


class Ec2Prices(Frozen):
    """Regions and instance types whose spot prices are fetched from EC2."""

    regions: list[str]
    instance_types: list[str]


class GeneratedCapacity(Frozen):
    """Capacity drawn for a generated market: seconds between two probes, and the seed."""

    tick_s: Positive
    seed: int


class Capacity(Frozen):
    """Records of capacity, generated or read."""

    source: Literal["generated", "files"]
    generated: GeneratedCapacity


class Ingest(Frozen):
    """Section `ingest`: where prices and capacity come from."""

    source: Literal["generated", "files", "ec2"]
    generated: GeneratedPrices
    files: ExportedPrices
    ec2: Ec2Prices
    capacity: Capacity


class Interpolate(Frozen):
    """Section `interpolate`: the grid of prices."""

    step_s: Positive
    method: Literal["step", "linear"]
    max_gap_s: Positive | None


class HeldBack(Frozen):
    """Section `held_back`: days at the record's end that no model is trained on."""

    days: Annotated[float, Field(ge=0)]


class TrainRevPred(Frozen):
    """Section `train_revpred`."""

    train_days: Positive
    test_days: Positive
    stride: Count
    seed: int


class MeasureCurves(Frozen):
    """Section `measure_curves`: which learning curves, and how they are trained."""

    source: Literal["packaged", "trained"]
    # EarlyCurve's thresholds are scored on each workload as chosen on the others.
    workloads: Annotated[list[Workload], Field(min_length=2)]
    settings: list[int] | None
    workers: Count
    seed: int


class CalibrateEarlyCurve(Frozen):
    """Section `calibrate_earlycurve`: thresholds to choose from."""

    changes: Annotated[list[Positive], Field(min_length=1)]
    steadies: Annotated[list[Positive], Field(min_length=1)]
    windows: Annotated[list[Count], Field(min_length=1)]


class FitPriceModel(Frozen):
    """Section `fit_price_model`."""

    markets: Annotated[list[str], Field(min_length=1)]
    test_days: Positive


class FitSpells(Frozen):
    """Section `fit_spells`."""

    test_days: Positive


class SolveCookbook(Frozen):
    """Cümülön-D: machines to hold at each price, time and work left."""

    job: Path
    market: str
    deadline_h: Count
    start: str | None
    most: Count
    risk_aversion: Annotated[float, Field(ge=0)]
    on_demand_usd_per_hour: Positive | None


class SolveBids(Frozen):
    """SpotTune: the max price in each market."""

    job: Path
    billing: BillingName


class SolveAllocation(Frozen):
    """Dynamic Pricing: machines and hours by instance type, with the most machines at once of each."""

    job: Path
    goal: Goal
    quotas: dict[str, Count]


class SolvePortfolio(Frozen):
    """ExoSphere: the share of a cluster in each market."""

    job: Path
    alpha: Annotated[float, Field(ge=0)]
    covariance: Literal["price", "revocation", "hybrid"]
    history_days: Positive


class SolveDeadline(Frozen):
    """Deadlines: the expected cost from every state on."""

    job: Path


class Solve(Frozen):
    """Section `solve`: a section for each artifact in models/solved."""

    cookbook: SolveCookbook
    bids: SolveBids
    allocation: SolveAllocation
    portfolio: SolvePortfolio
    deadline: SolveDeadline


class PromoteJobs(Frozen):
    """The job with which versions of each kind of model are compared; no policy asks speeds so far."""

    model_config = ConfigDict(populate_by_name=True)

    revpred: Path
    earlycurve: Path
    spells: Path
    hazard: Path
    price_chains: Annotated[Path, Field(alias="price-chains")]
    speeds: None = None

    def by_kind(self) -> dict[str, Path]:
        """The jobs by kind of model, as bundles name them."""
        return {kind: file for kind, file in self.model_dump(by_alias=True).items() if file is not None}


class PromoteCookbook(Frozen):
    """The cookbooks with which versions of price chains are compared."""

    market: str
    deadline_h: Count
    most: Count
    risk_aversion: Annotated[float, Field(ge=0)]


class Promote(Frozen):
    """Section `promote`: what two versions of a model are compared on."""

    starts: Count | list[str]
    seed: int
    billing: BillingName
    confidence: Annotated[float, Field(gt=0, lt=1)]
    jobs: PromoteJobs
    curves: Workload
    cookbook: PromoteCookbook


def _declared(name: str) -> str:
    name = name.strip()
    if not name:
        raise ValueError("the name of a policy is missing")
    file = name.rpartition(":")[0] if ":" in name else name
    is_own = ":" in name or file.lower().endswith((".py", ".yaml", ".yml"))
    if is_own and not Path(file).resolve().is_relative_to(OWN_POLICIES.resolve()):
        raise ValueError(f"{name} is no file in {OWN_POLICIES}, where `dvc repro` sees it change; move it there")
    return name


def own_policies(folder: Path = OWN_POLICIES) -> list[Path]:
    """Files of own policies, and modules that they import; hidden files and compiled ones are left out."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
        and not any(part.startswith((".", "__pycache__")) for part in file.relative_to(folder).parts)
    ]


class ExecutedJob(Frozen):
    """A job that `execute` replays, with its policies."""

    job: Path
    policies: Annotated[list[Annotated[str, AfterValidator(_declared)]], Field(min_length=1)]
    starts: Count | None = None
    market: str | None = None
    every_h: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Execute(Frozen):
    """Section `execute`: jobs that are replayed under policies, and how."""

    starts: Count
    seed: int
    billing: BillingName
    runs: Annotated[dict[FolderName, ExecutedJob], Field(min_length=1)]


class Evaluate(Frozen):
    """Section `evaluate`."""

    experiment: str


class Nightly(Frozen):
    """Section `nightly`: what a night adds, updates, trains and keeps."""

    incoming: Path
    regions: list[str]
    instance_types: list[str]
    rules: BatchRules
    targets: list[str]
    jobs: Path | None
    runs: Path
    branch: Annotated[str, Field(min_length=1)] | None
    push: bool
    store: str | None


class Tracking(Frozen):
    """Section `tracking`: where runs are tracked."""

    uri: str
    artifacts: Path


SECTIONS: dict[str, type[Any]] = {
    "ingest": Ingest,
    "interpolate": Interpolate,
    "held_back": HeldBack,
    "train_revpred": TrainRevPred,
    "measure_curves": MeasureCurves,
    "calibrate_earlycurve": CalibrateEarlyCurve,
    "fit_price_model": FitPriceModel,
    "fit_spells": FitSpells,
    "solve": Solve,
    "promote": Promote,
    "execute": Execute,
    "evaluate": Evaluate,
    "nightly": Nightly,
    "tracking": Tracking,
}

_Section = TypeVar("_Section", bound=Frozen)


def parameters(section: type[_Section]) -> _Section:
    """Read one section of params.yaml in the working directory.

    Args:
        section: The model of the section.

    Raises:
        InputError: The file or the section is missing, or fields are missing, unknown or out of range; all are
            listed by their paths in the file.
    """
    name = next(name for name, model in SECTIONS.items() if model is section)
    if not PARAMS.exists():
        raise InputError("there is no such file; run from the project's folder", file=PARAMS)
    content = read_mapping(PARAMS, "parameters")
    if not isinstance(content.get(name), dict):
        raise InputError("is missing or is not a mapping", file=PARAMS, field=name)
    whole = create_model("Parameters", __base__=Frozen, **{name: (section, ...)})  # type: ignore[call-overload]
    found: _Section = getattr(validated(whole, {name: content[name]}, PARAMS), name)
    return found


def check_parameters() -> None:
    """Read all sections, so that what is wrong in any is told before a stage runs.

    Raises:
        InputError: See `parameters`; or a job has no file, a policy of `execute` is unknown, or the workload that
            `promote` needs is not measured.
    """
    # Stages read sections alone, and need no policies for that.
    from ebbtide.jobs.job_files import FileKind, kind_of
    from ebbtide.policies.registry import check_names, names_of, policy
    from ebbtide.tracking.execute_stage import COOKBOOK

    for section in SECTIONS.values():
        parameters(section)
    for field, job in _jobs().items():
        if not job.is_file():
            raise InputError(f"there is no file {job}", file=PARAMS, field=field)
    measured, asked = parameters(MeasureCurves).workloads, parameters(Promote).curves
    if asked not in measured:
        raise InputError(f"is {asked}, which measure_curves.workloads lacks", file=PARAMS, field="promote.curves")
    for name, run in parameters(Execute).runs.items():
        chosen, field = [], f"execute.runs.{name}.policies"
        is_workflow = kind_of(read_mapping(run.job, "job, sweep or workflow")) is FileKind.WORKFLOW
        if COOKBOOK in run.policies and not is_workflow:
            raise InputError(f"{COOKBOOK} is for workflows, and {run.job} is none", file=PARAMS, field=field)
        for each in names_of(run.policies):
            try:
                if each != COOKBOOK:
                    chosen.append(policy(each))
            except InputError as error:
                raise InputError(f"{each}: {error}", file=PARAMS, field=field) from None
        try:
            check_names(chosen)
        except InputError as error:
            raise InputError(error.problem, file=PARAMS, field=field) from None


def job_files() -> list[Path]:
    """Files of the jobs that stages read, and own policies.

    Raises:
        InputError: See `parameters`.
    """
    return [*dict.fromkeys(_jobs().values()), *own_policies()]


def _jobs() -> dict[str, Path]:
    """The file of each job, by the field that names it."""
    solved, runs = parameters(Solve), parameters(Execute).runs
    return {
        **{f"solve.{kind}.job": getattr(solved, kind).job for kind in type(solved).model_fields},
        **{f"promote.jobs.{kind}": job for kind, job in parameters(Promote).jobs.by_kind().items()},
        **{f"execute.runs.{name}.job": run.job for name, run in runs.items()},
    }
