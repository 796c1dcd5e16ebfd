// kept[b,h,:] = the indices of the `budget` best rows, ascending; what room is left behind them
// repeats the last one. Rows stand in temporal order: among equals the lower index stays.
//
// One threadgroup per head. A radix select finds the rank at the edge, eight bits at a time; then
// rows above it stay, and rows equal to it from the left while room is left.
//
// how = (sinks, limit, budget, slots of `kept`)
// grid (B * H * threads, 1, 1), threadgroup (threads, 1, 1), threads = 256, 512 or 1024
threadgroup atomic_uint counts[256];  // rows by digit
threadgroup uint sums[2][32];         // of the simdgroups
threadgroup uint found[2];            // the digit at the edge, rows still wanted below it

const uint id = thread_index_in_threadgroup;
const uint threads = threads_per_threadgroup.x;
const uint lane = thread_index_in_simdgroup;
const uint group = simdgroup_index_in_threadgroup;
const uint bh = threadgroup_position_in_grid.x;
const uint H = uint(ranks_shape[1]);
const uint S = uint(ranks_shape[2]);
const int sinks = how[0];
const int limit = how[1];
const uint budget = uint(how[2]);
const uint slots = uint(how[3]);
auto rank = ranks + (bh / H) * ranks_strides[0] + (bh % H) * ranks_strides[1];
auto position = positions + (bh / H) * positions_strides[0] + (bh % H) * positions_strides[1];

uint edge = 0;         // the digits of the key at the edge that are known
uint known = 0;        // their bits
uint wanted = budget;  // rows to take among those that agree with `edge` so far
for (uint shift = 32; shift > 0;) {
  shift -= 8;
  if (id < 256) atomic_store_explicit(&counts[id], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint n = id; n < S; n += threads) {
    const uint key = qf_key(rank[n * ranks_strides[2]], position[n * positions_strides[2]],
                            sinks, limit);
    if ((key & known) == edge)
      atomic_fetch_add_explicit(&counts[(key >> shift) & 255u], 1u, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  // Thread 0 has the highest digit, so that `above` counts rows with a higher one.
  const uint digit = 255u - min(id, 255u);
  const uint count =
      id < 256 ? atomic_load_explicit(&counts[digit], memory_order_relaxed) : 0u;
  uint above = simd_prefix_exclusive_sum(count);
  if (lane == 31) sums[0][group] = above + count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint g = 0; g < group; ++g) above += sums[0][g];
  if (above < wanted && wanted <= above + count) {
    found[0] = digit;
    found[1] = wanted - above;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  edge |= found[0] << shift;
  wanted = found[1];
  known |= 255u << shift;
}

auto out = kept + ulong(bh) * slots;
uint above = 0;  // rows above the edge among those before `start`
uint equal = 0;  // rows at the edge among those before `start`
uint turn = 0;   // alternates, so that one barrier a step is enough
for (uint start = 0; start < S; start += threads) {
  const uint n = start + id;
  uint key = 0;  // behind the last row: the lowest, and after all others, so it never stays
  if (n < S)
    key = qf_key(rank[n * ranks_strides[2]], position[n * positions_strides[2]], sinks, limit);
  const bool is_above = key > edge;
  const bool is_equal = key == edge;
  // Both counts in one number: a step has at most 1024 rows, so the halves do not meet.
  const uint mine = (is_above ? 0x10000u : 0u) + (is_equal ? 1u : 0u);
  uint before = simd_prefix_exclusive_sum(mine);
  if (lane == 31) sums[turn][group] = before + mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint all = 0;
  for (uint g = 0; g < simdgroups_per_threadgroup; ++g) {
    const uint sum = sums[turn][g];
    if (g < group) before += sum;
    all += sum;
  }
  const uint equal_before = equal + (before & 0xFFFFu);
  if (is_above || (is_equal && equal_before < wanted)) {
    const uint at = above + (before >> 16) + min(equal_before, wanted);
    out[at] = int(n);
    if (at + 1 == budget)
      for (uint j = budget; j < slots; ++j) out[j] = int(n);
  }
  above += all >> 16;
  equal += all & 0xFFFFu;
  turn ^= 1u;
}
