"""Groups of options: single options on the command line, a dataclass in the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ebbtide.cli.option_groups import grouped


@dataclass(frozen=True)
class Window:
    """The part of a record that is used."""

    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Start of the record.")] = None
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the record.")] = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is studied, and how."""

    starts: Annotated[int, typer.Option(min=1, help="Number of starts.")] = 10
    prices: Annotated[Path, typer.Option(help="A file of prices.")]
    region: Annotated[list[str] | None, typer.Option(help="Only this region; may be given again.")] = None
    quick: Annotated[bool, typer.Option("--quick/--whole", help="Only a few starts.")] = False


@dataclass(frozen=True, kw_only=True)
class LongStudy(Study):
    """The same with more starts."""

    starts: Annotated[int, typer.Option(min=100, help="Number of starts, many.")] = 1000


class Recorder:
    """Runs a command and remembers what it was called with."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()

    def app(self, study: type[Study] = Study) -> typer.Typer:
        def command(
            path: Annotated[str, typer.Argument(help="The file.")],
            window: Window,
            study: Study,
            seed: Annotated[int, typer.Option(help="Seed of the starts.")] = 0,
        ) -> None:
            """Study a record."""
            self.given = (path, window, study, seed)

        command.__annotations__["study"] = study
        app = typer.Typer()
        app.command()(grouped(command))
        return app

    def run(self, *words: str, study: type[Study] = Study) -> int:
        return CliRunner().invoke(self.app(study), words).exit_code


def test_a_command_receives_its_groups() -> None:
    recorder = Recorder()
    words = ("file", "--to", "2020-01-01", "--prices", "p.parquet", "--region", "a", "--region", "b", "--quick")
    assert recorder.run(*words, "--seed", "3") == 0
    study = Study(prices=Path("p.parquet"), region=["a", "b"], quick=True)
    assert recorder.given == ("file", Window(None, "2020-01-01"), study, 3)


def test_defaults_are_those_of_the_fields() -> None:
    recorder = Recorder()
    assert recorder.run("file", "--prices", "p") == 0
    assert recorder.given == ("file", Window(), Study(prices=Path("p")), 0)


@pytest.mark.parametrize("words", [("file",), ("file", "--prices", "p", "--starts", "0")])
def test_required_options_and_limits_hold(words: tuple[str, ...]) -> None:
    assert Recorder().run(*words) == 2


def test_the_help_lists_single_options_in_the_order_of_the_parameters() -> None:
    text = CliRunner().invoke(Recorder().app(), ["--help"], env={"COLUMNS": "120"}).output
    names = ("--from", "--to", "--starts", "--prices", "--region", "--quick", "--seed")
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "Study a record." in text


def test_a_subclass_changes_one_option_in_its_place() -> None:
    recorder = Recorder()
    assert recorder.run("file", "--prices", "p", "--starts", "99", study=LongStudy) == 2
    assert recorder.run("file", "--prices", "p", study=LongStudy) == 0
    assert recorder.given[2] == LongStudy(prices=Path("p"))
    text = CliRunner().invoke(recorder.app(LongStudy), ["--help"], env={"COLUMNS": "120"}).output
    assert text.index("many") < text.index("--prices")


def test_two_options_of_one_name_are_a_mistake() -> None:
    def command(window: Window, end: Annotated[str, typer.Option(help="The end.")] = "") -> None: ...

    with pytest.raises(TypeError, match="two options named end"):
        grouped(command)
