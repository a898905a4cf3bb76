"""Training by a Python function: `sweep` and `train`.

    @eb.train(metric="loss", budget_usd=5)
    def fit(lr, trial):
        ...

    run = fit.sweep({"lr": [0.1, 0.01]}, max_steps=1_000)

Each machine imports a function of a module or a script. A function of a notebook, or of a file that cannot be
imported, is sent as a program file with whatever it uses: see `ebbtide.runs.function_source`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ebbtide.agent.entry_point import IMPORTING, TRIAL
from ebbtide.agent.folders import copy_code
from ebbtide.base.files import write_text
from ebbtide.clouds.settings import RUNS, NewRun
from ebbtide.errors import InputError, unknown_name
from ebbtide.jobs.resources import MachineRange
from ebbtide.jobs.sweep import Sweep
from ebbtide.market.catalogue import default_catalogue
from ebbtide.policies.api.protocol import Policy
from ebbtide.policies.registry import DEFAULT
from ebbtide.runs.function_import import check_as_imported
from ebbtide.runs.function_source import check_function, program_text
from ebbtide.runs.handle import Run
from ebbtide.runs.run import PROVIDERS, RunOptions, check_provider, run

P = ParamSpec("P")
R = TypeVar("R")

# Folder of a run for the program file of a function that cannot be imported, with the working folder's files.
_CODE = "code"

# Fields of a sweep that `sweep` sets from its own arguments.
_SAID = frozenset(["name", "command", "entry_point", "grid", "list", "random", "max_trial_steps"])
_FIELDS = frozenset(Sweep.model_fields) - _SAID
_OPTIONS = frozenset(RunOptions.__annotations__) - {"delay"}
_OWN = frozenset({"metric", "direction", "max_steps", "policy", "provider", "name"})


def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Iterable[Any]],
    *,
    metric: str | None = None,
    direction: str = "minimize",
    max_steps: int | None = None,
    policy: str | Policy = DEFAULT,
    provider: str = "local",
    name: str | None = None,
    **more: Any,
) -> Run:
    """Train by a function, once for each setting of a grid.

        run = eb.train(fit).sweep({"lr": [0.1, 0.01]}, metric="loss", max_steps=1_000)
        run.result()
        run.results()

    Args:
        function: Called on a machine with a value of each parameter, by name; a parameter named `trial` gets the
            current `ebbtide.trial.Trial`. Its return value, a number or numbers by name, is reported as its last
            metrics, if it reports none itself.
        grid: Values of each parameter; every combination is tried.
        metric: Name of the metric by which trials are compared, and of a single number that is returned.
        direction: Whether a lower or a higher metric is better: `minimize` or `maximize`.
        max_steps: Steps of a complete trial. A function without `trial` is one step by default.
        policy: Decides what to rent, as for `run`.
        provider: Who rents machines out, as for `run`: any but `replay`.
        name: Name of the sweep and of its run; None: that of the function, with the time for the run.
        **more: Any other field of a sweep (`budget_usd`, `deadline_h`, `accelerators`...) or option of `run`
            (`RunOptions`), by name. `machines` is a number of machines, or their settings, as for `run`.

    Returns:
        A handle, without waiting: the run's controller is a thread of this process.

    Raises:
        InputError: The function has no such parameter or needs others; it uses what cannot be sent; a field or an
            option is wrong; or this is called while a machine imports the function's script.
    """
    plain = inspect.unwrap(function)
    check_function(plain)
    if not isinstance(grid, Mapping) or not grid:
        raise InputError('a grid has values of each parameter, for example `{"lr": [0.1, 0.01]}`', field="grid")
    takes_trial = _check_parameters(plain, list(grid))
    values = {str(key): _values(str(key), given) for key, given in grid.items()}
    if max_steps is None:
        if takes_trial and any(len(given) > 1 for given in values.values()):
            raise InputError(
                f"how many steps does {plain.__name__} train? Trials are compared as they train: write "
                "`max_steps=1_000`",
                field="max_steps",
            )
        max_steps = None if takes_trial else 1
    if max_steps == 1:
        # A single step leaves nothing to predict from a part of it.
        more.setdefault("theta", 1.0)
    fields = {"metric": metric, "direction": direction, "max_trial_steps": max_steps, "grid": values}
    return _begin(plain, fields, policy, provider, name, more)


class TrainingFunction(Generic[P, R]):
    """A training function, as `train` returns it: called as before, or run on machines that may be revoked.

    Attributes:
        function: The function itself.
        options: Defaults of the options of `sweep` and `run`.
    """

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        check_function(inspect.unwrap(function))
        functools.update_wrapper(self, function)
        self.function, self.options = function, dict(options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<function {self.function.__name__} that trains>"

    def sweep(self, grid: Mapping[str, Iterable[Any]], **more: Any) -> Run:
        """Train once for each setting of a grid.

        Args:
            grid: Values of each parameter; every combination is tried.
            **more: Options as for `sweep`, which override those of `train`.
        """
        return sweep(self.function, grid, **_known(self.options | more))

    def run(self, **values: Any) -> Run:
        """Train once.

        Args:
            **values: Parameters of the function, by name; all other names are options of `sweep`.
        """
        function = inspect.unwrap(self.function)
        own = inspect.signature(function).parameters
        given = {name: value for name, value in values.items() if name in own}
        more = _known({**self.options, **{name: value for name, value in values.items() if name not in own}})
        _check_parameters(function, list(given))
        fields = {
            "metric": more.pop("metric", None),
            "direction": more.pop("direction", "minimize"),
            "max_trial_steps": more.pop("max_steps", None),
            "grid": {name: _values(name, [value]) for name, value in given.items()} or None,
        }
        policy, provider = more.pop("policy", DEFAULT), more.pop("provider", "local")
        return _begin(function, fields, policy, provider, more.pop("name", None), more)


@overload
def train(function: Callable[P, R], /) -> TrainingFunction[P, R]: ...


@overload
def train(**options: Any) -> Callable[[Callable[P, R]], TrainingFunction[P, R]]: ...


def train(function: Any = None, /, **options: Any) -> Any:
    """Turn a function into a training function for machines that may be revoked; it is still called as before.

        @eb.train(metric="loss", budget_usd=5)
        def fit(lr=0.1): ...

        fit(lr=0.1)                                # here, as ever
        fit.run(lr=0.1, provider="local")          # one training: a `Run`
        fit.sweep({"lr": [0.1, 0.01]})             # one for each setting

    Args:
        function: The function, if the decorator is written without parentheses.
        **options: Options of `sweep`, by name.

    Raises:
        InputError: `sweep` takes no such option, or machines could not call the function by its name.
    """
    _known(options)
    if function is None:
        return lambda found: TrainingFunction(found, options)
    return TrainingFunction(function, {})


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options, if all are known."""
    known = _OWN | _FIELDS | _OPTIONS
    for name in options:
        if name not in known:
            raise unknown_name("option", name, sorted(known))
    return options


