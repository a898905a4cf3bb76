"""Journals of which a part is damaged: each command tells it, and `down` ends machines all the same."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.ui.made_run import made_run

from ebbtide.cli import runs as cli_runs
from ebbtide.cli.main import main

RECORDS = ("bills", "decisions_made", "engine", "jobs", "leases", "provider", "trials")
STATES = ("phase", "figures")


def _with_text(content: str) -> str:
    """Numbers of a record replaced by text."""

    def changed(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: changed(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [changed(each, name) for each in value]
        return "x" if isinstance(value, float) and name.endswith(("_s", "_usd", "usd", "steps_done")) else value

    return json.dumps(changed(json.loads(content)))


DAMAGES: dict[str, Callable[[str], str | bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda _: "{}",
    "no text": lambda _: b"\xff",
    "of another kind": lambda _: '[1, "x"]',
    "a field renamed": lambda content: content.replace("_usd", "_qsd").replace("state", "stxte"),
    "text for numbers": _with_text,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("damaged") / "runs"
    made_run(runs, trials=3, stops_after_h=0.6)
    return runs


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs of which machines were ended."""
    found: list[str] = []
    end_machines: Callable[..., object] = cli_runs.end_machines

    def end(folder: object, *others: object, **named: object) -> object:
        found.append(str(folder))
        return end_machines(folder, *others, **named)

    monkeypatch.setattr(cli_runs, "end_machines", end)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", [*RECORDS, *STATES])
def test_damage_is_told_and_machines_are_ended(
    kind: str,
    damage: str,
    whole: Path,
    ended: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs)
    table, column = ("state", "name") if kind in STATES else ("records", "kind")
    with closing(sqlite3.connect(runs / "made" / "journal.sqlite")) as database, database:
        rows = database.execute(f"select rowid, content from {table} where {column} = ?", (kind,)).fetchall()
        assert rows
        for row, content in rows:
            damaged = DAMAGES[damage](content)
            database.execute(f"update {table} set content = ? where rowid = ?", (damaged, row))
    for words in (["status", "made"], ["why", "made"], ["fetch", "made", "0"], ["down", "made"]):
        with pytest.raises(SystemExit) as caught:
            main([*words, "--runs", str(runs)])
        out, errors = capsys.readouterr()
        assert caught.value.code in (0, 2), (words, errors)
        assert "internal error" not in errors + out
    assert len(ended) == 1
