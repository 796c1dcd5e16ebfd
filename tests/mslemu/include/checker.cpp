// What check mode reports: races, bounds, uninitialised reads, writes to inputs, bytes moved.
//
// Kernels are compiled with -fsanitize=thread and the undefined-behaviour checks but linked with
// neither runtime: the compiler's calls land here. A race is an access that no barrier orders
// after another lane's; per byte the last writer and the merged readers are kept, so that a race
// can be missed but none is invented. Relaxed atomics give atomicity, not order: only two
// read-modify-writes may meet unordered.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace emu {

static bool on;

// ------------------------------------------------------------------ shadow of one byte

struct Access {
  uint32_t who, epoch, simd_epoch;  // who = group << 10 | lane
};

struct Shadow {
  Access write, read;  // read: the last of `readers`
  bool written, write_atomic, was_read, reads_atomic;
  // Readers since the last write, beyond `read`.
  bool more_in_simdgroup, more_in_group, more_groups;
};

static uint32_t group_of(uint32_t who) { return who >> 10; }
static uint32_t simdgroup_of(uint32_t who) { return who / SIMD; }  // of all groups: 1024 % 32 == 0

static bool ordered(const Access& before, const Access& now) {
  if (before.who == now.who) return true;
  if (group_of(before.who) != group_of(now.who)) return false;
  if (before.epoch < now.epoch) return true;
  return simdgroup_of(before.who) == simdgroup_of(now.who) && before.simd_epoch < now.simd_epoch;
}

// Whether all reads since the last write are ordered before `now`.
static bool reads_ordered(const Shadow& b, const Access& now) {
  if (b.more_groups || group_of(b.read.who) != group_of(now.who)) return false;
  if (b.read.epoch < now.epoch) return true;
  if (b.more_in_group) return false;
  if (b.more_in_simdgroup)
    return simdgroup_of(b.read.who) == simdgroup_of(now.who) && b.read.simd_epoch < now.simd_epoch;
  return ordered(b.read, now);
}

static void remember_read(Shadow& b, const Access& now, bool atomic) {
  if (b.was_read && b.read.who != now.who) {
    if (group_of(b.read.who) != group_of(now.who))
      b.more_groups = true;
    else if (b.read.epoch < now.epoch)
      b.more_in_simdgroup = b.more_in_group = false;
    else if (simdgroup_of(b.read.who) != simdgroup_of(now.who))
      b.more_in_simdgroup = b.more_in_group = true;
    else if (b.read.simd_epoch >= now.simd_epoch)
      b.more_in_simdgroup = true;
  }
  b.reads_atomic = atomic && (b.reads_atomic || !b.was_read);
  b.was_read = true;
  b.read = now;
}

static void remember_write(Shadow& b, const Access& now, bool atomic) {
  // One's own plain write of this epoch stays visible behind a later atomic one.
  const bool hides_plain = b.written && !b.write_atomic && b.write.who == now.who &&
                           b.write.epoch == now.epoch && b.write.simd_epoch == now.simd_epoch;
  b = Shadow{};
  b.write = now;
  b.written = true;
  b.write_atomic = atomic && !hides_plain;
}

// ------------------------------------------------------------------ reporting

static uint64_t reported[64];
static unsigned n_reported;

// Whether this kind of fault was reported for this place in the code before.
static bool known(const void* place, int kind) {
  const uint64_t key = (uint64_t)(uintptr_t)place << 4 | kind;
  for (unsigned i = 0; i < n_reported; ++i)
    if (reported[i] == key) return true;
  if (n_reported < 64) reported[n_reported++] = key;
  return false;
}

// "@0x<offset in the library>", which Python turns into a line of the kernel.
static const char* place(const void* pc, char* out, size_t n) {
  Dl_info info;
  if (pc && dladdr((void*)pc, &info))
    snprintf(out, n, "@0x%lx", (unsigned long)((char*)pc - (char*)info.dli_fbase) - 1);
  else
    snprintf(out, n, "@?");
  return out;
}