def _begin(
    function: FunctionType,
    fields: Mapping[str, Any],
    policy: str | Policy,
    provider: str,
    name: str | None,
    more: Mapping[str, Any],
) -> Run:
    """Begin a run.

    Args:
        function: The function that trains.
        fields: Fields of the sweep that come from arguments of `sweep`.
        policy: Decides what to rent.
        provider: Who rents machines out.
        name: Name of sweep and run; None: that of the function.
        more: Other fields of the sweep, and options of the run.
    """
    _check_not_importing(function)
    check_provider(provider, [one for one in PROVIDERS if one != "replay"])
    _known(dict(more))
    options = {key: value for key, value in more.items() if key in _OPTIONS}
    own = {key: value for key, value in more.items() if key not in _OPTIONS}
    if "machines" in options and _is_count(options["machines"]):
        own["machines"] = options.pop("machines")
    if name is not None:
        options["name"] = name
    catalogue = options.get("catalogue") or default_catalogue()
    content = {"name": name or function.__name__, "entry_point": f"to_be:{function.__name__}", **fields, **own}
    work = Sweep.parse({key: value for key, value in content.items() if value is not None}, None, catalogue)
    given = options.pop("folder", None)
    place = _place_of(function, None if given is None else Path(given))
    if place is not None:
        entry_point, folder = place
        _check_guarded(function)
        check_as_imported(function)
        work = work.model_copy(update={"entry_point": entry_point})
        return _started(work, policy, provider, options, folder)
    text = program_text(function, train)
    kept = NewRun(Path(options.get("runs", RUNS)), options.get("name", "")).folder(work.name)
    try:
        code = kept.path / _CODE
        copy_code(Path(given or Path.cwd()), code)
        module = _free_name(code, f"{function.__name__}_program")
        write_text(code / f"{module}.py", text)
        work = work.model_copy(update={"entry_point": f"{module}:{function.__name__}"})
        return _started(work, policy, provider, options | {"name": kept.path.name}, code)
    except BaseException:
        # A run that cannot begin leaves nothing behind.
        if not kept.is_begun:
            shutil.rmtree(kept.path, ignore_errors=True)
        raise


