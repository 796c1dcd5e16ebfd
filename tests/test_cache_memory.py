"""What a cache holds and allocates: the sum of its arrays, one row per decoded token, no more."""

import mlx.core as mx
import pytest
from streams import AT_INSERTION, D_V, D, H, make_cache, stream

from qfilters.cache import EvictingKVCache
from qfilters.methods import Layer, make_method


@pytest.mark.parametrize("method", AT_INSERTION)
def test_nbytes_are_the_bytes_of_all_arrays_held(method):
    cache = make_cache(method, 8, 1, 2)
    assert cache.nbytes == cache.row_bytes == 0
    for size in (3, 5, 1, 1, 20, 1):
        cache.update_and_fetch(*stream(size, batch=3, dtype=mx.float16))
        buffers, *others = cache.state
        arrays = [*buffers, *(x for x in others if isinstance(x, mx.array))]
        assert cache.nbytes == sum(x.nbytes for x in arrays)
        assert cache.row_bytes == 3 * H * (D + D_V) * 2
    if method != "none":
        assert {x.shape[2] for x in cache.state[0]} == {9}


def one_step(cache, new, queries):
    """Feed one token, attend and evaluate at once; bytes allocated beyond what was there."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    keys, values = cache.update_and_fetch(*new)
    out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1)
    del keys, values
    mx.eval(out, cache.state)
    return mx.get_peak_memory() - before


@pytest.mark.parametrize("method", ["qfilters", "knorm", "streaming_llm"])
@pytest.mark.parametrize(("seen", "budget"), [(8000, 8192), (8300, 8192), (8189, 8191)])
def test_a_decoded_token_is_written_in_place(method, seen, budget):
    """While filling, when evicting, and at the first eviction."""
    size = 64
    layer = Layer(0, 4, size, 4, q_filters=mx.random.normal((4, size)))
    cache = EvictingKVCache(make_method(method), layer, budget, 4, 2048)
    block = mx.random.normal((1, 4, seen, size))
    cache.update_and_fetch(block, block)
    del block
    mx.eval(cache.state)
    token, queries = mx.random.normal((1, 4, 1, size)), mx.random.normal((1, 4, 1, size))
    mx.eval(token, queries)
    taken = [one_step(cache, (token, token), queries) for _ in range(4)]
    assert cache.state[0][0].nbytes > 8e6, "one copy of the keys would be seen"
    assert max(taken) < 2e6


@pytest.mark.parametrize("method", AT_INSERTION)
def test_a_long_decode_holds_no_more_than_its_rows(method):
    """Only the output is evaluated, as mlx-lm's loop does: nothing may pile up unevaluated."""
    cache, (keys, values) = make_cache(method, 64, 4, 16), stream(450)
    mx.eval(keys, values)
    active = {}
    for i in range(450):
        rows = cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
        mx.eval([x.sum() for x in rows])
        del rows
        active[i] = mx.get_active_memory(), cache.nbytes
    if method != "none":
        assert cache.nbytes == active[100][1], "bytes held do not change"
        assert active[449][0] <= active[100][0] + 4096
    grown = active[449][0] - active[0][0]
    assert grown <= cache.nbytes + 4096


def test_the_count_of_nan_rows_keeps_no_old_ranks_alive():
    cache, (keys, values) = make_cache("knorm", 4096, 4, 16), stream(4120)
    cache.update_and_fetch(keys[:, :, :4090], values[:, :, :4090])
    mx.eval(cache.state)
    before = mx.get_active_memory() - cache.nbytes
    for i in range(4090, 4120):
        rows = cache.update_and_fetch(keys[:, :, i : i + 1], values[:, :, i : i + 1])
        mx.eval([x.sum() for x in rows])
        del rows
    assert mx.get_active_memory() - cache.nbytes <= before + 8192
