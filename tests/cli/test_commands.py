"""The verbs: listed without an import, each with the first line of its own help; completion; the version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ebbtide
from ebbtide.cli.commands import VERBS, Verb
from ebbtide.cli.main import main
from ebbtide.clouds.settings import RUNS

SLOW = ("pandas", "numpy", "scipy", "torch", "mlflow", "ebbtide.market", "ebbtide.engine", "ebbtide.runs")


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def completed(line: str, folder: Path) -> list[str]:
    """What bash is offered for the last word of a line."""
    environment = os.environ | {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_EBBTIDE_COMPLETE": "complete_bash",
    }
    code = "from ebbtide.cli.main import main; import sys; sys.argv = ['ebbtide']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_is_told_in_the_list_as_it_tells_itself(verb: Verb) -> None:
    first = " ".join(verb.load().help.split("\n\n")[0].split())
    assert first == " ".join(verb.about().split())
    assert first


@pytest.mark.usefixtures("processes")
def test_the_list_and_the_version_import_nothing_slow() -> None:
    for words in (["--help"], ["--version"], ["plann"]):
        code = (
            f"import sys; from ebbtide.cli.main import main\ntry: main({words})\nexcept SystemExit: pass\n"
            f"print([name for name in {SLOW} if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["ls", "list", "ps"])
def test_runs_are_listed_by_the_names_of_other_tools(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = ended(name, "--runs", str(tmp_path))
    told = capsys.readouterr()
    assert code == ended("status", "--runs", str(tmp_path))
    assert told == capsys.readouterr()
    assert "no such command" not in told.err.lower()


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"ebbtide {ebbtide.__version__}\n"


def test_the_help_names_the_first_command_and_a_misspelt_verb_the_right_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended("--help") == 0
    assert "Start with: ebbtide demo" in capsys.readouterr().out
    assert ended("plann") == 2
    assert "Did you mean 'plan'?" in capsys.readouterr().err
    assert ended() == 2
    told = capsys.readouterr()
    assert "Start with: ebbtide demo" in told.out
    assert told.err == ""


def test_the_help_lists_what_a_training_needs_and_all_commands_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def listed(*words: str) -> list[str]:
        assert ended(*words) == 0
        rows = [line.removeprefix("│ ").split(" ")[0] for line in capsys.readouterr().out.splitlines()]
        return [row for row in rows if row in {verb.name for verb in VERBS}]

    assert len(listed("--help")) == 15
    assert listed("--commands") == [verb.name for verb in VERBS]


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_the_shell_is_offered_verbs_runs_policies_and_presets(tmp_path: Path) -> None:
    runs = tmp_path / RUNS
    (runs / "tune-1").mkdir(parents=True)
    (runs / "tune-1" / "run.json").write_text("{}")
    (runs / "no-run").mkdir()
    assert completed("ebbtide de", tmp_path) == ["demo", "describe"]
    assert completed("ebbtide status ", tmp_path) == ["tune-1"]
    assert completed("ebbtide compare --policies on-demand,rea", tmp_path) == ["on-demand,reactive"]
    assert completed("ebbtide cookbook apply --billing ec2", tmp_path) == ["ec2-hourly", "ec2-second"]
    (runs / "tune-1" / "run.json").unlink()
    assert completed("ebbtide stop ", runs) == []


@pytest.mark.usefixtures("processes")
def test_a_shell_gets_its_script() -> None:
    asks = f"{sys.executable} -c \"from ebbtide.cli.main import main; main(['--show-completion'])\"; exit $?"
    # The shell is found by its process, so there is one, whatever the tests were started from.
    done = subprocess.run(["bash", "-c", asks], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_EBBTIDE_COMPLETE" in done.stdout or "COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_is_wrapped_once_at_any_width(verb: Verb) -> None:
    """No line break of a docstring stays within a paragraph, and every line of an example is one of its own."""
    loaded = verb.load()
    for command in (loaded, *getattr(loaded, "commands", {}).values()):
        for part in command.help.split("\n\n"):
            lines = part.splitlines()
            assert len(lines) <= 1 or all(line.split()[0] in ("ebbtide", "aws") for line in lines), part


def test_former_commands_say_what_they_are_now(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: short\nsteps: 400\nother_steps_per_hour_per_vcpu: 400\n")
    assert ended("backtest", str(job), "--generate", "3", "--starts", "1", "--policies", "reactive") == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[0] == "`ebbtide backtest` is now `ebbtide compare`"
    assert "reactive" in told.out
    assert ended("recommend", str(job), "--generate", "3", "--top", "1") == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[0] == "`ebbtide recommend` is now `ebbtide plan --runs 0`"
    assert "kept 1 h" in told.out
    assert ended("backtest", "--help") == 0
    assert "Usage: ebbtide compare" in capsys.readouterr().out
