"""Fetches the agent from a bucket and unpacks it: `bootstrap.py URL SHA256 FOLDER`.

Part of a start script: short, with the standard library alone, and readable by old Pythons.
"""

from __future__ import annotations

import configparser
import datetime
import hashlib
import hmac
import json
import os
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException

METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/") + "/latest/"
LIMIT_S = 300.0


def metadata(path: str) -> str:
    """Instance metadata of this machine (IMDSv2)."""
    asked = urllib.request.Request(METADATA + "api/token", method="PUT")
    asked.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
    token = urllib.request.urlopen(asked, timeout=5).read().decode()
    asked = urllib.request.Request(METADATA + "meta-data/" + path, headers={"X-aws-ec2-metadata-token": token})
    content: bytes = urllib.request.urlopen(asked, timeout=5).read()
    return content.decode()


def credentials() -> list[str]:
    """Key, secret and token: from the environment, else from a file of the image, else from the machine's role."""
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return [os.environ.get(name.upper(), "") for name in names]
    kept = configparser.ConfigParser(interpolation=None)
    kept.read(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials"))
    profile = os.environ.get("AWS_PROFILE", "default")
    if kept.has_option(profile, names[0]):
        return [kept.get(profile, name, fallback="") for name in names]
    role = metadata("iam/security-credentials/").split()[0]
    found = json.loads(metadata("iam/security-credentials/" + role))
    return [found["AccessKeyId"], found["SecretAccessKey"], found["Token"]]


def google_request(bucket: str, key: str) -> urllib.request.Request:
    """A GET request with a token of the machine's account."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    asked = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    found = json.loads(urllib.request.urlopen(asked, timeout=5).read())
    base = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
    url = f"{base}/{bucket}/{urllib.parse.quote(key)}"
    return urllib.request.Request(url, headers={"Authorization": f"Bearer {found['access_token']}"})


def request(bucket: str, key: str, region: str) -> urllib.request.Request:
    """A GET request, signed with AWS Signature Version 4."""
    own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    suffix = ".cn" if region.startswith("cn-") else ""
    base = urllib.parse.urlsplit((own or f"https://s3.{region}.amazonaws.com{suffix}").rstrip("/"))
    path = urllib.parse.quote(f"{base.path}/{bucket}/{key}")
    name, secret, token = credentials()
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")  # noqa: UP017
    sent = {"host": base.netloc, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": when}
    if token:
        sent["x-amz-security-token"] = token
    signed = ";".join(sorted(sent))
    headers = [f"{header}:{value}" for header, value in sorted(sent.items())]
    canonical = "\n".join(["GET", path, "", *headers, "", signed, "UNSIGNED-PAYLOAD"])
    scope = [when[:8], region, "s3", "aws4_request"]
    text = "\n".join(["AWS4-HMAC-SHA256", when, "/".join(scope), hashlib.sha256(canonical.encode()).hexdigest()])
    signer = ("AWS4" + secret).encode()
    for part in [*scope, text]:
        signer = hmac.new(signer, part.encode(), hashlib.sha256).digest()
    credential = "/".join([name, *scope])
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={signer.hex()}"
    )
    return urllib.request.Request(f"{base.scheme}://{base.netloc}{path}", headers=sent)


class Here(urllib.request.HTTPRedirectHandler):
    """A bucket in another region needs another signature, so redirections are not followed."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetched(url: str, checksum: str) -> bytes:
    """Fetch an object, and check its SHA-256; retries for five minutes, as a new role may need time."""
    scheme, _, place = url.partition("://")
    bucket, _, key = place.partition("/")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    began = time.time()
    while True:
        try:
            asked = google_request(bucket, key) if scheme == "gs" else request(bucket, key, region)
            with urllib.request.build_opener(Here).open(asked, timeout=30) as answer:
                content: bytes = answer.read()
            if hashlib.sha256(content).hexdigest() == checksum:
                return content
            problem = "it is not what the run put there"
        except (OSError, HTTPException, ValueError, LookupError) as error:
            problem = str(error)
            right = error.headers.get("x-amz-bucket-region") if isinstance(error, urllib.error.HTTPError) else None
            if right and right != region:
                region = right
                continue
        print(f"ebbtide: {url} is not fetched yet: {problem}", flush=True)
        if time.time() - began > LIMIT_S:
            sys.exit(1)
        time.sleep(2)


if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036
        version = sys.version.split()[0]
        sys.exit(f"ebbtide: {sys.executable} is Python {version}, and the agent needs 3.10 or later")
    shutil.rmtree(sys.argv[3], ignore_errors=True)
    with open("agent.tar.gz", "wb") as file:
        file.write(fetched(sys.argv[1], sys.argv[2]))
    with tarfile.open("agent.tar.gz") as tar:
        # Safe: its checksum is right. Some releases of Python know no filter, others warn without one.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(sys.argv[3])
