"""The local cloud as its controller and commands reach it, whatever it answers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cut_answers import CUTS, cut_answers
from tests.runs.sweeps import steady

from ebbtide.clouds.local.client import LocalCloud
from ebbtide.clouds.local.server import ADDRESS
from ebbtide.errors import CloudError


@pytest.mark.parametrize("where", CUTS)
def test_one_that_ends_while_it_answers_is_told_of(where: str, tmp_path: Path) -> None:
    with cut_answers(where) as url:
        (tmp_path / ADDRESS).write_text(json.dumps({"url": url, "secret": "s", "pid": os.getpid()}))
        with pytest.raises(CloudError, match="the local cloud has ended"):
            LocalCloud(tmp_path, steady())


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://127.0.0.1:9"}'])
def test_a_damaged_address_is_told_of(content: str, tmp_path: Path) -> None:
    (tmp_path / ADDRESS).write_text(content)
    with pytest.raises(CloudError, match="cloud.json"):
        LocalCloud(tmp_path, steady())
