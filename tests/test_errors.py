import pickle

from ebbtide.errors import InputError, unknown_name


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
