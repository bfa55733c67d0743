// One row times a matrix: y[n] = sum over k of weight[n, k] * x[k]. Bound by reading the weights,
// so each warp keeps many 16-byte loads in flight and nothing else matters. `columns` is a
// multiple of 8.

#define ROWS 2
#define DEEP 4

// Two rows of the weights by one warp.
__device__ __forceinline__ void two_rows(const bf16* a, const bf16* b, const bf16* x, int columns,
                                         float* sum) {
    int lane = threadIdx.x % 32, k = lane * 8;
    sum[0] = sum[1] = 0;
    float w[8], v[8];
    for (; k + (DEEP - 1) * 256 < columns; k += DEEP * 256) {
        uint4 wa[DEEP], wb[DEEP];
        #pragma unroll
        for (int n = 0; n < DEEP; n++) {
            wa[n] = stream16(a + k + n * 256);
            wb[n] = stream16(b + k + n * 256);
        }
        #pragma unroll
        for (int n = 0; n < DEEP; n++) {
            unpack(*(const uint4*)(x + k + n * 256), v);
            unpack(wa[n], w);
            for (int e = 0; e < 8; e++) sum[0] += w[e] * v[e];
            unpack(wb[n], w);
            for (int e = 0; e < 8; e++) sum[1] += w[e] * v[e];
        }
    }
    for (; k < columns; k += 256) {
        unpack(*(const uint4*)(x + k), v);
        unpack(stream16(a + k), w);
        for (int e = 0; e < 8; e++) sum[0] += w[e] * v[e];
        unpack(stream16(b + k), w);
        for (int e = 0; e < 8; e++) sum[1] += w[e] * v[e];
    }
    sum[0] = warp_sum(sum[0]);
    sum[1] = warp_sum(sum[1]);
}

extern "C" __global__ void __launch_bounds__(128)
gemv(const bf16* weight, const bf16* x, bf16* y, int rows, int columns) {
    int row = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS;
    if (row >= rows) return;
    int second = min(row + 1, rows - 1);
    float sum[2];
    two_rows(weight + (size_t)row * columns, weight + (size_t)second * columns, x, columns, sum);
    if (threadIdx.x % 32 == 0) {
        y[row] = down(sum[0]);
        if (second > row) y[second] = down(sum[1]);
    }
}

// y[n] = silu(gate) * up with the gate in row n of `weight` and up in row n + width; each factor
// is rounded as the separate operations would round it.
extern "C" __global__ void __launch_bounds__(128)
gemv_swiglu(const bf16* weight, const bf16* x, bf16* y, int width, int columns) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= width) return;
    float sum[2];
    two_rows(weight + (size_t)row * columns, weight + (size_t)(row + width) * columns, x, columns,
             sum);
    if (threadIdx.x % 32 == 0) {
        float gate = round_bf16(sum[0]);
        y[row] = down(round_bf16(silu(gate)) * round_bf16(sum[1]));
    }
}
