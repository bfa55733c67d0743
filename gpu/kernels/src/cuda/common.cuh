// What all kernels share. bfloat16 numbers are their 16 bits, so that no header is needed.
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#undef INFINITY
#undef NAN
#define INFINITY __uint_as_float(0x7f800000u)
#define NAN __uint_as_float(0x7fffffffu)

__device__ __forceinline__ float up(bf16 x) { return __uint_as_float((u32)x << 16); }

// Rounds to nearest, ties to even.
__device__ __forceinline__ bf16 down(float x) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float round_bf16(float x) { return up(down(x)); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Two numbers in one register, `lo` in the low half.
__device__ __forceinline__ u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ void unpack(uint4 v, float* out) {
    out[0] = low(v.x); out[1] = high(v.x); out[2] = low(v.y); out[3] = high(v.y);
    out[4] = low(v.z); out[5] = high(v.z); out[6] = low(v.w); out[7] = high(v.w);
}

__device__ __forceinline__ uint4 pack8(const float* v) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

// Weights are read once: they need not stay in the first-level cache.
__device__ __forceinline__ uint4 stream16(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
    for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
    return v;
}

// Sum over the block, the same in every thread, in an order that never changes.
// `scratch` holds 32 floats and may be used again after the call.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < blockDim.x / 32; i++) total += scratch[i];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float block_max(float v, float* scratch) {
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float most = scratch[0];
    for (int i = 1; i < blockDim.x / 32; i++) most = fmaxf(most, scratch[i]);
    __syncthreads();
    return most;
}

// D (16 x 8, float32) += A (16 x 16) * B (16 x 8).
__device__ __forceinline__ void mma(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
