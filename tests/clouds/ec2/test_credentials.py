"""Credentials are looked at before anything is rented."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.clouds.ec2.credentials import check_credentials
from ebbtide.errors import InputError

NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def _nothing_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_CREDENTIAL_EXPIRATION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def give(monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    for name, value in ({"ACCESS_KEY_ID": "KEY", "SECRET_ACCESS_KEY": "SECRET"} | more).items():
        monkeypatch.setenv(f"AWS_{name}", value)


def test_none_are_refused() -> None:
    with pytest.raises(InputError, match="no AWS credentials"):
        check_credentials(NOW.timestamp())


def test_lasting_ones_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch)
    assert check_credentials(NOW.timestamp() + 1e9) is None


def test_those_that_end_before_the_run_are_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    end = NOW + timedelta(hours=1)
    give(monkeypatch, SESSION_TOKEN="TOKEN", CREDENTIAL_EXPIRATION=end.isoformat())
    assert check_credentials(end.timestamp() - 60) is None
    with pytest.raises(InputError, match=f"end at {end:%Y-%m-%dT%H:%M}") as raised:
        check_credentials(end.timestamp() + 3600)
    for secret in ("KEY", "SECRET", "TOKEN"):
        assert secret not in str(raised.value)


def test_of_temporary_ones_whose_end_is_not_known_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, SESSION_TOKEN="TOKEN")
    warning = check_credentials(NOW.timestamp())
    assert warning is not None
    assert "renew them where they are kept (env)" in warning
