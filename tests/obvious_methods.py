"""The methods that watch attention, in numpy, as one would write them with memory to burn.

Every query, key and value ever seen is kept in float64, and the whole matrix of probabilities;
scores are worked out from scratch after every call. It shares no code with `qfilters`.
"""

import numpy as np
from obvious import stay


class History:
    """One layer: what its attention saw, which rows it held, and what a method keeps of them.

    Args:
        limits: budget (None: nothing is evicted yet), sinks, recent.
        base: of the rotation, half-split.
        future: `[H_kv, N]`, what the oracle knows.
    """

    def __init__(self, method, limits, base=10000.0, future=None):
        self.method, self.limits, self.base, self.future = method, limits, base, future
        self.queries = self.keys = self.values = self.weights = None
        self.scores = None  # of methods that score a row once, or now and then
        self.due = 0

    @property
    def seen(self):
        return self.keys.shape[2]

    def call(self, queries, keys, values, scale, kept, learned=None):
        """One call: queries `[B, H, T, D]`; keys, values: the new rows `[B, H_kv, T, D]`.

        Args:
            kept: `[B, H_kv, K]` positions held before.
            learned: `[H]` logits without a key that take part in the softmax.
        """
        new = keys.shape[2]
        self.scale, self.single = scale, new == 1 and self.keys is not None
        self.queries = _append(self.queries, queries)
        self.keys, self.values = _append(self.keys, keys), _append(self.values, values)
        n, (batch, heads) = self.seen, queries.shape[:2]
        self.held = np.zeros((batch, keys.shape[1], n), dtype=bool)
        np.put_along_axis(self.held, kept, True, axis=-1)
        self.held[..., n - new :] = True
        self.group = heads // keys.shape[1]
        all_keys = np.repeat(self.keys, self.group, axis=1)
        logits = np.einsum("bhtd,bhjd->bhtj", queries.astype(np.float64), all_keys) * scale
        causal = np.arange(n) <= np.arange(n - new, n)[:, None]
        allowed = np.repeat(self.held, self.group, axis=1)[:, :, None] & causal
        powers = np.where(allowed, np.exp(logits - logits.max(-1, keepdims=True)), 0.0)
        total = powers.sum(-1, keepdims=True)
        if learned is not None:
            total = total + np.exp(learned[:, None, None] - logits.max(-1, keepdims=True))
        grown = np.zeros((batch, heads, n, n))
        if self.weights is not None:
            grown[:, :, : n - new, : n - new] = self.weights
        grown[:, :, n - new :] = powers / total
        self.weights = grown
        fresh = np.zeros((*keys.shape[:2], new))
        self.scores = fresh if self.scores is None else np.concatenate([self.scores, fresh], -1)

    def choose(self):
        """Scores `[B, H_kv, n]` (-inf: not held) and the positions that stay, `[B, H_kv, K]`."""
        scores = getattr(self, f"score_{self.method.name}")()
        scores = np.where(self.held, scores, -np.inf)
        return scores, stay(scores, *self.limits)

    def per_kv_head(self, x):
        """`[B, H, ...]` -> `[B, H_kv, G, ...]`."""
        return x.reshape(x.shape[0], -1, self.group, *x.shape[2:])

    def score_h2o(self):
        return self.per_kv_head(self.weights).sum(axis=(2, 3))

    def score_tova(self):
        last = self.weights[:, :, -1].mean(axis=1, keepdims=True)
        return np.broadcast_to(last, self.keys.shape[:3])

    def score_snapkv(self):
        w, c, n = self.method.window, self.method.pooling, self.seen
        rows = self.per_kv_head(self.weights[:, :, -w:]).sum(axis=3).mean(axis=2) / w
        rows[..., max(n - w, 0) :] = 0
        pooled = np.zeros_like(rows)
        for b, h in np.ndindex(rows.shape[:2]):
            held = np.flatnonzero(self.held[b, h])
            near = np.pad(rows[b, h, held], c // 2)
            pooled[b, h, held] = [near[i : i + c].sum() / c for i in range(len(held))]
        return pooled

    score_pyramidkv = score_snapkv

    def score_chunkkv(self):
        pooled, n = self.score_snapkv(), self.seen
        chunk = np.arange(n) // self.method.chunk
        before = self.held & (np.arange(n) < n - self.method.window)
        out = np.zeros_like(pooled)
        for b in range(len(out)):
            for which in np.unique(chunk):
                counted = before[b] & (chunk == which)
                if counted.any():
                    out[b, :, chunk == which] = pooled[b][counted].mean()
        return out

    def score_keydiff(self):
        unit = self.keys / np.linalg.norm(self.keys, axis=-1, keepdims=True)
        anchor = unit.mean(axis=2, keepdims=True)
        cosine = (unit * anchor).sum(-1) / np.linalg.norm(anchor, axis=-1)
        new = self.fresh_rows()
        self.scores[..., new] = -cosine[..., new]
        return self.scores

    def score_oracle(self):
        return np.broadcast_to(self.future[:, : self.seen], self.keys.shape[:3])

    def fresh_rows(self):
        """Rows that came with the last call."""
        done = getattr(self, "scored", 0)
        self.scored = self.seen
        return slice(done, self.seen)

    def score_expected_attention(self):
        m, n = self.method, self.seen
        new = self.fresh_rows()
        if self.single and n < self.due:
            z = self.logits(self.keys[:, :, None, new])
            chance = np.exp(z - self.norm).mean(axis=2)
            self.scores[..., new] = self.valued(chance, new)
            return self.scores
        self.due = n + max(1, n - m.skip)
        size = self.keys.shape[-1]
        plain = turned(self.queries, -np.arange(n), self.base)[:, :, m.skip :]
        mean = plain.mean(axis=2) if n > m.skip else np.zeros_like(self.queries[:, :, 0])
        off = plain - mean[:, :, None]
        spread = np.einsum("bhti,bhtj->bhij", off, off) / max(n - m.skip, 1)
        ahead = np.arange(n, n + m.n_future)
        # Row i of `turn` is the mean rotation of basis vector i.
        turn = np.stack(
            [turned(np.tile(e, (len(ahead), 1)), ahead, self.base).mean(0) for e in np.eye(size)]
        )
        self.ahead = self.per_kv_head(mean @ turn)
        self.spread = self.per_kv_head(turn.T @ spread @ turn) * m.covariance
        z = self.logits(self.keys[:, :, None])
        counted = self.held & (np.arange(n) >= m.skip)
        powers = np.where(counted[:, :, None], np.exp(z), 0)
        with np.errstate(divide="ignore"):
            self.norm = np.log(powers.sum(-1, keepdims=True))
            self.scores = self.valued(np.exp(z - self.norm).mean(axis=2), slice(None))
        self.scores[..., : m.skip] = np.inf
        return self.scores

    def logits(self, keys):
        """keys `[B, H_kv, 1, S, D]` -> `[B, H_kv, G, S]`."""
        linear = (keys * self.ahead[..., None, :]).sum(-1) * self.scale
        return linear + ((keys @ self.spread) * keys).sum(-1) * self.scale**2 / 2

    def valued(self, chance, rows):
        lengths = np.linalg.norm(self.values[:, :, rows], axis=-1)
        return (chance + self.method.epsilon) * (lengths if self.method.value_norm else 1)


def _append(old, new):
    new = new.astype(np.float64)
    return new if old is None else np.concatenate([old, new], axis=2)


def turned(x, positions, base):
    """Rows `[..., T, D]` rotated at `positions`, pairs (i, i + D / 2)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def assert_same_rows(actual, ideal, scores, tolerance=1e-4):
    """Kept positions `[B, H, K]` agree, up to near-ties.

    Rows that were swapped must have scores that differ by less than `tolerance` of the head's mean
    |score|.
    """
    assert actual.shape == ideal.shape
    for b, h in np.ndindex(actual.shape[:2]):
        extra = np.setdiff1d(actual[b, h], ideal[b, h])
        missing = np.setdiff1d(ideal[b, h], actual[b, h])
        if len(extra):
            s = scores[b, h]
            finite = s[np.isfinite(s)]
            gap = np.abs(np.sort(s[extra]) - np.sort(s[missing])).max()
            assert gap < tolerance * np.abs(finite).mean(), (b, h, extra, missing, gap)
