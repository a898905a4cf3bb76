"""Tokens of Google's services: by Google's own library, and on machines by their metadata."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import pytest

from ebbtide.clouds.metadata import MachineState, RoleCredentials
from ebbtide.errors import CloudError, InputError
from ebbtide.storage import google_tokens
from ebbtide.storage.google_tokens import GoogleTokens, new_token
from ebbtide.testing.gcp_stand_in.api import GcpApi
from ebbtide.testing.gcp_stand_in.running import PROJECT, write_service_account
from ebbtide.testing.metadata_server import MetadataServer


def test_a_token_is_kept_until_it_ends_or_is_refused() -> None:
    given: list[str] = []

    def source() -> tuple[str, float]:
        given.append(f"token-{len(given)}")
        # The first is about to end.
        return given[-1], time.time() + (60.0 if len(given) == 1 else 3600.0)

    tokens = GoogleTokens(source)
    assert [tokens.token() for _ in range(3)] == ["token-0", "token-1", "token-1"]
    tokens.forget()
    assert tokens.token() == "token-2"


def test_credentials_that_are_gone_for_a_while_end_no_run() -> None:
    answers: list[Any] = [("token", 0.0), InputError("there are no Google credentials"), ("another", 0.0)]

    def source() -> tuple[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, InputError):
            raise answer
        return answer  # type: ignore[no-any-return]

    tokens = GoogleTokens(source)
    assert tokens.token() == "token"
    with pytest.raises(CloudError, match="^there are no Google credentials; the run continues then$"):
        tokens.token()
    assert tokens.token() == "another"


def test_the_library_s_chain_gives_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = GcpApi(PROJECT)
    try:
        write_service_account(tmp_path / "account.json", api.token_url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
        token, ends_s = new_token()
        assert token == api.given[-1]
        assert ends_s == pytest.approx(time.time() + 3600.0, abs=600.0)
    finally:
        api.close()
    with pytest.raises(CloudError, match="^the Google credentials give no token: .*; renew them$") as refused:
        new_token()
    assert "PRIVATE KEY" not in str(refused.value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="gcloud auth application-default login"):
        new_token()


def test_a_machine_without_the_library_asks_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importlib.import_module

    def without(name: str) -> Any:
        if name.startswith("google.auth"):
            raise ImportError(name)
        return whole(name)

    monkeypatch.setattr(google_tokens, "import_module", without)
    role = RoleCredentials("agent", "TOKEN", "", time.time() + 1800.0)
    server = MetadataServer(lambda name: MachineState(credentials=role if name == "m1" else None))
    try:
        monkeypatch.setenv("GCE_METADATA_HOST", f"{server.url.removeprefix('http://')}/m1")
        token, ends_s = new_token()
        assert token == "TOKEN"
        assert ends_s == pytest.approx(role.expires_s, abs=600.0)
        # Of a machine without an account.
        monkeypatch.setenv("GCE_METADATA_HOST", f"{server.url.removeprefix('http://')}/m2")
        with pytest.raises(CloudError, match="the machine's metadata give no token of a service account"):
            new_token()
    finally:
        server.close()
