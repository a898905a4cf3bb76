"""The archive that a rented machine runs its agent from: fetched from storage, not from a package index.

It holds `program/ebbtide`, the modules of Ebbtide that agent and training programs import, and `libraries`, the
pure Python of boto3 with the data of S3 alone. Training programs see `program` only, beside their own packages.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import io
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import ebbtide
from ebbtide.errors import InputError

# The oldest Python that boto3 runs on; the modules in the bundle run on it, too.
LEAST_PYTHON = (3, 10)

PROGRAM, LIBRARIES = "program", "libraries"

# Modules that a machine runs, or that a training program may import; the modules that they import are added.
_ENTRIES = (
    "ebbtide.agent.__main__",
    "ebbtide.agent.entry_point",
    "ebbtide.trial",
    "ebbtide.trial_torch",
)
_LIBRARIES = ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six")

# The part of botocore's 30 MB of data that a client of S3 reads; `sts` is for roles assumed by a web identity.
_DATA = ("s3", "sts", "_retry.json", "endpoints.json", "partitions.json", "sdk-default-configuration.json")
_LEFT_OUT = frozenset({"__pycache__", "examples", "tests"})
_CARRIED = frozenset({".py", ".pem", ".json", ".gz", ".typed"})

# Another Ebbtide may be installed beside the bundle, with more modules in each package (matrix programs, say).
_EXTENDED = """
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
"""
_INIT = '''"""The part of Ebbtide {version} that rented machines have."""
{extended}
__version__ = "{version}"


def train(function=None, /, **_options):
    """On a machine, a function that trains is itself."""
    if function is None:
        return train
    function.sweep = function.run = sweep
    return function


def sweep(*_given, **_options):
    """What begins a sweep belongs to where it is begun."""
    raise RuntimeError("a machine cannot begin a sweep: put what does below `if __name__ == \'__main__\':`")


def __getattr__(name):
    hint = "use it below `if __name__ == \'__main__\':`, or within a function that no machine calls"
    raise AttributeError(f"machines have a part of Ebbtide, without ebbtide.{{name}}: {{hint}}")
'''


@cache
def bundle() -> bytes:
    """The archive, a gzipped tar; the same files give the same bytes.

    Raises:
        InputError: A library that it carries is not installed here as files.
    """
    buffer = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in sorted(_files()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def bundle_key(run: str) -> str:
    """Key of a run's bundle in its store. It carries the SHA-256 of the content: a controller of another version
    uses another bundle, and a machine runs only the bundle that it was started with."""
    return f"runs/{run}/agent-{hashlib.sha256(bundle()).hexdigest()}.tar.gz"


def own_modules() -> dict[str, Path]:
    """The modules of Ebbtide in the bundle: their files by dotted name."""
    found: dict[str, Path] = {}
    waiting = list(_ENTRIES)
    while waiting:
        name = waiting.pop()
        path = _module_file(name)
        if path is None or name in found or name == "ebbtide":
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imported(path)]
    return found


def _files() -> Iterator[tuple[str, bytes]]:
    yield f"{PROGRAM}/ebbtide/__init__.py", _INIT.format(version=ebbtide.__version__, extended=_EXTENDED).encode()
    for name, path in own_modules().items():
        package = f"{name.replace('.', '/')}/__init__.py" if path.name == "__init__.py" else None
        extended = _EXTENDED if package else ""
        yield f"{PROGRAM}/{package or name.replace('.', '/') + '.py'}", path.read_bytes() + extended.encode()
    for library in _LIBRARIES:
        yield from _library_files(library)


def _library_files(name: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(name)
    origin = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if origin is None or not origin.is_file():
        raise InputError(f"machines need {name}, which is not installed here as files; install boto3 with pip")
    if origin.name != "__init__.py":
        yield f"{LIBRARIES}/{origin.name}", origin.read_bytes()
        return
    folder = origin.parent
    for path in folder.rglob("*"):
        below = path.relative_to(folder)
        if path.is_file() and path.suffix in _CARRIED and _is_needed(name, below):
            yield f"{LIBRARIES}/{name}/{below.as_posix()}", path.read_bytes()


def _is_needed(library: str, below: Path) -> bool:
    if _LEFT_OUT & set(below.parts):
        return False
    if below.parts[0] != "data":
        return True
    return library == "botocore" and below.parts[1] in _DATA and not below.name.startswith("examples-")


def _module_file(name: str) -> Path | None:
    """The file of a module of Ebbtide; None: the name is of something else, such as a function in a module."""
    parts = name.split(".")
    if parts[0] != "ebbtide":
        return None
    base = Path(ebbtide.__file__).parent.joinpath(*parts[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _imported(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
