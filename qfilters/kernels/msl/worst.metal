// The row that goes next, by a threadgroup per head: the worst of all rows in their slots and of
// the new one, which has `new_rank` and position now[0] and will stand in slot `freed`.
threadgroup int ranks_found[32];
threadgroup int positions_found[32];
threadgroup int slots_found[32];

int rank = QF_PROTECTED;
int position = -1;  // below every position: any row is worse than none
int at = 0;
if (group == 0) {
  rank = qf_lift(new_rank, now[0], now[1], now[2]);
  position = now[0];
  at = freed;
}
for (uint n = id; n < S; n += threads_per_threadgroup.x) {
  const int p = positions[b * positions_strides[0] + h * positions_strides[1] +
                          n * positions_strides[2]];
  const int r = ranks[b * ranks_strides[0] + h * ranks_strides[1] + n * ranks_strides[2]];
  const int lifted = qf_lift(r, p, now[1], now[2]);
  if (int(n) != freed && qf_worse(lifted, p, rank, position)) {
    rank = lifted;
    position = p;
    at = int(n);
  }
}
for (ushort mask = 16; mask > 0; mask >>= 1) {
  const int r = simd_shuffle_xor(rank, mask);
  const int p = simd_shuffle_xor(position, mask);
  const int s = simd_shuffle_xor(at, mask);
  if (qf_worse(r, p, rank, position)) {
    rank = r;
    position = p;
    at = s;
  }
}
if (lane == 0) {
  ranks_found[group] = rank;
  positions_found[group] = position;
  slots_found[group] = at;
}
threadgroup_barrier(mem_flags::mem_threadgroup);
if (id == 0) {
  for (uint g = 1; g < simdgroups_per_threadgroup; ++g)
    if (qf_worse(ranks_found[g], positions_found[g], rank, position)) {
      rank = ranks_found[g];
      position = positions_found[g];
      at = slots_found[g];
    }
  next[bh] = at;
}
