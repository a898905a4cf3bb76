"""The champions of the MLflow registry as a model bundle: what `models="champion"` and `--models champion` mean.

The stage `promote` registers each part of a bundle under its name (`analysis.model_registry`) and decides which
version is the champion (`analysis.promotion`). Here champions are downloaded, each into a folder named after its
digest in the user's cache, and joined to a bundle that needs no registry any more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import platformdirs
import yaml

from ebbtide.base.files import write_text
from ebbtide.base.json_values import misfit
from ebbtide.base.utc import iso
from ebbtide.errors import InputError
from ebbtide.forecasts.bundle import (
    DEFAULT_BUNDLE,
    MANIFEST,
    MODEL_PARTS,
    BundlePart,
    ModelBundle,
    joined,
    version_of,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

# The alias in the registry, and what is written instead of a bundle's folder.
CHAMPION = "champion"

# Tags of a version in the registry: the first digits of the SHA-256 of its files, and its entry in the manifest.
DIGEST, PART = "ebbtide.digest", "ebbtide.part"

# Where the pipeline tracks, unless params.yaml says otherwise.
DEFAULT_URI = "sqlite:///.mlflow/mlflow.db"
_PARAMS = Path("params.yaml")
_URI = "MLFLOW_TRACKING_URI"

# Seconds to wait for a server's first answer.
_ANSWERS_S = 5.0

_LOG = logging.getLogger(__name__)


def read_models(given: ModelBundle | str | Path | None) -> ModelBundle | None:
    """The bundle that a `models` argument means: one that is read already, a folder, or `champion`.

    Args:
        given: A bundle; a bundle's folder; the text `champion`: the champions of the registry; None: none. A
            folder of that name is `./champion`.

    Raises:
        InputError: The folder is no bundle, or the registry has no champion or does not answer.
    """
    if not isinstance(given, str | Path):
        return given
    return champions() if given == CHAMPION else ModelBundle.read(given)


def default_models(first_s: float) -> tuple[ModelBundle | None, str]:
    """The bundle that decides where none is named: that of the working directory, if it may be used.

    Args:
        first_s: The earliest start of any run, seconds since 1970.

    Returns:
        The bundle, or None; and a line that says why one that is there is not used.
    """
    if not (DEFAULT_BUNDLE / MANIFEST).exists():
        return None, ""
    try:
        found = ModelBundle.read(DEFAULT_BUNDLE)
    except InputError as error:
        return None, f"{DEFAULT_BUNDLE}/ is not used: {error}"
    if found.trained_until_s > first_s:
        until = iso(found.trained_until_s)
        return None, (
            f"{DEFAULT_BUNDLE}/ is not used: it was trained on prices until {until}, later than the first start; "
            f"runs that start then or later would use it"
        )
    return found, ""


def tracking_uri() -> str:
    """The registry's address: `MLFLOW_TRACKING_URI`, else `tracking.uri` of params.yaml here, else a file here."""
    if own := os.environ.get(_URI):
        return own
    try:
        content = yaml.safe_load(_PARAMS.read_text(encoding="utf-8"))
        return str(content["tracking"]["uri"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return DEFAULT_URI


def champions(uri: str | None = None, cache: Path | None = None) -> ModelBundle:
    """A bundle of the champions of all kinds, downloaded where the cache does not have them.

    Where a server does not answer, the champions that it last named are used, with a warning.

    Args:
        uri: The registry's address; None: see `tracking_uri`.
        cache: Folder for downloads; None: the user's cache folder.

    Raises:
        InputError: There is no registry at the address, it has no champion, or one cannot be downloaded.
    """
    uri = uri or tracking_uri()
    cache = cache or platformdirs.user_cache_path("ebbtide") / "champions"
    last = cache / "last" / f"{hashlib.sha256(uri.encode()).hexdigest()[:16]}.txt"
    try:
        client = registry_client(uri)
    except InputError as error:
        if uri.startswith("http") and last.exists():
            _LOG.warning("%s; the champions that it last named are used", error)
            return ModelBundle.read(last.read_text(encoding="utf-8"))
        raise
    found = champion_versions(client)
    if not found:
        raise InputError(
            f"the model registry at {uri} has no champion of any kind ({', '.join(MODEL_PARTS)}); the pipeline's "
            "stage `promote` registers models"
        )
    bundle = bundle_of_versions(found, uri, cache)
    write_text(last, str(bundle.folder))
    return bundle


def bundle_of_versions(versions: Mapping[str, ModelVersion], uri: str, cache: Path | None = None) -> ModelBundle:
    """A bundle of registered versions, downloaded where the cache does not have them.

    Args:
        versions: A version of each kind, by name.
        uri: The registry's address.
        cache: Folder for downloads; None: the user's cache folder.

    Raises:
        InputError: A version cannot be downloaded, or its files are not those that were registered.
    """
    cache = cache or platformdirs.user_cache_path("ebbtide") / "champions"
    parts = {}
    for kind, version in versions.items():
        part = part_of_version(version)
        parts[kind] = _downloaded(kind, part, version, uri, cache), part
    told = json.dumps({kind: part.to_dict() for kind, (_, part) in parts.items()}, sort_keys=True)
    folder = cache / "bundles" / hashlib.sha256(told.encode()).hexdigest()[:16]
    if not _is_whole(folder):
        with TemporaryDirectory(dir=_made(folder.parent)) as temporary:
            joined(Path(temporary) / "new", parts)
            _moved(Path(temporary) / "new", folder)
    return ModelBundle.read(folder)


def registry_client(uri: str) -> MlflowClient:
    """A client of a registry that is there.

    Args:
        uri: `sqlite:///FILE` or `http://HOST`.

    Raises:
        InputError: There is no such file, or the server does not answer.
    """
    # Nothing is sent from this machine unless its user asks for it. MLflow reads this when it is imported.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        raise InputError(
            f"there is no model registry at {uri}; the pipeline's stage `promote` makes it; {_URI} names another"
        )
    if uri.startswith("http"):
        # Loaded here, since every command imports this module.
        import urllib.error
        import urllib.request
        from http.client import HTTPException

        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_ANSWERS_S):
                pass
        except urllib.error.HTTPError:
            pass  # a server that wants a password answers all the same
        except (OSError, HTTPException, ValueError) as error:
            raise InputError(f"the model registry at {uri} does not answer: {error}") from None
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def champion_versions(client: MlflowClient) -> dict[str, ModelVersion]:
    """The champion of each kind that has one; versions that are no part of a bundle are left out."""
    from mlflow.exceptions import MlflowException

    found = {}
    for kind in MODEL_PARTS:
        try:
            version = client.get_model_version_by_alias(kind, CHAMPION)
        except MlflowException as error:
            # Which of the two it is depends on whether the model or only its alias is missing.
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                continue
            raise InputError(f"the model registry cannot be read: {_first_line(error)}") from None
        if {DIGEST, PART} <= version.tags.keys():
            found[kind] = version
    return found


