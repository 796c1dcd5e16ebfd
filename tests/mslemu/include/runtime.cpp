// The scheduler: lanes are fibers that switch at barriers and simd functions only.
//
// A threadgroup runs at a time. Every collective waits for all lanes concerned, and lanes that
// wait at different places are reported as divergence. Compiled once, never instrumented.
#include "runtime.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emu {

Context cx;
Lane lanes[MAX_LANES];
SimdGroup simdgroups[MAX_LANES / SIMD];

// ------------------------------------------------------------------ the report

static char report[65536];
static size_t report_length;
static int n_notes;
static bool aborted;

static void add_note(const char* format, va_list args) {
  ++n_notes;
  if (report_length > sizeof report - 2048) return;
  report_length += vsnprintf(report + report_length, 1900, format, args);
  report[report_length++] = '\n';
  report[report_length] = 0;
}

void note(const char* format, ...) {
  va_list args;
  va_start(args, format);
  add_note(format, args);
  va_end(args);
}

// ------------------------------------------------------------------ fibers

extern "C" void emu_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "emu_switch is written for x86-64 and aarch64 only"
#endif

char* stacks;
static void* main_sp;
static void (*kernel)();

static void lane_main();

static void allocate_stacks() {
  if (stacks) return;
  stacks = (char*)mmap(nullptr, STACK * MAX_LANES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (unsigned i = 0; i < MAX_LANES; ++i) mprotect(stacks + i * STACK, 4096, PROT_NONE);
}

static void make_fiber(unsigned i) {
  Lane& lane = lanes[i];
  lane.index = i;
  lane.stack_lo = stacks + i * STACK + 4096;
  lane.stack_hi = stacks + (i + 1) * STACK;
#if defined(__x86_64__)
  void** s = (void**)(lane.stack_hi - 64);
  *--s = nullptr;  // return address of lane_main, which never returns; keeps the alignment
  *--s = (void*)lane_main;
  for (int k = 0; k < 6; ++k) *--s = nullptr;
  lane.sp = s;
#else
  char* s = lane.stack_hi - 64 - 160;
  memset(s, 0, 160);
  ((void**)s)[11] = (void*)lane_main;  // x30
  lane.sp = s;
#endif
}

// ------------------------------------------------------------------ scheduling

constexpr unsigned QUEUE = MAX_LANES * 2;
static uint16_t queue[QUEUE];
static unsigned queue_head, queue_length, n_returned, n_at_barrier;
static int order;

static void push(unsigned lane) { queue[(queue_head + queue_length++) % QUEUE] = lane; }

static Lane* pop() {
  Lane* lane = &lanes[queue[queue_head]];
  queue_head = (queue_head + 1) % QUEUE;
  --queue_length;
  return lane;
}

static void make_ready(uint16_t* ids, unsigned n) {
  if (order == 2)
    for (unsigned i = n; i > 1; --i) {
      unsigned j = random_bits() % i;
      uint16_t x = ids[i - 1];
      ids[i - 1] = ids[j];
      ids[j] = x;
    }
  for (unsigned i = 0; i < n; ++i) push(order == 1 ? ids[n - 1 - i] : ids[i]);
}

static void describe_lanes() {
  bool seen[MAX_LANES] = {};
  for (unsigned i = 0; i < cx.lanes; ++i) {
    if (seen[i]) continue;
    Lane& a = lanes[i];
    unsigned count = 0;
    for (unsigned j = i; j < cx.lanes; ++j) {
      Lane& b = lanes[j];
      if (seen[j] || b.state != a.state || b.site != a.site) continue;
      if (b.state == State::in_simd && b.simd_barrier != a.simd_barrier) continue;
      seen[j] = true;
      ++count;
    }
    const char* what = a.state == State::returned     ? "returned"
                       : a.state == State::at_barrier ? "waiting at threadgroup_barrier"
                       : a.simd_barrier               ? "waiting at simdgroup_barrier"
                                                      : "waiting in a simd_* function";
    if (a.state == State::returned)
      note("    %u lane(s) from lane %u: %s", count, i, what);
    else
      note("    %u lane(s) from lane %u: %s at line %d", count, i, what, a.site);
  }
}

static void divergence(const char* what) {
  note("DIVERGENCE in threadgroup (%u,%u,%u): %s", cx.group.x, cx.group.y, cx.group.z, what);
  describe_lanes();
  aborted = true;
}

static void leave() {
  Lane* me = cx.lane;
  cx.lane = nullptr;
  emu_switch(&me->sp, main_sp);
}

void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  add_note(format, args);
  va_end(args);
  aborted = true;
  leave();
  __builtin_unreachable();
}

