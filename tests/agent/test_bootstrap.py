"""The agent is fetched by the standard library alone, with whatever credentials a machine has."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.cut_answers import CUTS, cut_answers
from tests.runs.sweeps import steady
from tests.waiting import LIMIT_S

from ebbtide.agent import bootstrap
from ebbtide.storage.objects import object_store
from ebbtide.testing.gcp_stand_in.running import gcp_stand_in

pytestmark = pytest.mark.usefixtures("processes")

ROLE = '{"AccessKeyId": "OF-ROLE", "SecretAccessKey": "s", "Token": "t"}'


class Storage:
    """Instance metadata and a bucket of eu-west-1 in one server on loopback."""

    def __init__(self, content: bytes) -> None:
        self.failures, self.signed = 0, list[str]()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(200, b"token")

            def do_GET(self) -> None:
                if self.path.startswith("/latest/meta-data/iam/security-credentials/"):
                    known = self.headers["X-aws-ec2-metadata-token"] == "token"
                    self._answer(200 if known else 401, ROLE.encode() if self.path.endswith("role") else b"role\n")
                    return
                authorization = self.headers["Authorization"]
                served.signed.append(authorization)
                if served.failures:
                    served.failures -= 1
                    self._answer(503, b"slow down")
                elif "/eu-west-1/s3/" not in authorization:
                    # It would be followed with a signature that is wrong there.
                    self._answer(307, b"elsewhere")
                else:
                    self._answer(200 if self.path == "/bucket/a/agent.tar.gz" else 404, content)

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Location", "/wrong")
                self.send_header("x-amz-bucket-region", "eu-west-1")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@cache
def archive() -> bytes:
    """The same at every call: gzip writes the second in which it was made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo("program/x.py")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"\n"))
    return buffer.getvalue()


@pytest.fixture
def storage() -> Iterator[Storage]:
    found = Storage(archive())
    yield found
    found.close()


def fetch(
    storage: Storage, folder: Path, checksum: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    given = {
        "AWS_ENDPOINT_URL": storage.url,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": storage.url,
        "HOME": str(folder),
    }
    words = [sys.executable, "-S", bootstrap.__file__, "s3://bucket/a/agent.tar.gz", checksum, "bundle"]
    words[4] = checksum or hashlib.sha256(archive()).hexdigest()
    return subprocess.run(
        words,
        cwd=folder,
        env={"PATH": os.defpath, **given, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_it_is_fetched_with_the_role_of_the_machine_from_wherever_the_bucket_is(
    storage: Storage, tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "stale").touch()
    found = fetch(storage, tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert [path.name for path in (tmp_path / "bundle").rglob("*")] == ["program", "x.py"]
    assert [line.split("/s3/")[0].split("/", 1)[0].split("=")[1] for line in storage.signed] == ["OF-ROLE"] * 2
    assert ["eu-west-1" in line for line in storage.signed] == [False, True]
    assert all("x-amz-security-token" in line for line in storage.signed)


def test_credentials_of_the_image_come_first(storage: Storage, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("[default]\naws_access_key_id = OF-FILE\naws_secret_access_key = 100%s\n")
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(kept), "AWS_REGION": "eu-west-1"}
    assert fetch(storage, tmp_path, **named).returncode == 0
    own = {"AWS_ACCESS_KEY_ID": "OF-ENVIRONMENT", "AWS_SECRET_ACCESS_KEY": "x"}
    assert fetch(storage, tmp_path, **named, **own).returncode == 0
    assert ["OF-FILE/" in line for line in storage.signed] == [True, False]
    assert ["OF-ENVIRONMENT/" in line for line in storage.signed] == [False, True]


def test_it_asks_again_while_storage_does_not_answer_and_tells_no_secret(storage: Storage, tmp_path: Path) -> None:
    storage.failures = 1
    found = fetch(storage, tmp_path, AWS_REGION="eu-west-1")
    assert found.returncode == 0
    assert (
        found.stdout
        == "ebbtide: s3://bucket/a/agent.tar.gz is not fetched yet: HTTP Error 503: Service Unavailable\n"
    )


@pytest.mark.parametrize("where", CUTS)
def test_it_asks_again_where_an_answer_is_cut_off(where: str, tmp_path: Path) -> None:
    own = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "HOME": str(tmp_path), "PATH": os.defpath}
    words = [sys.executable, "-S", bootstrap.__file__, "s3://bucket/a/agent.tar.gz"]
    words += [hashlib.sha256(archive()).hexdigest(), "bundle"]
    with cut_answers(where, times=1, then=archive()) as url:
        found = subprocess.run(
            words,
            cwd=tmp_path,
            env=own | {"AWS_ENDPOINT_URL": url},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("is not fetched yet") == 1
    assert (tmp_path / "bundle" / "program" / "x.py").exists()


def test_another_s_content_is_not_unpacked(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "LIMIT_S", 0.0)
    for name, value in (
        ("AWS_ENDPOINT_URL", storage.url),
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        bootstrap.fetched("s3://bucket/a/agent.tar.gz", "0" * 64)
    assert ended.value.code == 1


@pytest.mark.parametrize("token", ["", "session/+="])
def test_it_signs_as_boto3_does(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    given = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret/+", "AWS_SESSION_TOKEN": token}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    ours = bootstrap.request("some.bucket", "a b/runs/r=1/agent-0.tar.gz", "eu-west-1")
    sent = {name.lower(): value for name, value in ours.header_items()}
    theirs = AWSRequest("GET", ours.full_url, headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    theirs.context["timestamp"] = sent["x-amz-date"]
    if token:
        theirs.headers["X-Amz-Security-Token"] = token
    theirs.headers["X-Amz-Date"] = sent["x-amz-date"]
    signer = S3SigV4Auth(Credentials("AKID", "secret/+", token or None), "s3", "eu-west-1")
    text = signer.string_to_sign(theirs, signer.canonical_request(theirs))
    assert sent["authorization"].rpartition("Signature=")[2] == signer.signature(text, theirs)
    assert ours.full_url == "https://s3.eu-west-1.amazonaws.com/some.bucket/a%20b/runs/r%3D1/agent-0.tar.gz"


def test_the_agent_is_fetched_from_google_s_storage_with_the_machine_s_token(tmp_path: Path) -> None:
    content = archive()
    with gcp_stand_in(tmp_path / "stand-in", steady()) as (api, machines, _):
        object_store("gs://stand-in-gcs/x").put_once("agent.tar.gz", content)
        environment = {
            "STORAGE_EMULATOR_HOST": api.url,
            "GCE_METADATA_HOST": f"{machines._metadata.url.removeprefix('http://')}/gcp-1",
            "PATH": os.environ["PATH"],
        }
        url, checksum = "gs://stand-in-gcs/x/agent.tar.gz", hashlib.sha256(content).hexdigest()
        words = [sys.executable, "-S", bootstrap.__file__, url, checksum, "bundle"]
        subprocess.run(words, cwd=tmp_path, env=environment, check=True, timeout=LIMIT_S)
    assert (tmp_path / "agent.tar.gz").read_bytes() == content
    assert any((tmp_path / "bundle").iterdir())
