"""A run of the whole pipeline in MLflow: the parent of all that its stages track."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebbtide.analysis.tracking import tracking

_EXPERIMENT = "pipeline"


@contextmanager
def pipeline_run(name: str, parameters: Mapping[str, Any], reports: Path) -> Iterator[str]:
    """Begin one, close it at the end, reports and all.

    Args:
        name: Of the flow.
        parameters: The `tracking` section of params.yaml.
        reports: Folder of what to keep with it.

    Returns:
        Its id, for the environment of stages under `tracking.PARENT`.
    """
    with tracking(parameters["uri"], _EXPERIMENT, parameters["artifacts"]) as client:
        home = client.get_experiment_by_name(_EXPERIMENT).experiment_id
        run: str = client.create_run(home, run_name=name, tags={"ebbtide.kind": "pipeline"}).info.run_id
        try:
            yield run
            for file in sorted(reports.glob("*.json")) + sorted(reports.glob("*.html")):
                client.log_artifact(run, str(file), "reports")
        except BaseException:
            client.set_terminated(run, "FAILED")
            raise
        client.set_terminated(run)