static void schedule() {
  Lane* me = cx.lane;
  if (!queue_length && !aborted && n_returned != cx.lanes)
    divergence("not all lanes reach the same barrier or simd function");
  if (!queue_length || aborted) return leave();
  Lane* next = pop();
  next->state = State::ready;
  if (next == me) return;
  cx.lane = next;
  emu_switch(&me->sp, next->sp);
}

static void complete_simd(unsigned g) {
  SimdGroup& group = simdgroups[g];
  uint16_t ids[SIMD];
  unsigned n = 0;
  for (unsigned l = 0; l < SIMD; ++l)
    if (group.arrived >> l & 1) ids[n++] = g * SIMD + l;
  const Lane& first = lanes[ids[0]];
  for (unsigned i = 1; i < n; ++i)
    if (lanes[ids[i]].site != first.site) {
      divergence("lanes of one simdgroup are in different simd functions");
      break;
    }
  if (first.flags & MEM_DEVICE) ++group.epoch[0];
  if (first.flags & MEM_THREADGROUP) ++group.epoch[1];
  group.took_part[group.parity] = group.arrived;
  group.parity ^= 1;
  group.arrived = 0;
  make_ready(ids, n);
}

void simd_collective(int site, bool barrier, unsigned flags) {
  Lane* me = cx.lane;
  SimdGroup& group = simdgroup_of(me);
  me->state = State::in_simd;
  me->site = site;
  me->simd_barrier = barrier;
  me->flags = flags;
  group.arrived |= 1u << me->index % SIMD;
  if (group.arrived == group.active) complete_simd(me->index / SIMD);
  schedule();
}

void threadgroup_barrier(unsigned flags, int site) {
  Lane* me = cx.lane;
  me->state = State::at_barrier;
  me->site = site;
  me->flags = flags;
  if (++n_at_barrier == cx.lanes) {
    n_at_barrier = 0;
    uint16_t ids[MAX_LANES];
    for (unsigned i = 0; i < cx.lanes; ++i) ids[i] = i;
    for (unsigned i = 1; i < cx.lanes; ++i)
      if (lanes[i].site != lanes[0].site || lanes[i].flags != lanes[0].flags) {
        divergence("lanes wait at different threadgroup_barrier calls");
        break;
      }
    if (flags & MEM_DEVICE) ++cx.epoch[0];
    if (flags & MEM_THREADGROUP) ++cx.epoch[1];
    make_ready(ids, cx.lanes);
  }
  schedule();
}

static void lane_main() {
  for (;;) {
    kernel();
    Lane* me = cx.lane;
    me->state = State::returned;
    ++n_returned;
    SimdGroup& group = simdgroup_of(me);
    group.active &= ~(1u << me->index % SIMD);
    // The others were only waiting for this one.
    if (group.arrived && group.arrived == group.active) complete_simd(me->index / SIMD);
    schedule();
  }
}

// ------------------------------------------------------------------ threadgroup memory

ThreadgroupVariable variables[MAX_VARIABLES];
unsigned n_variables;
alignas(4096) unsigned char arena[ARENA];
static size_t arena_used, threadgroup_bytes;

// Threadgroup memory holds anything when a group starts.
static void poison(const ThreadgroupVariable& v) {
  for (size_t k = 0; k < v.bytes; ++k) arena[v.offset + k] = random_bits() >> 11;
  forget_shadow(v);
}

