"""Before machines are rented that cost money, `ebbtide run` shows what they cost, and asks at a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.cli.test_running import command
from tests.markets import series
from tests.runs.sweeps import A, flapping, sweep

import ebbtide as eb
from ebbtide.errors import InputError


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """Arguments of a run on machines of SkyPilot, which is refused at the moment at which it would begin."""
    wanted = sweep(tmp_path, trials=2, steps=60)
    content = wanted.model_dump(mode="json", exclude_none=True) | {"budget_usd": 20.0}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    eb.PriceHistory({A: series((0, 0.05))}).write(tmp_path / "sky.parquet")
    settings = {
        "places": {f"{A.cloud}/{A.region}": {"zones": [A.zone]}},
        "prices": str(tmp_path / "sky.parquet"),
        "store": "s3://bucket/x",
    }
    (tmp_path / "sky.yaml").write_text(yaml.safe_dump(settings))

    def begin(*_: object) -> None:
        raise InputError("it begins")

    monkeypatch.setattr("ebbtide.cli.running.begin", begin)
    machines = ("--provider", "skypilot", "--machines", tmp_path / "sky.yaml", "--runs", tmp_path / "runs")
    return ("run", tmp_path / "sweep.yaml", *machines)


def at_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool | None) -> None:
    """A terminal whose user answers so; None: a question fails the test."""
    stream = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("ebbtide.cli.asking.sys", SimpleNamespace(stdin=stream, stdout=stream))

    def confirm(words: str, *, default: bool) -> bool:
        assert (words, default) == ("Rent?", False)
        assert answer is not None
        return answer

    monkeypatch.setattr("ebbtide.cli.asking.typer.confirm", confirm)


def test_a_user_at_a_terminal_sees_prices_cost_and_budget_and_may_refuse(
    asked: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    at_terminal(monkeypatch, answer=False)
    code, out, errors = command(capsys, *asked)
    assert (code, errors) == (130, "interrupted\n")
    assert str(A) in out
    assert "0.0500" in out
    assert "never more than its budget of 20 USD" in out
    assert "nothing was begun or rented" in out
    at_terminal(monkeypatch, answer=True)
    assert "it begins" in command(capsys, *asked)[2]


@pytest.mark.parametrize("more", [("--yes",), ()])
def test_nobody_is_asked_with_yes_or_without_a_terminal(
    asked: tuple[Any, ...],
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if more:
        at_terminal(monkeypatch, answer=None)
    code, out, errors = command(capsys, *asked, *more)
    assert (code, out) == (2, "")
    assert "it begins" in errors


def test_a_dry_run_begins_nothing_and_asks_nothing(
    asked: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch, answer=None)
    code, out, errors = command(capsys, *asked, "--dry-run")
    assert (code, errors) == (0, "")
    assert "a dry run: nothing was begun or rented" in out
    flapping().write(tmp_path / "prices.parquet")
    market = ("--prices", tmp_path / "prices.parquet", "--runs", tmp_path / "r", "--dry-run")
    for provider in ("local", "replay"):
        code, out, errors = command(capsys, "run", tmp_path / "sweep.yaml", "--provider", provider, *market)
        assert (errors, code) == ("", 0)
        assert f"provider {provider} (simulated)" in out
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "runs").exists()