struct Where {
  const char* name;
  size_t offset, bytes;
  bool write;
  const void* pc;
};

static void report(const char* what, const Where& w, const Access* other = nullptr) {
  char code[64], by[64] = "";
  if (other)
    snprintf(by, sizeof by, ", other lane %u of group %u", other->who & 1023, other->who >> 10);
  note("%s: %s of %s[byte %zu..%zu) by lane %u of group %u%s  %s", what, w.write ? "write" : "read",
       w.name, w.offset, w.offset + w.bytes, (unsigned)cx.lane->index, cx.group_index, by,
       place(w.pc, code, sizeof code));
}

enum { UNINITIALISED, BAD_WRITE_ORDER, BAD_READ_ORDER, CONST_WRITE, UNDEFINED };

// memory: 0 device, 1 threadgroup.
static void check_bytes(Shadow* shadow, const Where& w, bool atomic, int memory, bool must_be_set) {
  const Lane* me = cx.lane;
  const Access now = {cx.group_index << 10 | me->index, cx.epoch[memory],
                      simdgroups[me->index / SIMD].epoch[memory]};
  for (size_t i = 0; i < w.bytes; ++i) {
    Shadow& b = shadow[i];
    if (!w.write && must_be_set && !b.written) {
      if (!known(w.pc, UNINITIALISED)) report("UNINITIALISED", w);
      must_be_set = false;
    }
    if (b.written && !(atomic && b.write_atomic) && !ordered(b.write, now) &&
        !known(w.pc, BAD_WRITE_ORDER))
      report(w.write ? "RACE (write after write)" : "RACE (read after write)", w, &b.write);
    if (!w.write) {
      remember_read(b, now, atomic);
      continue;
    }
    if (b.was_read && !(atomic && b.reads_atomic) && !reads_ordered(b, now) &&
        !known(w.pc, BAD_READ_ORDER))
      report("RACE (write after read)", w, &b.read);
    remember_write(b, now, atomic);
  }
}

// ------------------------------------------------------------------ regions of memory

struct Region {
  uintptr_t lo, hi;
  int kind;  // of EmuBuffer
  const char* name;
  Shadow* shadow;
  uint8_t* touched;  // bit 0 read, bit 1 written
  uint64_t loads, stores, read, written;
};

static Region regions[MAX_BUFFERS];
static unsigned n_regions;
static Shadow* arena_shadow;

static struct {
  uintptr_t lo, hi;
} libraries[32];  // data of the kernel's own library: constants and the like
static unsigned n_libraries;

static int add_library(struct dl_phdr_info* info, size_t, void* symbol) {
  Dl_info found;
  dladdr(symbol, &found);
  if ((uintptr_t)found.dli_fbase != info->dlpi_addr) return 0;
  for (int k = 0; k < info->dlpi_phnum && n_libraries < 32; ++k)
    if (info->dlpi_phdr[k].p_type == PT_LOAD) {
      const uintptr_t lo = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;
      libraries[n_libraries++] = {lo, lo + info->dlpi_phdr[k].p_memsz};
    }
  return 1;
}

void forget_shadow(const ThreadgroupVariable& v) {
  if (on) memset((void*)(arena_shadow + v.offset), 0, v.bytes * sizeof(Shadow));
}

static void out_of_bounds(uintptr_t a, const Where& w) {
  const Region* nearest = nullptr;
  uintptr_t best = ~(uintptr_t)0;
  for (unsigned i = 0; i < n_regions; ++i) {
    const Region& r = regions[i];
    const uintptr_t distance = a < r.lo ? r.lo - a : a - r.lo;
    if (distance < best) {
      best = distance;
      nearest = &r;
    }
  }
  char code[64];
  fail("OUT OF BOUNDS: %s of %zu bytes at byte %ld of %s (lane %u of group %u)  %s",
       w.write ? "write" : "read", w.bytes, nearest ? (long)(a - nearest->lo) : 0,
       nearest ? nearest->name : "?", (unsigned)cx.lane->index, cx.group_index,
       place(w.pc, code, sizeof code));
}