void* threadgroup_variable(unsigned id, size_t bytes, size_t align, const char* name) {
  constexpr size_t RED_ZONE = 256;
  if (id >= MAX_VARIABLES) fail("too many threadgroup variables");
  ThreadgroupVariable& v = variables[id];
  if (!v.bytes) {
    size_t offset = (arena_used + RED_ZONE + align - 1) / align * align;
    if (offset + bytes > ARENA) fail("threadgroup memory over 1 MiB");
    v = {offset, bytes, name};
    arena_used = offset + bytes;
    threadgroup_bytes += (bytes + 15) / 16 * 16;
    if (id >= n_variables) n_variables = id + 1;
    poison(v);
  }
  return arena + v.offset;
}

// ------------------------------------------------------------------ one launch

static void start_group(uint64_t index) {
  const U3 n = cx.groups;
  cx.group_index = index;
  cx.group = {unsigned(index % n.x), unsigned(index / n.x % n.y), unsigned(index / n.x / n.y)};
  auto left = [](unsigned grid, unsigned group, unsigned size) {
    unsigned rest = grid - group * size;
    return rest < size ? rest : size;
  };
  const U3 size = {left(cx.grid.x, cx.group.x, cx.uniform_size.x),
                   left(cx.grid.y, cx.group.y, cx.uniform_size.y),
                   left(cx.grid.z, cx.group.z, cx.uniform_size.z)};
  cx.group_size = size;
  cx.lanes = size.x * size.y * size.z;
  cx.simdgroups = (cx.lanes + SIMD - 1) / SIMD;
  n_returned = n_at_barrier = queue_head = queue_length = 0;
  ++cx.epoch[0];
  ++cx.epoch[1];
  for (unsigned i = 0; i < n_variables; ++i) poison(variables[i]);
  uint16_t ids[MAX_LANES];
  for (unsigned i = 0; i < cx.lanes; ++i) {
    lanes[i].state = State::ready;
    lanes[i].position = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    ids[i] = i;
  }
  for (unsigned g = 0; g < cx.simdgroups; ++g) {
    SimdGroup& group = simdgroups[g];
    unsigned rest = cx.lanes - g * SIMD;
    group.arrived = 0;
    group.parity = 0;
    group.active = rest >= SIMD ? ~0u : (1u << rest) - 1;
    group.epoch[0] = group.epoch[1] = 0;
  }
  make_ready(ids, cx.lanes);
  cx.lane = pop();
  emu_switch(&main_sp, cx.lane->sp);
}

}  // namespace emu

extern "C" {

uint64_t emu_threadgroup_bytes() { return emu::threadgroup_bytes; }

const char* emu_report() { return emu::report; }

// Returns the number of faults found.
int emu_run(void (*kernel)(), const EmuBuffer* buffers, int n_buffers, const unsigned* grid,
            const unsigned* group_size, const EmuOptions* options, EmuStats* stats) {
  using namespace emu;
  emu::kernel = kernel;
  memset(variables, 0, sizeof variables);
  n_variables = 0;
  arena_used = threadgroup_bytes = 0;
  report_length = n_notes = 0;
  report[0] = 0;
  aborted = false;
  order = options->order;
  cx.random = options->seed * 0x9E3779B97F4A7C15ull + 0x1234567ull;
  allocate_stacks();
  start_checking(options->check, buffers, n_buffers, kernel);
  for (int i = 0; i < n_buffers; ++i) cx.buffer[i] = buffers[i].ptr;
  unsigned size[3], groups[3];
  for (int d = 0; d < 3; ++d) {
    size[d] = group_size[d] < grid[d] ? group_size[d] : grid[d];
    groups[d] = (grid[d] + size[d] - 1) / size[d];
  }
  cx.grid = {grid[0], grid[1], grid[2]};
  cx.uniform_size = {size[0], size[1], size[2]};
  cx.groups = {groups[0], groups[1], groups[2]};
  for (unsigned i = 0; i < size[0] * size[1] * size[2]; ++i) make_fiber(i);
  const uint64_t total = uint64_t(groups[0]) * groups[1] * groups[2];
  for (uint64_t i = 0; i < total && !aborted; ++i)
    start_group(options->reverse_groups ? total - 1 - i : i);
  cx.lane = nullptr;
  finish_checking(stats);
  return n_notes;
}
}
