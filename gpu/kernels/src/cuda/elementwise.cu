// RMSNorm, SwiGLU and the embedding: bfloat16 in and out, float32 between. Widths are multiples
// of 8 and rows are 16-byte aligned.

// out[r] = x[r] / rms(x[r]) * weight. With `delta`, x[r] += delta[r] first, in place and rounded.
// One block per row.
extern "C" __global__ void __launch_bounds__(512)
rms_norm(bf16* x, const bf16* delta, const bf16* weight, bf16* out, int width, float eps) {
    __shared__ float scratch[32];
    x += (size_t)blockIdx.x * width;
    out += (size_t)blockIdx.x * width;
    float squares = 0, v[8], d[8];
    for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        unpack(*(const uint4*)(x + i), v);
        if (delta) {
            unpack(*(const uint4*)(delta + (size_t)blockIdx.x * width + i), d);
            for (int e = 0; e < 8; e++) v[e] = round_bf16(v[e] + d[e]);
            *(uint4*)(x + i) = pack8(v);
        }
        for (int e = 0; e < 8; e++) squares += v[e] * v[e];
    }
    float scale = rsqrtf(block_sum(squares, scratch) / width + eps);
    for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
        // Where each thread has 8 elements, it still has them.
        if (width > blockDim.x * 8) unpack(*(const uint4*)(x + i), v);
        unpack(*(const uint4*)(weight + i), d);
        for (int e = 0; e < 8; e++) v[e] = v[e] * scale * d[e];
        *(uint4*)(out + i) = pack8(v);
    }
}

// out[r, i] = silu(both[r, i]) * both[r, width + i]; the gate is rounded as libtorch rounds it.
extern "C" __global__ void swiglu(const bf16* both, bf16* out, int rows, int width) {
    size_t eighths = (size_t)rows * (width / 8);
    for (size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x; n < eighths;
         n += (size_t)gridDim.x * blockDim.x) {
        size_t row = n / (width / 8), i = n % (width / 8) * 8;
        float gate[8], v[8];
        unpack(*(const uint4*)(both + row * 2 * width + i), gate);
        unpack(*(const uint4*)(both + row * 2 * width + width + i), v);
        for (int e = 0; e < 8; e++) v[e] *= round_bf16(silu(gate[e]));
        *(uint4*)(out + row * width + i) = pack8(v);
    }
}

// out[r] = table[token], the token given[r], or the one last drawn, tokens[slots[r]], if that is
// below 0. One block per row.
extern "C" __global__ void embed(const int* given, const int* slots, const u32* tokens,
                                 const bf16* table, bf16* out, int width) {
    int token = given[blockIdx.x];
    if (token < 0) token = tokens[slots[blockIdx.x]];
    const uint4* from = (const uint4*)(table + (size_t)token * width);
    uint4* to = (uint4*)(out + (size_t)blockIdx.x * width);
    for (int i = threadIdx.x; i < width / 8; i += blockDim.x) to[i] = from[i];
}
