// One fiber per GPU lane, and what barriers and simdgroup functions need of them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

constexpr unsigned MAX_LANES = 1024, SIMD = 32, MAX_BUFFERS = 64;

struct U3 {
  unsigned x, y, z;
};

// Classes of memory that a barrier orders, as in metal::mem_flags.
enum : unsigned { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };

enum class State : uint8_t { ready, at_barrier, in_simd, returned };

struct Lane {
  void* sp;
  char *stack_lo, *stack_hi;
  uint16_t index;  // thread_index_in_threadgroup
  State state;
  U3 position;        // thread_position_in_threadgroup
  int site;           // source line of the collective it waits in
  unsigned flags;     // of the barrier it waits at
  bool simd_barrier;  // waits in simdgroup_barrier, not in a simd_* function
};

struct SimdGroup {
  alignas(16) unsigned char slot[2][SIMD][16];  // what the lanes hand to each other, by parity
  unsigned arrived;       // lanes waiting in the current collective, one bit each
  unsigned active;        // lanes that have not returned
  unsigned took_part[2];  // lanes of the last collective, by parity
  int parity;
  uint32_t epoch[2];  // barriers passed that order [0] device, [1] threadgroup memory
};

struct Context {
  Lane* lane;  // running now; null outside kernels
  void* buffer[MAX_BUFFERS];
  U3 grid, group_size, uniform_size, group, groups;
  unsigned lanes, simdgroups;
  uint32_t group_index;
  uint32_t epoch[2];  // as in SimdGroup, for threadgroup barriers
  uint64_t random;
};

extern Context cx;
extern Lane lanes[MAX_LANES];
extern SimdGroup simdgroups[MAX_LANES / SIMD];

inline SimdGroup& simdgroup_of(const Lane* lane) { return simdgroups[lane->index / SIMD]; }

inline uint64_t random_bits() {
  cx.random ^= cx.random << 13;
  cx.random ^= cx.random >> 7;
  return cx.random ^= cx.random << 17;
}

// Called by kernels.
void threadgroup_barrier(unsigned flags, int site);
void simd_collective(int site, bool barrier, unsigned flags);  // after writing one's own slot
void* threadgroup_variable(unsigned id, size_t bytes, size_t align, const char* name);
// A read-modify-write may meet another one unordered; a plain atomic load or store may not.
void atomic_access(const void* p, size_t bytes, bool write, bool read_modify_write);

// Between the scheduler and the checker.
struct ThreadgroupVariable {
  size_t offset, bytes;
  const char* name;
};
constexpr unsigned MAX_VARIABLES = 64;
constexpr size_t ARENA = 1 << 20, STACK = 128 * 1024;
extern ThreadgroupVariable variables[MAX_VARIABLES];
extern unsigned n_variables;
extern unsigned char arena[ARENA];
extern char* stacks;

void note(const char* format, ...);               // adds one line to the report
[[noreturn]] void fail(const char* format, ...);  // the same, and ends the run
void forget_shadow(const ThreadgroupVariable& variable);

}  // namespace emu

// What Python passes and gets.
struct EmuBuffer {
  void* ptr;
  uint64_t bytes;
  int kind;  // 0 input, 1 output, 2 output that was initialised
  const char* name;
};
struct EmuStats {
  uint64_t loads, stores;                // how many
  uint64_t read, written;                // bytes asked for by them
  uint64_t unique_read, unique_written;  // bytes touched
  uint64_t unwritten;                    // bytes of an output that nothing wrote
};
struct EmuOptions {
  int order;  // of lanes: 0 forward, 1 reverse, 2 random
  uint64_t seed;
  int check, reverse_groups;
};

namespace emu {
void start_checking(bool on, const EmuBuffer* buffers, int n, void (*kernel)());
void finish_checking(EmuStats* stats);
}  // namespace emu