static bool in_threadgroup_memory(uintptr_t a, Where w, bool atomic) {
  const uintptr_t base = (uintptr_t)arena;
  if (a < base || a >= base + ARENA) return false;
  const size_t offset = a - base;
  for (unsigned i = 0; i < n_variables; ++i) {
    const ThreadgroupVariable& v = variables[i];
    if (!v.bytes || offset < v.offset || offset + w.bytes > v.offset + v.bytes) continue;
    w.name = v.name;
    w.offset = offset - v.offset;
    check_bytes(arena_shadow + offset, w, atomic, 1, true);
    return true;
  }
  w.name = "threadgroup memory";
  w.offset = offset;
  report("OUT OF BOUNDS", w);
  fail("stopped after an out-of-bounds access");
}

static bool in_buffer(uintptr_t a, Where w, bool atomic) {
  for (unsigned i = 0; i < n_regions; ++i) {
    Region& r = regions[i];
    if (a < r.lo || a + w.bytes > r.hi) continue;
    w.name = r.name;
    w.offset = a - r.lo;
    ++(w.write ? r.stores : r.loads);
    (w.write ? r.written : r.read) += w.bytes;
    for (size_t k = 0; k < w.bytes; ++k) r.touched[w.offset + k] |= w.write ? 2 : 1;
    if (r.kind == 0) {
      if (w.write && !known(w.pc, CONST_WRITE)) report("WRITE TO A CONST INPUT", w);
    } else {
      check_bytes(r.shadow + w.offset, w, atomic, 0, r.kind == 1);
    }
    return true;
  }
  return false;
}

static void access(const void* p, size_t bytes, bool write, bool atomic, const void* pc) {
  const Lane* me = cx.lane;
  if (!on || !me) return;
  const uintptr_t a = (uintptr_t)p;
  if (a >= (uintptr_t)me->stack_lo && a + bytes <= (uintptr_t)me->stack_hi) return;
  const Where w = {"?", 0, bytes, write, pc};
  if (in_threadgroup_memory(a, w, atomic) || in_buffer(a, w, atomic)) return;
  for (unsigned i = 0; i < n_libraries; ++i)
    if (a >= libraries[i].lo && a + bytes <= libraries[i].hi) return;
  if (a >= (uintptr_t)stacks && a < (uintptr_t)stacks + STACK * MAX_LANES) {
    report("OTHER LANE'S STACK", w);
    fail("stopped after an access to another lane's memory");
  }
  out_of_bounds(a, w);
}

// The sanitizer misses copies of whole vectors, and this machine may stop at them.
static void aligned_access(const void* p, size_t bytes, bool write, const void* pc) {
  char code[64];
  if (on && cx.lane && (uintptr_t)p % bytes)
    fail("UNDEFINED BEHAVIOUR: misaligned %s of %zu bytes by lane %u of group %u  %s",
         write ? "write" : "read", bytes, (unsigned)cx.lane->index, cx.group_index,
         place(pc, code, sizeof code));
  access(p, bytes, write, false, pc);
}

void atomic_access(const void* p, size_t bytes, bool write, bool read_modify_write) {
  access(p, bytes, write, read_modify_write, __builtin_return_address(0));
}

void start_checking(bool wanted, const EmuBuffer* buffers, int n, void (*kernel)()) {
  on = wanted;
  n_regions = n_libraries = n_reported = 0;
  if (!on) return;
  dl_iterate_phdr(add_library, (void*)&emu::access);
  dl_iterate_phdr(add_library, (void*)kernel);
  for (int i = 0; i < n; ++i) {
    const uintptr_t lo = (uintptr_t)buffers[i].ptr;
    Region& r = regions[n_regions++] = {lo, lo + buffers[i].bytes, buffers[i].kind, buffers[i].name};
    r.touched = (uint8_t*)calloc(buffers[i].bytes + 1, 1);
    if (r.kind) r.shadow = (Shadow*)calloc(buffers[i].bytes + 1, sizeof(Shadow));
  }
  if (!arena_shadow) arena_shadow = (Shadow*)calloc(ARENA, sizeof(Shadow));
}