def _started(work: Sweep, policy: str | Policy, provider: Any, options: Mapping[str, Any], folder: Path) -> Run:
    begun: Run = run(work, policy, provider, **{**options, "folder": folder})
    return begun


def _is_count(machines: object) -> bool:
    """Return whether `machines` is a number or range of machines, not their settings."""
    is_range = isinstance(machines, Mapping) and set(machines) <= set(MachineRange.model_fields)
    return isinstance(machines, int | MachineRange) or is_range


def _free_name(folder: Path, name: str) -> str:
    while (folder / f"{name}.py").exists() or (folder / name).exists():
        name += "_"
    return name


# The function's parameters.


def _values(name: str, given: Any) -> list[Any]:
    """The values of a parameter as plain values, those of arrays included."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(f"has values in a list: write `[{given!r:.60}]`", field=f"grid.{name}")
    return [value.item() if hasattr(value, "item") else value for value in given]


def _check_parameters(function: FunctionType, given: list[str]) -> bool:
    """Check the parameters given to a function, and return whether the function takes a trial.

    Raises:
        InputError: The function lacks a parameter that is given, or needs one that is not.
    """
    own = inspect.signature(function).parameters
    called = function.__name__
    if TRIAL in given:
        raise InputError(f"`{TRIAL}` is what {called} gets from Ebbtide; give the parameter another name")
    takes_any = any(one.kind is one.VAR_KEYWORD for one in own.values())
    names = [one.name for one in own.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in own.values():
        if one.kind is one.POSITIONAL_ONLY:
            raise InputError(f"{called} takes {one.name} by position alone; parameters are given by name")
    for name in given:
        if name not in names and not takes_any:
            raise unknown_name(f"parameter of {called}", name, [one for one in names if one != TRIAL])
    for one in own.values():
        if one.name in names and one.default is one.empty and one.name not in (TRIAL, *given):
            raise InputError(f"{called} needs {one.name}: give it values, or a default")
    return TRIAL in names


# How a machine finds the function.


def _place_of(function: FunctionType, folder: Path | None) -> tuple[str, Path] | None:
    """Entry point and folder of a function that a machine can import; None: a machine cannot import it.

    Raises:
        InputError: Its module is not in the folder that is given.
    """
    file = Path(function.__code__.co_filename)
    if not file.is_file():
        return None
    file, module = file.resolve(), function.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = file.stem if spec is None else spec.name
    parts = module.split(".")
    root = _root_of(file, parts)
    if root is None:
        # The module's name differs from its file's, as with a custom loader.
        root, parts = file.parent, [file.stem]
    if file.suffix != ".py" or not all(part.isidentifier() for part in parts):
        return None
    if {"site-packages", "dist-packages"} & set(root.parts):
        return f"{module}:{function.__name__}", folder or Path.cwd()
    if folder is not None and folder.resolve() != root:
        raise InputError(
            f"{function.__name__} is imported from {root}, which is the folder that is sent; leave `folder` out, "
            f"or move {file.name} into it",
            field="folder",
        )
    return f"{'.'.join(parts)}:{function.__name__}", root


def _root_of(file: Path, parts: list[str]) -> Path | None:
    """The folder from which a file is imported by a dotted name; None: there is none."""
    for names in ([*parts[:-1], f"{parts[-1]}.py"], [*parts, "__init__.py"]):
        if file.parts[-len(names) :] == tuple(names):
            return file.parents[len(names) - 1]
    return None


def _check_not_importing(function: FunctionType) -> None:
    """Raise `InputError` in a script that a machine imports."""
    if os.environ.get(IMPORTING):
        raise _unguarded(function)


def _check_guarded(function: FunctionType) -> None:
    """Raise `InputError`, before anything is rented, if importing the script would begin a sweep again."""
    file = function.__code__.co_filename
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != ("<module>", file):
        frame = frame.f_back
    if frame is None or function.__module__ != "__main__":
        return  # the code that begins the run is not in that script
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = Path(file).read_text(encoding="utf-8")
    if text and not _is_guarded(text):
        raise _unguarded(function)


def _is_guarded(text: str) -> bool:
    """Return whether a script has a condition on `__name__` at its top level; true if it cannot be parsed."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return True  # it runs, so it is not what is read here
    conditions = [part.test for part in body if isinstance(part, ast.If)]
    return any(
        isinstance(part, ast.Name) and part.id == "__name__" for test in conditions for part in ast.walk(test)
    )


def _unguarded(function: FunctionType) -> InputError:
    return InputError(
        f"each machine imports this script to call {function.__name__}, and would begin the sweep again: write "
        '`if __name__ == "__main__":` above the lines that begin it, and indent them',
        file=function.__code__.co_filename,
    )
