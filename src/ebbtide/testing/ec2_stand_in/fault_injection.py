"""The part of AWS's Fault Injection Service that interrupts spot machines, for the real client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

_ARN = re.compile(r"arn:aws:ec2:[a-z0-9-]+:\d{12}:instance/(i-[0-9a-f]+)")
_ACTION = "aws:ec2:send-spot-instance-interruptions"


@dataclass
class Experiments:
    """Experiments of the service.

    Attributes:
        templates: Existing templates, by id.
        started: Templates that were started, in order.
        refuses: Reason for which experiments fail; empty: they succeed.
    """

    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: list[dict[str, Any]] = field(default_factory=list)
    refuses: str = ""

    def answer(
        self, environ: dict[str, Any], start: Callable[..., Any], interrupted: Callable[[str], None]
    ) -> Iterable[bytes]:
        """Answer one request.

        Args:
            environ: The request's WSGI environment.
            start: Begins the answer.
            interrupted: Called with the id of an instance that is to be interrupted.
        """
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        content = json.loads(body or b"{}")
        if (method, path) == ("POST", "/experimentTemplates"):
            return _said(start, {"experimentTemplate": self._template(content)})
        if (method, path) == ("POST", "/experiments"):
            return _said(start, {"experiment": self._experiment(content, interrupted)})
        if method == "GET" and path.startswith("/experiments/"):
            return _said(start, {"experiment": {"id": path.rpartition("/")[2], "state": self._state()}})
        if method == "DELETE" and path.startswith("/experimentTemplates/"):
            return _said(start, {"experimentTemplate": self.templates.pop(path.rpartition("/")[2])})
        return _said(start, {"message": f"{method} {path} is unknown here"}, "404 Not Found")

    def _template(self, content: dict[str, Any]) -> dict[str, Any]:
        template = {**content, "id": f"EXT{len(self.templates) + len(self.started)}"}
        self.templates[template["id"]] = template
        return template

    def _experiment(self, content: dict[str, Any], interrupted: Callable[[str], None]) -> dict[str, Any]:
        template = self.templates[content["experimentTemplateId"]]
        self.started.append(template)
        if not self.refuses:
            for action in template["actions"].values():
                target = template["targets"][action["targets"]["SpotInstances"]]
                for arn in target["resourceArns"] if action["actionId"] == _ACTION else ():
                    found = _ARN.fullmatch(arn)
                    assert found is not None, arn
                    interrupted(found[1])
        return {"id": f"EXP{len(self.started)}", "experimentTemplateId": template["id"], "state": self._state()}

    def _state(self) -> dict[str, str]:
        return {"status": "failed", "reason": self.refuses} if self.refuses else {"status": "running"}


def _said(start: Callable[..., Any], content: dict[str, Any], status: str = "200 OK") -> list[bytes]:
    body = json.dumps(content).encode()
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