void finish_checking(EmuStats* stats) {
  for (unsigned i = 0; i < n_regions; ++i) {
    Region& r = regions[i];
    EmuStats& s = stats[i] = {r.loads, r.stores, r.read, r.written, 0, 0, 0};
    for (uintptr_t k = 0; k < r.hi - r.lo; ++k) {
      s.unique_read += r.touched[k] & 1;
      s.unique_written += r.touched[k] >> 1 & 1;
    }
    s.unwritten = r.kind == 1 ? r.hi - r.lo - s.unique_written : 0;
    free(r.touched);
    free(r.shadow);
  }
  n_regions = 0;
}

// The compiler's description of a place with undefined behaviour.
struct UbPlace {
  const char* file;
  uint32_t line, column;
};

static void undefined(const char* what, void* data) {
  if (!on || !cx.lane || known(data, UNDEFINED)) return;
  const UbPlace* at = (const UbPlace*)data;
  const char* file = at->file ? strrchr(at->file, '/') : nullptr;
  note("UNDEFINED BEHAVIOUR: %s at %s:%u (lane %u of group %u)", what, file ? file + 1 : "?",
       at->line, (unsigned)cx.lane->index, cx.group_index);
}

}  // namespace emu

using emu::access;
using emu::aligned_access;
using emu::undefined;
#define PC __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

// The compiler calls the first two where the type promises an address that is a multiple of N.
#define READ_WRITE(N)                                                        \
  void __tsan_read##N(void* p) { aligned_access(p, N, false, PC); }          \
  void __tsan_write##N(void* p) { aligned_access(p, N, true, PC); }          \
  void __tsan_unaligned_read##N(void* p) { access(p, N, false, false, PC); } \
  void __tsan_unaligned_write##N(void* p) { access(p, N, true, false, PC); } \
  void __tsan_volatile_read##N(void* p) { access(p, N, false, false, PC); }  \
  void __tsan_volatile_write##N(void* p) { access(p, N, true, false, PC); }
READ_WRITE(1)
READ_WRITE(2)
READ_WRITE(4)
READ_WRITE(8)
READ_WRITE(16)

void __tsan_read_range(void* p, unsigned long n) { access(p, n, false, false, PC); }
void __tsan_write_range(void* p, unsigned long n) { access(p, n, true, false, PC); }

void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  access(from, n, false, false, PC);
  access(to, n, true, false, PC);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, unsigned long n) {
  access(from, n, false, false, PC);
  access(to, n, true, false, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, unsigned long n) {
  access(to, n, true, false, PC);
  return memset(to, value, n);
}

void __ubsan_handle_type_mismatch_v1(void* at, void*) {
  undefined("misaligned or null pointer for this vector or scalar type", at);
}
void __ubsan_handle_out_of_bounds(void* at, void*) { undefined("array index out of bounds", at); }
void __ubsan_handle_shift_out_of_bounds(void* at, void*, void*) {
  undefined("shift by a negative or too large amount", at);
}
void __ubsan_handle_add_overflow(void* at, void*, void*) { undefined("signed overflow in +", at); }
void __ubsan_handle_sub_overflow(void* at, void*, void*) { undefined("signed overflow in -", at); }
void __ubsan_handle_mul_overflow(void* at, void*, void*) { undefined("signed overflow in *", at); }
void __ubsan_handle_negate_overflow(void* at, void*) {
  undefined("signed overflow in unary -", at);
}
void __ubsan_handle_divrem_overflow(void* at, void*, void*) {
  undefined("division by zero or overflow", at);
}
void __ubsan_handle_float_cast_overflow(void* at, void*) {
  undefined("float value out of range of the integer type", at);
}
void __ubsan_handle_load_invalid_value(void* at, void*) { undefined("invalid bool value", at); }
}
