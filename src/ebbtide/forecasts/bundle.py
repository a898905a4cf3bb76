"""The model bundle: a folder with everything that was learnt, and a manifest that says from what.

    models/
      manifest.json         what each part is: version, training window, checksums of its data, scores
      revpred/              the revocation model
      earlycurve.json       EarlyCurve's thresholds
      spells.json           how long markets have capacity, and have none
      hazard.json           the chance that a machine is refused or lost
      price-chains/         a price chain for each of some markets
      speeds.json           measured steps per hour, by job and instance type
      solved/               what was solved from the models, such as cookbooks: a folder each, with its manifest

A part that is not there is answered for by the defaults that come with the package. What was solved from other
versions of the models is left out. Only days after the training window of every part may be used to judge a
bundle; `check_unseen` refuses others. The pipeline's manifest names no version numbers of the MLflow registry:
its content depends on data and parameters alone. A bundle of champions (`forecasts.champions`) does name them.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ebbtide.base.files import write_text
from ebbtide.base.input_files import read_json
from ebbtide.base.json_values import misfit
from ebbtide.base.utc import Time, iso, to_epoch_s
from ebbtide.errors import InputError
from ebbtide.forecasts.capacity.models import SpellModels
from ebbtide.forecasts.hazard.model import Hazard, default_hazard
from ebbtide.forecasts.learning_curves.calibration import read_calibration
from ebbtide.forecasts.price_chain import PriceChain, load_chain
from ebbtide.market.markets import Market

if TYPE_CHECKING:
    from ebbtide.forecasts.learning_curves.early_curve import EarlyCurve
    from ebbtide.forecasts.revocation.serving import Served

# Where the pipeline writes it, and the folder of a run's own copy in the run's folder.
DEFAULT_BUNDLE = Path("models")
KEPT_MODELS = DEFAULT_BUNDLE.name

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1

# Where each part of the models lies in the folder.
REVPRED, EARLYCURVE, SPELLS, HAZARD, PRICE_CHAINS, SPEEDS = (
    "revpred",
    "earlycurve.json",
    "spells.json",
    "hazard.json",
    "price-chains",
    "speeds.json",
)
MODEL_PARTS = {
    "revpred": REVPRED,
    "earlycurve": EARLYCURVE,
    "spells": SPELLS,
    "hazard": HAZARD,
    "price-chains": PRICE_CHAINS,
    "speeds": SPEEDS,
}
SOLVED = "solved"

_VERSION_DIGITS = 12


@dataclass(frozen=True)
class BundlePart:
    """Manifest entry of one part of a bundle.

    Attributes:
        path: File or folder of the part, below the bundle's folder, with forward slashes.
        version: The first digits of the SHA-256 of its files.
        trained_from_s: Start of the market data that it was trained or scored on, seconds since 1970; None: it was
            trained on no market data.
        trained_until_s: End of that data, seconds since 1970; None: it was trained on no market data.
        data: SHA-256 of each file that it was trained on, by file name.
        scores: Scores on later data, or expected cost and risk of a solved part, by name.
        registry_version: Version number in the MLflow registry; None: it is not registered.
    """

    path: str
    version: str
    trained_from_s: float | None = None
    trained_until_s: float | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, float | None] = field(default_factory=dict)
    registry_version: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the manifest; times as ISO 8601."""
        return {
            "path": self.path,
            "version": self.version,
            "trained_from": None if self.trained_from_s is None else iso(self.trained_from_s),
            "trained_until": None if self.trained_until_s is None else iso(self.trained_until_s),
            "data": dict(sorted(self.data.items())),
            "scores": dict(sorted(self.scores.items())),
            "registry_version": self.registry_version,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BundlePart:
        """Create a part from the values that `to_dict` returns.

        Raises:
            KeyError: A value is missing; other errors for other values that are not of a part.
        """
        times = [values[name] for name in ("trained_from", "trained_until")]
        start_s, end_s = (None if time is None else to_epoch_s(str(time)) for time in times)
        return cls(
            str(values["path"]),
            str(values["version"]),
            start_s,
            end_s,
            dict(values["data"]),
            dict(values["scores"]),
            values["registry_version"],
        )


@dataclass(frozen=True)
class ModelBundle:
    """Everything that was learnt, read from a folder; its parts are read when they are first asked.

    Attributes:
        folder: The bundle's folder.
        parts: What the manifest says of each part, by name.
    """

    folder: Path
    parts: Mapping[str, BundlePart]

    @classmethod
    def read(cls, folder: str | Path) -> ModelBundle:
        """Read a bundle's manifest, and check that each part's files are those that it names.

        Raises:
            InputError: The folder is no bundle, a newer Ebbtide wrote it, or a part is missing or was changed.
        """
        folder = Path(folder)
        path = folder / MANIFEST
        if not path.exists():
            problem = f"is no model bundle: it has no {MANIFEST}; the pipeline's stage `bundle` writes one"
            raise InputError(problem, file=folder)
        content = read_json(path)
        try:
            if content["schema_version"] > SCHEMA_VERSION:
                raise InputError(
                    f"has schema version {content['schema_version']}, and this Ebbtide reads versions up to "
                    f"{SCHEMA_VERSION}; upgrade ebbtide",
                    file=path,
                )
            parts = {str(name): BundlePart.from_dict(values) for name, values in content["parts"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"is no manifest of a model bundle: {misfit(error)}", file=path) from None
        if not parts:
            raise InputError("names no model; the pipeline's stage `bundle` writes one anew", file=path)
        parts |= _solved_parts(folder, parts)
        for name, part in parts.items():
            if version_of(_inside(folder, part.path, path)) != part.version:
                problem = f"is not the version that {MANIFEST} names ({part.version}); write the bundle anew"
                raise InputError(problem, file=folder / part.path, field=name)
        return cls(folder, parts)

    def copy_to(self, folder: Path) -> None:
        """Copy the bundle, its manifest last, so that a run can go on with the same models whatever follows."""
        for part in self.parts.values():
            copy_part(part, self.folder, folder)
        models = {name: part for name, part in self.parts.items() if name in MODEL_PARTS}
        copy = write_manifest(folder, models)
        if solved := {name: part for name, part in self.parts.items() if name not in MODEL_PARTS}:
            write_solved(copy, solved)

    @property
    def versions(self) -> dict[str, str]:
        """The version of each part by name, with its number in the registry where it has one."""
        return {
            name: part.version if part.registry_version is None else f"{part.registry_version} ({part.version})"
            for name, part in self.parts.items()
        }

    @property
    def trained_until_s(self) -> float:
        """The end of the market data that any part was trained on, seconds since 1970; minus infinity: of none."""
        ends = [part.trained_until_s for part in self.parts.values() if part.trained_until_s is not None]
        return max(ends, default=-math.inf)

    def check_unseen(self, starts_s: Iterable[float]) -> None:
        """Raise `InputError` if a run would start within the data that a part of the bundle was trained on.

        Args:
            starts_s: Starts of the runs, seconds since 1970.
        """
        first_s = min(starts_s, default=math.inf)
        late = {name: part for name, part in self.parts.items() if (part.trained_until_s or -math.inf) > first_s}
        if late:
            name = max(late, key=lambda each: late[each].trained_until_s or -math.inf)
            until_s = late[name].trained_until_s or 0.0
            raise InputError(
                f"{name} was trained on prices until {iso(until_s)}, and a run starts at {iso(first_s)}: it would "
                f"be judged on what it has seen; start at {iso(until_s)} or later",
                file=self.folder / MANIFEST,
            )

    @cached_property
    def revocation(self) -> Served | None:
        """The revocation model as a forecast; None: there is none."""
        if "revpred" not in self.parts:
            return None
        # PyTorch takes seconds to load, and most policies never need it.
        from ebbtide.forecasts.revocation.serving import Served
        from ebbtide.forecasts.revocation.storage import load_model

        model = load_model(self.folder / self.parts["revpred"].path)
        return Served(model, name=model.name)

    @cached_property
    def early_curve(self) -> EarlyCurve | None:
        """EarlyCurve as it was calibrated; None: it was not, and the thresholds of the package serve."""
        if "earlycurve" not in self.parts:
            return None
        return read_calibration(self.folder / self.parts["earlycurve"].path).everywhere

    @cached_property
    def spells(self) -> SpellModels | None:
        """Models of how long markets have capacity, and have none; None: the package's models are used."""
        if "spells" not in self.parts:
            return None
        return SpellModels.read(self.folder / self.parts["spells"].path)

    @cached_property
    def hazard(self) -> Hazard | None:
        """Chances that machines are refused or lost; None: those of the package are used."""
        if "hazard" not in self.parts:
            return None
        return Hazard.read(self.folder / self.parts["hazard"].path)

    @cached_property
    def price_chains(self) -> Mapping[Market, PriceChain]:
        """The price chain of each market that has one."""
        if "price-chains" not in self.parts:
            return {}
        found = {}
        for path in sorted((self.folder / self.parts["price-chains"].path).glob("*.safetensors")):
            chain, about = load_chain(path)
            found[Market(*about["fields"])] = chain
        return found

    @cached_property
    def speeds(self) -> Mapping[str, Mapping[str, Any]]:
        """Measured speeds by name of the job: `steps_per_hour` by instance type, and of all other types
        `other_steps_per_hour_per_vcpu`, where they were measured."""
        if "speeds" not in self.parts:
            return {}
        path = self.folder / self.parts["speeds"].path
        return speeds_of(read_json(path), path)

    def solved(self, name: str) -> Path:
        """The file of something that was solved from the models.

        Raises:
            InputError: The bundle has nothing of that name.
        """
        if name not in self.parts:
            solved = [each for each in self.parts if each not in MODEL_PARTS]
            raise InputError(
                f"holds no {name}; solved from its models: {', '.join(solved) or 'nothing'}", file=self.folder
            )
        return self.folder / self.parts[name].path


def part_of(
    folder: Path,
    path: str,
    *,
    window_s: tuple[Time, Time] | None = None,
    data: Sequence[Path] = (),
    scores: Mapping[str, float | None] | None = None,
    registry_version: str | None = None,
) -> BundlePart:
    """Build the manifest entry of a part whose files are written.

    Args:
        folder: The bundle's folder.
        path: File or folder of the part, below it.
        window_s: Start and end of the market data that it was trained or scored on; None: of no market data.
        data: Files that it was trained on.
        scores: Scores on later data, or expected cost and risk, by name; scores that are not finite become None.
        registry_version: Version number in the MLflow registry, where it has one.
    """
    start_s, end_s = (None, None) if window_s is None else tuple(map(to_epoch_s, window_s))
    return BundlePart(
        path,
        version_of(folder / path),
        start_s,
        end_s,
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in data},
        {name: _finite(value) for name, value in (scores or {}).items()},
        registry_version,
    )


def copy_part(part: BundlePart, source: Path, target: Path) -> None:
    """Copy a part's file or folder from one bundle's folder into another's."""
    old, new = source / part.path, target / part.path
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir():
        shutil.copytree(old, new, dirs_exist_ok=True)
    else:
        shutil.copyfile(old, new)


def joined(folder: Path, parts: Mapping[str, tuple[Path, BundlePart]]) -> ModelBundle:
    """Write a bundle of parts that lie in several folders.

    Args:
        folder: The new bundle's folder, empty or missing.
        parts: The folder that each part lies in, and what its manifest says of it, by name.
    """
    for source, part in parts.values():
        copy_part(part, source, folder)
    return write_manifest(folder, {name: part for name, (_, part) in parts.items()})


def write_manifest(folder: str | Path, parts: Mapping[str, BundlePart]) -> ModelBundle:
    """Write a bundle's manifest, atomically and last: a folder with it is complete."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "parts": {name: part.to_dict() for name, part in sorted(parts.items())},
    }
    write_text(Path(folder) / MANIFEST, json.dumps(content, indent=2, allow_nan=False) + "\n")
    return ModelBundle.read(folder)


def write_solved(bundle: ModelBundle, parts: Mapping[str, BundlePart]) -> ModelBundle:
    """Write a manifest for each part that was solved from a bundle's models, atomically and last.

    Args:
        bundle: The models that they were solved from.
        parts: What was solved, by name; the files of each lie in a folder of its name in `solved`.
    """
    for name, part in parts.items():
        content = {
            "schema_version": SCHEMA_VERSION,
            "solved_from": _model_versions(bundle.parts),
            "part": part.to_dict(),
        }
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        write_text(bundle.folder / SOLVED / name / MANIFEST, text)
    return ModelBundle.read(bundle.folder)


def version_of(path: Path) -> str:
    """The version of a part: the first digits of the SHA-256 of its file, or of all files of its folder.

    Raises:
        InputError: There is no such file.
    """
    if not path.exists():
        raise InputError("there is no such part of the bundle", file=path)
    whole = hashlib.sha256()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for file in files:
        name = "" if path.is_file() else file.relative_to(path).as_posix()
        whole.update(f"{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                whole.update(block)
    return whole.hexdigest()[:_VERSION_DIGITS]


def _solved_parts(folder: Path, models: Mapping[str, BundlePart]) -> dict[str, BundlePart]:
    """Parts that were solved from these versions of the models; none if they were solved from others."""
    found = {}
    for path in sorted((folder / SOLVED).glob(f"*/{MANIFEST}")):
        content = read_json(path)
        try:
            if content["solved_from"] == _model_versions(models):
                found[path.parent.name] = BundlePart.from_dict(content["part"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"is no manifest of what was solved: {misfit(error)}", file=path) from None
    return found


def hazard_of(models: ModelBundle | Path | None) -> Hazard:
    """The hazard of a bundle, or of that in a folder; the package's where there is no bundle, or it has none.

    Raises:
        InputError: The folder is no bundle, or a part of it was changed.
    """
    if isinstance(models, Path):
        models = ModelBundle.read(models) if models.exists() else None
    return (models and models.hazard) or default_hazard()


def _model_versions(parts: Mapping[str, BundlePart]) -> dict[str, str]:
    return {name: part.version for name, part in parts.items() if name in MODEL_PARTS}


def speeds_of(content: Any, file: Path) -> dict[str, dict[str, Any]]:
    """Measured speeds by job, from the content of a file.

    Raises:
        InputError: It is something else.
    """
    try:
        return {str(job): _speeds(found) for job, found in content.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"holds no measured speeds: {error}", file=file) from None


def _speeds(found: Mapping[str, Any]) -> dict[str, Any]:
    rates = {str(name): float(rate) for name, rate in found.get("steps_per_hour", {}).items()}
    other = found.get("other_steps_per_hour_per_vcpu")
    speeds: dict[str, Any] = {"steps_per_hour": rates} if rates else {}
    return speeds if other is None else speeds | {"other_steps_per_hour_per_vcpu": float(other)}


def _inside(folder: Path, path: str, manifest: Path) -> Path:
    """A part's path, which must not lead out of the bundle's folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise InputError(f"names {path!r}, which is outside of the bundle", file=manifest)
    return folder / pure


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