def part_of_version(version: ModelVersion) -> BundlePart:
    """The manifest's entry of a registered version, with its number.

    Raises:
        InputError: Its tags are not those of a part.
    """
    try:
        values: dict[str, Any] = json.loads(version.tags[PART])
        own: Mapping[str, Any] = {"path": MODEL_PARTS[version.name], "registry_version": str(version.version)}
        return BundlePart.from_dict({**values, **own, "version": version.tags[DIGEST]})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{version.name} {version.version} of the registry is no part of a bundle: {misfit(error)}"
        ) from None


def _downloaded(kind: str, part: BundlePart, version: ModelVersion, uri: str, cache: Path) -> Path:
    """The folder in the cache that holds a version's files."""
    from mlflow.artifacts import download_artifacts

    folder = cache / "parts" / f"{kind}-{part.version}"
    if (folder / part.path).exists() and version_of(folder / part.path) == part.version:
        return folder
    what = f"{kind} {version.version}, the champion in the model registry at {uri},"
    with TemporaryDirectory(dir=_made(folder.parent)) as temporary:
        try:
            got = Path(download_artifacts(artifact_uri=version.source, dst_path=temporary, tracking_uri=uri))
        except Exception as error:  # MLflow passes on what each kind of storage raises
            raise InputError(f"{what} cannot be downloaded from {version.source}: {_first_line(error)}") from None
        if not (got / part.path).exists() or version_of(got / part.path) != part.version:
            raise InputError(f"{what} is not complete: {version.source} holds no {part.path} of {part.version}")
        _moved(got, folder)
    return folder


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / MANIFEST).exists() and bool(ModelBundle.read(folder))
    except InputError:
        return False


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _moved(source: Path, target: Path) -> None:
    """Put a complete folder in its place; another process may have put the same there meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
