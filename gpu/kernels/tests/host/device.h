// A device of one multiprocessor on the host: every thread of a block is a fiber, barriers and warp
// operations are where fibers wait for each other. What the kernels compute can be tested so;
// what they cost cannot, nor what only a device does (memory order, alignment).
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

struct Warp {
    char slots[2][32][64];
    int arrived = 0;
    unsigned turn = 0;
};
// Contexts start fibers; jumps, which ask nothing of the system, switch between them.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool started;
    std::unique_ptr<char[]> stack;
    dim3 index;
    int number;
    bool done;
};
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    jmp_buf main;
    int current = 0, alive = 0, arrived = 0, counted = 0, result = 0;
    unsigned turn = 0;
    std::function<void()> work;
};
inline Block block;

inline void yield() {
    if (!_setjmp(block.fibers[block.current].place)) _longjmp(block.main, 1);
    threadIdx = block.fibers[block.current].index;
}

inline int __syncthreads_count(int predicate) {
    unsigned turn = block.turn;
    block.counted += predicate != 0;
    if (++block.arrived == block.alive) {
        block.result = block.counted;
        block.arrived = block.counted = 0;
        block.turn++;
    }
    while (block.turn == turn) yield();
    return block.result;
}
inline void __syncthreads() { __syncthreads_count(0); }

// What every lane of the warp gave, 64 bytes each.
inline char (*exchange(const void* mine, size_t size))[64] {
    Fiber& me = block.fibers[block.current];
    Warp& warp = block.warps[me.number / 32];
    unsigned turn = warp.turn;
    auto slots = warp.slots[turn % 2];
    memcpy(slots[me.number % 32], mine, size);
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.turn++;
    }
    while (warp.turn == turn) yield();
    return slots;
}
inline int lane() { return block.fibers[block.current].number % 32; }

template <class T>
T from_lane(T mine, int other) {
    auto slots = exchange(&mine, sizeof(T));
    T theirs;
    memcpy(&theirs, slots[other], sizeof(T));
    return theirs;
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) { return from_lane(v, lane() ^ mask); }
template <class T>
T __shfl_up_sync(unsigned, T v, int by) { return from_lane(v, lane() >= by ? lane() - by : lane()); }

inline float __uint_as_float(unsigned x) { float f; memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned pick) {
    unsigned long long all = (unsigned long long)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(all >> (pick >> 4 * i & 7) * 8 & 255) << 8 * i;
    return out;
}
template <class T>
T atomicAdd(T* p, T v) { T old = *p; *p += v; return old; }
template <class T>
T atomicMin(T* p, T v) { T old = *p; if (v < old) *p = v; return old; }
inline int min(int a, int b) { return a < b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

#include "types.cuh"

// instructions.cuh, in words.
inline bf16 down(float x) {
    unsigned u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline u32 pack(float lo, float hi) { return (u32)down(hi) << 16 | down(lo); }
inline uint4 stream16(const void* p) {
    if ((size_t)p % 16) { puts("a load of 16 bytes is not aligned"); abort(); }
    uint4 v;
    memcpy(&v, p, 16);
    return v;
}
inline float half_of(u32 x, int n) { return __uint_as_float(n ? x & 0xffff0000u : x << 16); }
inline void mma(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    auto slots = exchange(mine, sizeof mine);
    auto word = [&](int lane, int n) { u32 v; memcpy(&v, slots[lane] + 4 * n, 4); return v; };
    int g = lane() / 4, j = lane() % 4;
    for (int e = 0; e < 4; e++) {
        int row = g + e / 2 * 8, column = 2 * j + e % 2;
        for (int k = 0; k < 16; k++) {
            int part = k % 8 / 2, late = k / 8;
            float a = half_of(word(row % 8 * 4 + part, row / 8 + 2 * late), k % 2);
            d[e] += a * half_of(word(column * 4 + part, 4 + late), k % 2);
        }
    }
}
inline u32 transpose(u32 x) {
    auto slots = exchange(&x, 4);
    u32 out = 0;
    for (int e = 0; e < 2; e++) {
        int row = 2 * (lane() % 4) + e, column = lane() / 4;
        u32 v;
        memcpy(&v, slots[row * 4 + column / 2], 4);
        out |= (column % 2 ? v >> 16 : v & 0xffff) << 16 * e;
    }
    return out;
}

inline void start_fiber() {
    block.work();
    Fiber& me = block.fibers[block.current];
    me.done = true;
    block.alive--;
    // Those who have returned are not waited for.
    if (block.alive && block.arrived == block.alive) {
        block.result = block.counted;
        block.arrived = block.counted = 0;
        block.turn++;
    }
    _longjmp(block.main, 1);
}

// The next piece of a fiber's work.
inline void resume(Fiber& f) {
    if (_setjmp(block.main)) return;
    if (f.started) _longjmp(f.place, 1);
    f.started = true;
    setcontext(&f.context);
}

// Runs `work` on every thread of the grid, block after block.
inline void run(dim3 grid, dim3 threads, std::function<void()> work) {
    gridDim = grid;
    blockDim = threads;
    block.work = work;
    int count = threads.x * threads.y * threads.z;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                if ((int)block.fibers.size() < count) block.fibers.resize(count);
                block.warps.assign((count + 31) / 32, Warp());
                block.alive = count;
                block.arrived = block.counted = 0;
                for (int n = 0; n < count; n++) {
                    Fiber& f = block.fibers[n];
                    if (!f.stack) f.stack.reset(new char[65536]);
                    f.number = n;
                    f.index = {n % threads.x, n / threads.x % threads.y, n / threads.x / threads.y};
                    f.done = f.started = false;
                    getcontext(&f.context);
                    f.context.uc_stack = {f.stack.get(), 0, 65536};
                    makecontext(&f.context, start_fiber, 0);
                }
                while (block.alive)
                    for (int n = 0; n < count; n++) {
                        Fiber& f = block.fibers[n];
                        if (f.done) continue;
                        block.current = n;
                        threadIdx = f.index;
                        resume(f);
                    }
            }
}
