// Biases, per-head norms, rotary positions and the write into the paged cache, in one pass over
// the fused projection `qkv` [rows, heads + 2 * kv_heads, dim], which is changed in place.

// Keys and values lie as [block, kv_head, 16, dim]; `places[r]` is block * 16 + the token's place.
// `cosines` and `sines` are [context, dim], the sines of the first half negated.
// One warp per row and head; blockDim.x is 32, blockDim.y heads at a time.
extern "C" __global__ void rope_and_cache(
    bf16* qkv, const bf16* bias, const bf16* query_norm, const bf16* key_norm, float eps,
    const bf16* cosines, const bf16* sines, const int* positions, const int* places,
    bf16* keys, bf16* values, int heads, int kv_heads, int dim) {
    int head = blockIdx.y * blockDim.y + threadIdx.y;
    if (head >= heads + 2 * kv_heads) return;
    int row = blockIdx.x, half = dim / 2;
    bf16* x = qkv + ((size_t)row * (heads + 2 * kv_heads) + head) * dim;
    const bf16* b = bias ? bias + head * dim : 0;
    const bf16* norm = head < heads ? query_norm : head < heads + kv_heads ? key_norm : 0;
    bool turns = head < heads + kv_heads;
    // Up to 2 pairs of elements per lane: dim is at most 128.
    float lo[2], hi[2], squares = 0;
    for (int n = 0; n < 2; n++) {
        int i = threadIdx.x + 32 * n;
        if (i >= half) continue;
        lo[n] = up(x[i]);
        hi[n] = up(x[i + half]);
        if (b) {
            lo[n] = round_bf16(lo[n] + up(b[i]));
            hi[n] = round_bf16(hi[n] + up(b[i + half]));
        }
        squares += lo[n] * lo[n] + hi[n] * hi[n];
    }
    if (norm) {
        float scale = rsqrtf(warp_sum(squares) / dim + eps);
        for (int n = 0; n < 2; n++) {
            int i = threadIdx.x + 32 * n;
            if (i >= half) continue;
            lo[n] = round_bf16(lo[n] * scale * up(norm[i]));
            hi[n] = round_bf16(hi[n] * scale * up(norm[i + half]));
        }
    }
    size_t angle = (size_t)positions[row] * dim, place = places[row];
    bf16* cache = 0;
    if (head >= heads) {
        int kv = (head - heads) % kv_heads;
        cache = (turns ? keys : values) + ((place / 16 * kv_heads + kv) * 16 + place % 16) * dim;
    }
    for (int n = 0; n < 2; n++) {
        int i = threadIdx.x + 32 * n;
        if (i >= half) continue;
        float a = lo[n], c = hi[n];
        if (turns) {
            // Rounded where libtorch's two operations round.
            a = round_bf16(lo[n] * up(cosines[angle + i])) + hi[n] * up(sines[angle + i]);
            c = round_bf16(hi[n] * up(cosines[angle + i + half])) +
                lo[n] * up(sines[angle + i + half]);
        }
        x[i] = down(a);
        x[i + half] = down(c);
        if (cache) {
            cache[i] = down(a);
            cache[i + half] = down(c);
        }
    }
}

// Copies one block of every layer. Layers are `stride` elements apart, keys and values too;
// a block has `size` elements, a multiple of 8. One grid row per layer and side.
extern "C" __global__ void copy_block(bf16* cache, size_t stride, size_t size, int from, int to) {
    const uint4* a = (const uint4*)(cache + blockIdx.y * stride + from * size);
    uint4* b = (uint4*)(cache + blockIdx.y * stride + to * size);
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < size / 8; i += gridDim.x * blockDim.x)
        b[i] = a[i];
}
