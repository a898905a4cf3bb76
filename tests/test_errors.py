import ast
import pickle
import re
from pathlib import Path

import pytest

from ebbtide import errors
from ebbtide.errors import InputError, unknown_name
from ebbtide.storage.objects import object_store


def test_an_error_names_file_row_and_field_in_one_line() -> None:
    error = InputError("is not\n a price", file="prices.csv", row=3, field="price")
    assert str(error) == "prices.csv, row 3, field price: is not a price"
    assert (error.file, error.row, error.field) == ("prices.csv", 3, "price")


def test_an_error_without_a_place_is_the_problem_alone() -> None:
    assert str(InputError("no start")) == "no start"


def test_an_error_survives_pickling_between_processes() -> None:
    error = InputError("is bad", file="a", row=1, field="b")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_several_problems_stand_below_a_summary_each_in_a_line() -> None:
    error = InputError("2 problems", file="job.yaml", problems=["field a: missing\nhere", "field b: negative"])
    assert str(error).splitlines() == ["job.yaml: 2 problems", "  field a: missing here", "  field b: negative"]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == (str(error), error.problems)


def test_an_unknown_name_comes_with_the_valid_ones_and_the_nearest() -> None:
    error = unknown_name("policy", "reactiv", ["on-demand", "reactive"])
    assert str(error) == "unknown policy 'reactiv' (did you mean 'reactive'?); known: on-demand, reactive"


def test_the_printed_tree_of_errors_has_every_public_error_below_its_base() -> None:
    printed, above = {}, [""] * 10
    for line in (errors.__doc__ or "").split("```")[1].splitlines():
        found = re.match(r"([│├└─ ]*)(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            above[depth] = found[2]
            printed[found[2]] = above[depth - 1] if depth else "Exception"
    public = {name: bases for name, bases in error_classes().items() if not name.startswith("_")}
    assert printed.keys() == public.keys()
    assert {name: base for name, base in printed.items() if base != public[name][0]} == {}


def error_classes() -> dict[str, list[str]]:
    """Every class below `EbbtideError` in the packages, with the names of its bases."""
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for package in ("ebbtide", "ebbtide_papers")
        for path in (Path(errors.__file__).parents[1] / package).rglob("*.py")
        if re.search(r"^\s*class \w+\(", text := path.read_text(encoding="utf-8"), re.MULTILINE)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    found = {"EbbtideError"}
    while more := {name for name, of in bases.items() if found.intersection(of)} - found:
        found |= more
    return {name: bases[name] for name in found}


def test_what_is_not_stored_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError) as missing:
        object_store(tmp_path).get("a/b")
    assert str(missing.value) == "nothing is stored as a/b"
    assert isinstance(missing.value, KeyError)
    again = pickle.loads(pickle.dumps(missing.value))
    assert (type(again), str(again)) == (errors.MissingObjectError, str(missing.value))
