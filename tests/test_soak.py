"""Twenty thousand tokens under a budget: what is held and in use does not grow."""

import mlx.core as mx
import pytest
import tiny
from mlx_lm.generate import generate_step

from qfilters import make_prompt_cache

BUDGET, TOKENS = 64, 20_000


@pytest.mark.slow
@pytest.mark.parametrize("method", ["knorm", "h2o"])
def test_a_soak(method):
    model = tiny.make(num_hidden_layers=1, max_position_embeddings=2 * TOKENS)
    caches = make_prompt_cache(model, method, budget=BUDGET)
    steps = generate_step(mx.array([1, 2, 3]), model, max_tokens=TOKENS, prompt_cache=caches)
    held, used = set(), []
    for i, _ in enumerate(steps, 1):
        if i % 2000 == 0:
            mx.synchronize()
            held.add((caches[0].state[0][0].shape[2], caches[0].nbytes))
            used.append(mx.get_active_memory())
    assert caches[0].tokens_seen >= TOKENS
    [(rows, _)] = held
    assert rows == BUDGET + 1
    assert max(used[1:]) <= used[0] + 65536, used
