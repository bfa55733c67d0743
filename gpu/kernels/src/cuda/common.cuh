// What all kernels share.
__device__ __forceinline__ float up(bf16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ float round_bf16(float x) { return up(down(x)); }

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ void unpack(uint4 v, float* out) {
    out[0] = low(v.x); out[1] = high(v.x); out[2] = low(v.y); out[3] = high(v.y);
    out[4] = low(v.z); out[5] = high(v.z); out[6] = low(v.w); out[7] = high(v.w);
}

__device__ __forceinline__ uint4 pack8(const float* v) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
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
