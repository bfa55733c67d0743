// One new query per row over a paged cache, grouped heads, flash-decoding.
//
// Keys meet queries as S' = K Q' and values as O' = V' P', so that up to 8 query heads that share
// a key head fill the 8 columns of one tensor-core product and nothing is padded to 16. Both
// factors come from device memory straight into registers, 16 bytes a thread: the order of the
// summed dimension is free as long as both sides use the same, so each thread's 16 bytes are
// taken as they come.
//
// A split is always 256 tokens, whatever the batch is: what a row gives depends on nothing but
// the row.

#define SPLIT 256
#define WARPS 4

// qkv [rows, stride] with the query heads first; keys, values [block, kv_heads, 16, D];
// tables [rows, table_width]; out [rows, heads, D]. Row r sees positions 0..=positions[r].
// Grid: splits, kv_heads * ceil(group / 8), rows. With more than one split, partial results go to
// `sums` [rows, heads, splits, D] and `stats` [rows, heads, splits, 2] (largest score, sum).
template <int D>
__device__ __forceinline__ void attend(
    const bf16* qkv, int stride, const bf16* keys, const bf16* values, const int* tables,
    int table_width, const int* positions, bf16* out, float* sums, float* stats, int heads,
    int kv_heads, float scale) {
    __shared__ float part[WARPS][8][D];
    __shared__ float most[WARPS][8], total[WARPS][8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, j = lane % 4;
    const int split = blockIdx.x, row = blockIdx.z, length = positions[row] + 1;
    if (split * SPLIT >= length) return;
    const int group = heads / kv_heads, parts = (group + 7) / 8;
    const int kv = blockIdx.y / parts, first = blockIdx.y % parts * 8;
    const int queries = min(8, group - first), head = kv * group + first;

    // Column g of Q': dims 32 c + 8 j .. + 7 of query g.
    uint4 q[D / 32];
    for (int c = 0; c < D / 32; c++) {
        q[c] = make_uint4(0, 0, 0, 0);
        if (g < queries)
            q[c] = *(const uint4*)(qkv + (size_t)row * stride + (head + g) * D + c * 32 + j * 8);
    }
    float o[D / 16][4] = {};
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    const int* table = tables + (size_t)row * table_width;
    const int end = min(length, (split + 1) * SPLIT);
    for (int start = split * SPLIT + warp * 16; start < end; start += WARPS * 16) {
        size_t base = ((size_t)table[start / 16] * kv_heads + kv) * 16 * D;
        const bf16 *k = keys + base, *v = values + base;
        uint4 k0[D / 32], k1[D / 32], vv[4][D / 64];
        #pragma unroll
        for (int c = 0; c < D / 32; c++) {
            k0[c] = stream16(k + g * D + c * 32 + j * 8);
            k1[c] = stream16(k + (g + 8) * D + c * 32 + j * 8);
        }
        #pragma unroll
        for (int t = 0; t < 4; t++) {
            int token = 2 * j + t % 2 + t / 2 * 8;
            // Beyond the length lies anything, NaN too, and 0 * NaN is NaN.
            for (int h = 0; h < D / 64; h++)
                vv[t][h] = start + token < length ? stream16(v + token * D + h * 64 + g * 8)
                                                  : make_uint4(0, 0, 0, 0);
        }
        // s[0], s[1]: token g with queries 2j, 2j + 1; s[2], s[3]: token g + 8.
        float s[4] = {};
        #pragma unroll
        for (int c = 0; c < D / 32; c++) {
            mma(s, k0[c].x, k1[c].x, k0[c].y, k1[c].y, q[c].x, q[c].y);
            mma(s, k0[c].z, k1[c].z, k0[c].w, k1[c].w, q[c].z, q[c].w);
        }
        #pragma unroll
        for (int e = 0; e < 4; e++)
            s[e] = start + g + e / 2 * 8 < length ? s[e] * scale : -INFINITY;
        float fade[2];
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            float top = fmaxf(s[e], s[e + 2]);
            for (int w = 4; w < 32; w *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, w));
            top = fmaxf(top, m[e]);
            fade[e] = exp2f(m[e] - top);
            m[e] = top;
            s[e] = exp2f(s[e] - top);
            s[e + 2] = exp2f(s[e + 2] - top);
            l[e] = l[e] * fade[e] + s[e] + s[e + 2];
        }
        u32 p0 = transpose(pack(s[0], s[1])), p1 = transpose(pack(s[2], s[3]));
        #pragma unroll
        for (int t = 0; t < D / 16; t++) {
            for (int e = 0; e < 4; e++) o[t][e] *= fade[e % 2];
            // Row g of this tile is the thread's element `a`, row g + 8 its element `b`.
            constexpr int wide = D / 64;
            const int a = t, b = wide == 2 ? t : t + 4;
            const u32 *w[4];
            u32 lo[4], hi[4];
            for (int n = 0; n < 4; n++) {
                w[n] = (const u32*)&vv[n][0];
                lo[n] = w[n][a / 2];
                hi[n] = ((const u32*)&vv[n][wide - 1])[b / 2];
            }
            u32 pick = t % 2 ? 0x7632 : 0x5410;
            mma(o[t], __byte_perm(lo[0], lo[1], pick), __byte_perm(hi[0], hi[1], pick),
                __byte_perm(lo[2], lo[3], pick), __byte_perm(hi[2], hi[3], pick), p0, p1);
        }
    }
    for (int e = 0; e < 2; e++) {
        for (int w = 4; w < 32; w *= 2) l[e] += __shfl_xor_sync(~0u, l[e], w);
        if (g == 0) {
            most[warp][2 * j + e] = m[e];
            total[warp][2 * j + e] = l[e];
        }
        #pragma unroll
        for (int t = 0; t < D / 16; t++) {
            int a = D == 128 ? g * 8 + t : g * 8 + t, b = D == 128 ? 64 + g * 8 + t : g * 8 + t + 4;
            part[warp][2 * j + e][a] = o[t][e];
            part[warp][2 * j + e][b] = o[t][e + 2];
        }
    }
    __syncthreads();
    const int splits = gridDim.x;
    for (int n = threadIdx.x; n < queries * D; n += WARPS * 32) {
        int query = n / D, d = n % D;
        float top = most[0][query], sum = 0, mixed = 0;
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, most[w][query]);
        for (int w = 0; w < WARPS; w++) {
            float weight = exp2f(most[w][query] - top);
            sum += weight * total[w][query];
            mixed += weight * part[w][query][d];
        }
        size_t at = (size_t)row * heads + head + query;
        if (splits == 1) {
            out[at * D + d] = down(mixed / sum);
        } else {
            sums[(at * splits + split) * D + d] = mixed;
            if (d == 0) {
                stats[(at * splits + split) * 2] = top;
                stats[(at * splits + split) * 2 + 1] = sum;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) attend_128(
    const bf16* qkv, int stride, const bf16* keys, const bf16* values, const int* tables,
    int table_width, const int* positions, bf16* out, float* sums, float* stats, int heads,
    int kv_heads, float scale) {
    attend<128>(qkv, stride, keys, values, tables, table_width, positions, out, sums, stats, heads,
                kv_heads, scale);
}

extern "C" __global__ void __launch_bounds__(128) attend_64(
    const bf16* qkv, int stride, const bf16* keys, const bf16* values, const int* tables,
    int table_width, const int* positions, bf16* out, float* sums, float* stats, int heads,
    int kv_heads, float scale) {
    attend<64>(qkv, stride, keys, values, tables, table_width, positions, out, sums, stats, heads,
               kv_heads, scale);
}

// Adds up the splits of one row and head. Grid: heads, rows; one thread per element of the head.
extern "C" __global__ void combine(const float* sums, const float* stats, const int* positions,
                                   bf16* out, int splits) {
    const int row = blockIdx.y, dim = blockDim.x, used = positions[row] / SPLIT + 1;
    size_t at = (size_t)row * gridDim.x + blockIdx.x;
    const float *s = stats + at * splits * 2, *v = sums + at * splits * dim + threadIdx.x;
    float top = s[0], sum = 0, mixed = 0;
    for (int n = 1; n < used; n++) top = fmaxf(top, s[2 * n]);
    for (int n = 0; n < used; n++) {
        float weight = exp2f(s[2 * n] - top);
        sum += weight * s[2 * n + 1];
        mixed += weight * v[(size_t)n * dim];
    }
    out[at * dim + threadIdx.x] = down(mixed / sum);
}
