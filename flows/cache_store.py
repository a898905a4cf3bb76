"""DVC's cache in a store that others can reach: S3, Google Cloud Storage or a folder, set up like runs' storage.

Objects have the names that a remote of DVC gives them, so that `dvc pull` reads them where DVC's plugin for the
store is installed. Ebbtide needs no plugin: DVC's plugin for S3 requires another version of botocore than Ebbtide.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dvc.repo import Repo

from ebbtide.base.files import replacing
from ebbtide.errors import InputError, MissingObjectError
from ebbtide.storage.objects import ObjectStore

CACHE = Path(".dvc/cache")
# How the digest of a folder's list ends.
_DIRECTORY = ".dir"


def push_cache(store: ObjectStore) -> int:
    """Upload what the lock file and added files name and the store lacks; returns the number of objects.

    A folder's list goes last: a folder that has one is whole.

    Raises:
        InputError: The cache lacks something.
    """
    pushed = 0
    for digest in cached_digests():
        parts = _listed(_cached(digest)) if digest.endswith(_DIRECTORY) else []
        for each in (*parts, digest):
            if not store.has(_key(each)):
                store.put_file(_key(each), _cached(each))
                pushed += 1
    return pushed


def pull_cache(store: ObjectStore) -> int:
    """Download what the lock file and added files name and the cache lacks; returns the number of objects.

    Raises:
        InputError: The store lacks something, or has something else under its name.
    """
    pulled = 0
    for digest in cached_digests():
        pulled += _pull(store, digest)
        if digest.endswith(_DIRECTORY):
            pulled += sum(_pull(store, each) for each in _listed(CACHE / _key(digest)))
    return pulled


def cached_digests() -> list[str]:
    """Digests of all outputs in DVC's cache that the lock file and the files that were added name."""
    with Repo() as repo:
        found = [str(out.hash_info.value) for out in repo.index.outs if out.use_cache and out.hash_info]
    return list(dict.fromkeys(found))


def _key(digest: str) -> str:
    return f"files/md5/{digest[:2]}/{digest[2:]}"


def _cached(digest: str) -> Path:
    path = CACHE / _key(digest)
    if not path.exists():
        raise InputError(f"lacks {digest}, which dvc.lock names; run `dvc repro`", file=CACHE)
    return path


def _listed(directory: Path) -> list[str]:
    return [str(entry["md5"]) for entry in json.loads(directory.read_text(encoding="utf-8"))]


def _pull(store: ObjectStore, digest: str) -> int:
    path = CACHE / _key(digest)
    if path.exists():
        return 0
    with replacing(path) as temporary:
        try:
            store.get_file(_key(digest), temporary)
        except MissingObjectError:
            raise InputError(f"the store lacks {digest}, which dvc.lock names; was this night pushed?") from None
        with temporary.open("rb") as content:
            found = hashlib.file_digest(content, "md5").hexdigest()
        if found != digest.removesuffix(_DIRECTORY):
            raise InputError(f"the store has something else under {digest}: delete it there, and push again")
    return 1
