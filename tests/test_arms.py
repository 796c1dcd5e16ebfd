import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qfilters.arms import (
    MethodSpec,
    check_budget,
    default_recent,
    parse_methods,
    split_ints,
    split_methods,
)
from qfilters.errors import UsageError


@given(st.integers(1, 300), st.integers(0, 40), st.none() | st.integers(0, 40))
def test_budget_check_and_its_advice(budget, sinks, recent):
    window = budget // 4 if recent is None else recent
    if budget > sinks + window:
        assert check_budget(budget, sinks, recent) == window
        return
    with pytest.raises(UsageError) as caught:
        check_budget(budget, sinks, recent)
    enough = int(str(caught.value).rstrip(").").rpartition(" ")[2])
    assert check_budget(enough, sinks, recent) >= 0
    with pytest.raises(UsageError):
        check_budget(enough - 1, sinks, recent)


def test_default_recent_is_a_quarter():
    assert [default_recent(n) for n in (3, 4, 7, 128)] == [0, 1, 1, 32]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=5, unique=True))
def test_int_lists_from_text_and_yaml(numbers):
    wanted = tuple(numbers)
    assert split_ints(", ".join(map(str, numbers))) == split_ints(numbers) == wanted
    assert split_ints([str(n) for n in numbers]) == wanted


@pytest.mark.parametrize("bad", ["", "1,", "0", "-3", "1.0", "1_0", "x", True, None, 2.0, {}])
def test_not_int_lists(bad):
    with pytest.raises(UsageError, match="is not a whole number"):
        split_ints(bad)


# --- methods ---


def test_methods_split_at_top_level_commas_only():
    assert split_methods(" qfilters, qfilters_keysvd( sign = -1, calib_tokens=64 ) ") == [
        ("qfilters", {}),
        ("qfilters_keysvd", {"sign": -1, "calib_tokens": 64}),
    ]
    assert split_methods("a()") == [("a", {})]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("avg", "avg"),
        ("nan", "nan"),
        ("1_0", "1_0"),
    ],
)
def test_option_values(written, value):
    [(_, options)] = split_methods(f"m(x={written})")
    assert options == {"x": value} and type(options["x"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an item is empty"),
        ("a,", "an item is empty"),
        ("a,,b", "an item is empty"),
        ("a(x=1", "unbalanced"),
        ("a)", "unbalanced"),
        ("a((x=1))", "unbalanced"),
        ("a(1)", "'1' in .* must read option=value"),
        ("a(x=1,)", "must read option=value"),
        ("a(x=1, x=2)", "option 'x' is given twice"),
        ("a(x=)", "is no option value"),
        ("a(x=1=2)", "is no option value"),
        ("a(x=1)b", r"is not name or name\(option=value"),
        ("3a", "is not name or"),
        ("a b", "is not name or"),
    ],
)
def test_wrong_method_lists(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        split_methods(text)
    assert "\n" not in str(caught.value)


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
values = (
    st.booleans()
    | st.integers(-1000, 1000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names.filter(lambda word: word not in ("true", "false"))
)
specs = st.builds(MethodSpec, names, st.dictionaries(names, values, max_size=3))


@settings(deadline=None)
@given(st.lists(specs, min_size=1, max_size=4))
def test_labels_read_back(methods):
    assert split_methods(", ".join(spec.label for spec in methods)) == methods


def test_label_does_not_depend_on_the_order_of_options():
    one, other = split_methods("m(b=1, a=2), m(a=2, b=1)")
    assert one.label == other.label == "m(a=2, b=1)"
    with pytest.raises(UsageError, match=r"m\(a=2, b=1\) is listed twice"):
        parse_methods([one, other])
