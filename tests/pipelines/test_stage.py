"""Stages as dvc.yaml runs them: every parameter of a flow is given, and every file is an input or an output."""

from __future__ import annotations

import shlex
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import get_type_hints

import pytest
from dvc.repo import Repo
from flows.parameters import SECTIONS
from pipelines.__main__ import STAGES, main
from pipelines.stage import run_stage
from tests.pipelines.project import ROOT
from tests.pipelines.project import STAGES as OF_DVC

from ebbtide.errors import InputError


@pytest.fixture(scope="module")
def declared() -> dict[str, tuple[list[str], set[str]]]:
    """The words of each stage's command, and the files that it reads and makes, by name."""
    found = {}
    for stage in Repo(str(ROOT)).index.stages:
        files = {dependency.def_path for dependency in stage.deps} | {out.def_path for out in stage.outs}
        found[stage.name] = shlex.split(stage.cmd), files
    return found


def test_the_stages_are_those_of_the_project(declared: dict[str, tuple[list[str], set[str]]]) -> None:
    assert set(declared) == set(OF_DVC)
    assert {name.split("@")[0] for name in declared} == set(STAGES)


@pytest.mark.parametrize("name", OF_DVC)
def test_a_command_gives_all_that_its_flow_takes(
    name: str, declared: dict[str, tuple[list[str], set[str]]]
) -> None:
    words, files = declared[name]
    stage = name.split("@")[0]
    assert words[:4] == ["python", "-m", "pipelines", stage]
    given = dict(word.split("=", 1) for word in words[4:])
    flow = getattr(import_module(f"flows.{stage}"), stage)
    hints = get_type_hints(flow.fn)
    wanted = {key for key in signature(flow.fn).parameters if hints[key] not in SECTIONS.values()}
    assert set(given) == wanted
    assert f"flows/{stage}.py" in files
    for key, value in given.items():
        # A file of the stage, or a folder of its files.
        if hints[key] is Path:
            assert any(Path(value) in (Path(file), *Path(file).parents) for file in files), key


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["prices"], "'prices' is not NAME=VALUE"),
        (["price=a"], "unknown parameter of stage interpolate 'price'"),
        (["parameters=a"], "unknown parameter of stage interpolate 'parameters'"),
        (["prices=a"], "stage interpolate lacks into=..."),
    ],
)
def test_wrong_words_are_told(words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match=problem):
        run_stage("interpolate", words)


def test_a_command_is_known_or_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="unknown command or stage 'nigtly' .*did you mean 'nightly'"):
        main(["nigtly"])
    with pytest.raises(InputError, match="collect takes no arguments; x given"):
        main(["collect", "x"])
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "nightly" in capsys.readouterr().out
