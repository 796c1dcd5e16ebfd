"""Edits of the kernels that change no result, and why. Read by mutate_kernels.py."""

_SAME_IN_ALL_LANES = "after the butterfly every lane holds the value, so any one may write it"
_COUNTS = "a step has at most 1024 rows, so its counts need 11 bits"
_FIRST_THREAD = "thread 0 then copies the whole row and the others nothing: the same bytes, slower"

# (file, line, edit): reason
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "score.metal",
        "if (first >= N) return;  // the grid may be rounded up",
        ">= -> >",
    ): "a simdgroup just behind the last row reads that row again and writes nothing",
    (
        "score.metal",
        "if (lane == 0 && first + r < N) scores[ulong(bh) * N + first + r] = sum;",
        "lane == 0 -> lane == 7",
    ): _SAME_IN_ALL_LANES,
    (
        "replace.metal",
        "if (lane == 0) new_ranks[bh] = new_rank;",
        "lane == 0 -> lane == 7",
    ): _SAME_IN_ALL_LANES,
    (
        "worst.metal",
        "if (lane == 0) {",
        "lane == 0 -> lane == 7",
    ): _SAME_IN_ALL_LANES,
    (
        "worst.metal",
        "rank = qf_lift(new_rank, now[0], now[1], now[2]);",
        "now[1] -> now[0]",
    ): "a new row among the sinks has the highest position of protected rows: it goes either way",
    (
        "select.metal",
        "id < 256 ? atomic_load_explicit(&counts[digit], memory_order_relaxed) : 0u;",
        "< -> <=",
    ): "thread 256 counts digit 0 again, behind all others, where no row is wanted any more",
    (
        "select.metal",
        "const uint digit = 255u - min(id, 255u);",
        "min(id, 255u) -> id",
    ): "threads from 256 on have a count of 0 and never use their digit",
    (
        "select.metal",
        "for (uint start = 0; start < S; start += threads) {",
        "< -> <=",
    ): "one more step, without rows",
    (
        "select.metal",
        "const uint equal_before = equal + (before & 0xFFFFu);",
        "0xFFFFu -> 0xFFFu",
    ): _COUNTS,
    (
        "select.metal",
        "equal += all & 0xFFFFu;",
        "0xFFFFu -> 0xFFFu",
    ): _COUNTS,
    (
        "compact.metal",
        "for (uint e = i; e < D && e < i + 4; ++e)",
        "+ -> -",
    ): _FIRST_THREAD,
    (
        "compact.metal",
        "for (uint e = i; e < DV && e < i + 4; ++e)",
        "+ -> -",
    ): _FIRST_THREAD,
    (
        "common.metal",
        "static constant constexpr int QF_PROTECTED = 0x7FFFFFFF;",
        "0x7FFFFFFF -> 0x7FFFFFFE",
    ): "no score has a rank above that of +inf, 0x7F800000, so anything higher serves",
    (
        "common.metal",
        "return rank < other_rank || (rank == other_rank && position > other_position);",
        "> -> >=",
    ): "no two rows have one position; a row that replaces itself changes nothing",
}
