"""What one decoded token costs per layer: calls of MLX, and no waiting for the device."""

import importlib
import pkgutil
from types import SimpleNamespace

import mlx.core as mx
import pytest
from streams import FIXED, make_cache, stream

import qfilters

OPERATORS = "add sub mul truediv floordiv mod neg and or xor lshift rshift invert eq ne lt le gt ge"
OPERATORS = {f"__{name}__" for name in f"getitem setitem matmul {OPERATORS}".split()}
OPERATORS |= {name.replace("__", "__r", 1) for name in OPERATORS}
WAITING = {"eval", "async_eval", "synchronize", "item", "tolist", "__array__", "__bool__"}
WAITING |= {"__int__", "__float__", "__index__", "__len__", "__iter__"}
COMPILED = type(mx.compile(lambda x: x))


@pytest.fixture
def calls(monkeypatch):
    """Names of what qfilters calls: functions of MLX, compiled ones, operators and methods."""
    names, inside = [], []

    def counting(name, function):
        def call(*args, **kwargs):
            if not inside:
                names.append(name)
            inside.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                inside.pop()

        return call

    functions = {
        name: counting(name, value)
        if callable(value) and name not in ("Dtype", "Stream")
        else value
        for name, value in vars(mx).items()
        if name[0] != "_"
    }
    for module in pkgutil.walk_packages(qfilters.__path__, "qfilters."):
        if ".cli" in module.name:
            continue
        scope = importlib.import_module(module.name)
        for name, value in list(vars(scope).items()):
            if value is mx:
                monkeypatch.setattr(scope, name, SimpleNamespace(**functions))
            elif isinstance(value, COMPILED):
                monkeypatch.setattr(scope, name, counting(name, value))
    for name in dir(mx.array):
        method = getattr(mx.array, name)
        if callable(method) and (name[0] != "_" or name in OPERATORS | WAITING):
            monkeypatch.setattr(mx.array, name, counting(name, method))
    return names


def decoding(method, dtype=mx.float32):
    """A cache that evicts, and two tokens to come."""
    cache, (keys, values) = make_cache(method, 8, 1, 2), stream(12, dtype=dtype)
    mx.eval(cache.update_and_fetch(keys[:, :, :9], values[:, :, :9]), cache.state)
    new = [[x[:, :, i : i + 1] for x in (keys, values)] for i in range(9, 12)]
    mx.eval(new)
    cache.update_and_fetch(*new[0])
    return cache, new[1:]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
@pytest.mark.parametrize("method", [*FIXED, "qfilters_keysvd"])
def test_a_token_takes_at_most_16_calls_and_waits_for_nothing(method, dtype, request):
    cache, (first, second) = decoding(method, dtype)
    cache.update_and_fetch(*first)
    calls = request.getfixturevalue("calls")
    cache.update_and_fetch(*second)
    assert 4 < len(calls) <= 16, calls
    assert calls.count("put_along_axis") == 4
    assert not WAITING & set(calls)
