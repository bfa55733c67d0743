// What training computes between its matrix products: bfloat16 in and out, float32 between. Widths are
// multiples of 8 and rows are 16-byte aligned.

// both[r] = [gate, up] becomes its own gradient, given grad[r], that of silu(gate) * up.
extern "C" __global__ void swiglu_back(bf16* both, const bf16* grad, int rows, int width) {
    size_t eighths = (size_t)rows * (width / 8);
    for (size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x; n < eighths;
         n += (size_t)gridDim.x * blockDim.x) {
        size_t row = n / (width / 8), i = n % (width / 8) * 8;
        uint4* gates = (uint4*)(both + row * 2 * width + i);
        uint4* ups = (uint4*)(both + row * 2 * width + width + i);
        float gate[8], v[8], d[8];
        unpack(*gates, gate);
        unpack(*ups, v);
        unpack(*(const uint4*)(grad + row * width + i), d);
        for (int e = 0; e < 8; e++) {
            float share = 1.0f / (1.0f + expf(-gate[e])), slope = d[e] * v[e];
            v[e] = d[e] * gate[e] * share;
            gate[e] = slope * share * (1.0f + gate[e] * (1.0f - share));
        }
        *gates = pack8(gate);
        *ups = pack8(v);
    }
}

// 8 pairs of elements, i and i + half, turned by the row's angles; `sign` is -1 to turn them back.
__device__ __forceinline__ void turn8(float* lo, float* hi, const bf16* cosines, const bf16* sines,
                                      int half, float sign) {
    float c[8], s[8], c2[8], s2[8];
    unpack(*(const uint4*)cosines, c);
    unpack(*(const uint4*)sines, s);
    unpack(*(const uint4*)(cosines + half), c2);
    unpack(*(const uint4*)(sines + half), s2);
    for (int e = 0; e < 8; e++) {
        // Rounded where libtorch's two operations round.
        float a = round_bf16(lo[e] * c[e]) + sign * hi[e] * s[e];
        hi[e] = round_bf16(hi[e] * c2[e]) + sign * lo[e] * s2[e];
        lo[e] = a;
    }
}

// Turns the first `turned` of the heads of x [rows, heads, dim] in place; `cosines` and `sines` are
// [rows, dim], the sines of the first half negated. One block per row; dim is a multiple of 16.
extern "C" __global__ void rotate(bf16* x, const bf16* cosines, const bf16* sines, int heads,
                                  int turned, int dim) {
    int half = dim / 2, pieces = half / 8;
    size_t row = blockIdx.x;
    for (int n = threadIdx.x; n < turned * pieces; n += blockDim.x) {
        int at = n % pieces * 8;
        bf16* p = x + (row * heads + n / pieces) * dim + at;
        float lo[8], hi[8];
        unpack(*(uint4*)p, lo);
        unpack(*(uint4*)(p + half), hi);
        turn8(lo, hi, cosines + row * dim + at, sines + row * dim + at, half, 1.0f);
        *(uint4*)p = pack8(lo);
        *(uint4*)(p + half) = pack8(hi);
    }
}

// The gradient of what `rotate` was given, out [rows, heads + 2 * kv_heads, dim], from those of queries
// [rows, heads, dim], keys and values [rows, kv_heads, dim].
extern "C" __global__ void rotate_back(const bf16* dq, const bf16* dk, const bf16* dv,
                                       const bf16* cosines, const bf16* sines, bf16* out, int heads,
                                       int kv_heads, int dim) {
    int half = dim / 2, pieces = half / 8, all = heads + 2 * kv_heads;
    size_t row = blockIdx.x;
    for (int n = threadIdx.x; n < all * pieces; n += blockDim.x) {
        int head = n / pieces, at = n % pieces * 8, kv = head - heads;
        const bf16* p = head < heads ? dq + (row * heads + head) * dim
                      : kv < kv_heads ? dk + (row * kv_heads + kv) * dim
                                      : dv + (row * kv_heads + kv - kv_heads) * dim;
        float lo[8], hi[8];
        unpack(*(const uint4*)(p + at), lo);
        unpack(*(const uint4*)(p + at + half), hi);
        if (kv < kv_heads)
            turn8(lo, hi, cosines + row * dim + at, sines + row * dim + at, half, -1.0f);
        bf16* to = out + (row * all + head) * dim + at;
        *(uint4*)to = pack8(lo);
        *(uint4*)(to + half) = pack8(hi);
    }
}

// Of each row of logits [rows, vocab], divided by `divisor`: the log of the sum of exponentials, the
// target's log-probability, the entropy, and the best token (the first of equals). One block per row.
extern "C" __global__ void __launch_bounds__(512)
score(const bf16* logits, const long long* targets, float divisor, float* sums, float* chosen,
      float* entropies, long long* best, int vocab) {
    __shared__ float scratch[32];
    const bf16* x = logits + (size_t)blockIdx.x * vocab;
    // Of what this thread has seen: the largest, where it is, and sums of e^(v - most) and v e^(v - most).
    float most = -INFINITY, mass = 0, moment = 0;
    int place = vocab;
    for (int i = threadIdx.x * 8; i < vocab; i += blockDim.x * 8) {
        float v[8];
        unpack(*(const uint4*)(x + i), v);
        for (int e = 0; e < 8; e++) v[e] /= divisor;
        float before = most;
        for (int e = 0; e < 8; e++)
            if (v[e] > most) {
                most = v[e];
                place = i + e;
            }
        // Nothing but -infinity so far: no sum either.
        float shrink = before == most ? 1.0f : expf(before - most);
        mass *= shrink;
        moment *= shrink;
        for (int e = 0; e < 8; e++) {
            float share = v[e] == -INFINITY ? 0.0f : expf(v[e] - most);
            mass += share;
            if (share != 0.0f) moment += v[e] * share;
        }
    }
    float top = block_max(most, scratch);
    float shrink = most == -INFINITY ? 0.0f : expf(most - top);
    // A NaN is in no maximum, but it is in this sum.
    mass = block_sum(mass == mass ? mass * shrink : mass, scratch);
    moment = block_sum(moment * shrink, scratch);
    // Places are below 2^24, so that a float holds them.
    float first = -block_max(most == top ? -(float)place : -(float)vocab, scratch);
    if (threadIdx.x == 0) {
        float sum = top + logf(mass);
        sums[blockIdx.x] = sum;
        chosen[blockIdx.x] = up(x[targets[blockIdx.x]]) / divisor - sum;
        entropies[blockIdx.x] = sum - moment / mass;
        best[blockIdx.x] = (long long)first;
    }
}

// logits [rows, vocab] become their own gradient: by_chosen [rows] is that of the targets'
// log-probabilities, by_entropy (or 0) that of the entropies; `sums` and `entropies` as `score` gave
// them. The blocks of y are rows.
extern "C" __global__ void score_back(bf16* logits, const long long* targets, float divisor,
                                      const float* sums, const float* entropies,
                                      const float* by_chosen, const float* by_entropy, int vocab) {
    size_t row = blockIdx.y;
    float sum = sums[row], c = by_chosen[row], target = (float)targets[row];
    float h = by_entropy ? by_entropy[row] : 0.0f, entropy = h != 0.0f ? entropies[row] : 0.0f;
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8; i < vocab;
         i += gridDim.x * blockDim.x * 8) {
        uint4* place = (uint4*)(logits + row * vocab + i);
        float v[8];
        unpack(*place, v);
        for (int e = 0; e < 8; e++) {
            float logp = v[e] / divisor - sum, p = expf(logp);
            float by = h != 0.0f && p != 0.0f ? c + h * (logp + entropy) : c;
            v[e] = (((float)(i + e) == target ? c : 0.0f) - p * by) / divisor;
        }
        *place = pack8(v);
    }
}

// One element of an AdamW step. The float32 weight stands as `high`, the nearest bfloat16, and `low`, the
// 16 bits that are left, signed.
struct Step {
    float rate, beta1, beta2, eps, decay, scale, first, second;
    __device__ __forceinline__ void take(bf16& high, bf16& low, float grad, float& m, float& v) const {
        float w = __uint_as_float(((u32)high << 16) + (u32)(int)(short)low);
        grad /= scale;
        w -= rate * decay * w;
        m += (1.0f - beta1) * (grad - m);
        v = beta2 * v + (1.0f - beta2) * grad * grad;
        w -= rate / first * m / (sqrtf(v) / second + eps);
        u32 bits = __float_as_uint(w);
        high = (bits + 0x8000u) >> 16;
        low = bits & 0xffffu;
    }
};

// One AdamW step on n elements in place. `scale` divides the gradient; `first` is 1 - beta1^t, `second`
// the root of 1 - beta2^t.
extern "C" __global__ void adamw(bf16* high, bf16* low, const float* grad, float* m, float* v, size_t n,
                                 float rate, float beta1, float beta2, float eps, float decay,
                                 float scale, float first, float second) {
    Step step = {rate, beta1, beta2, eps, decay, scale, first, second};
    size_t start = (size_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (size_t)gridDim.x * blockDim.x;
    bool even = (((size_t)high | (size_t)low) & 7 | ((size_t)grad | (size_t)m | (size_t)v) & 15) == 0;
    size_t fours = even ? n / 4 : 0;
    for (size_t i = start; i < fours; i += stride) {
        uint2 h = ((uint2*)high)[i], l = ((uint2*)low)[i];
        uint4 g = ((const uint4*)grad)[i], a = ((uint4*)m)[i], b = ((uint4*)v)[i];
        u32 *hs = &h.x, *ls = &l.x, *gs = &g.x, *as = &a.x, *bs = &b.x;
        for (int e = 0; e < 4; e++) {
            bf16 x = hs[e / 2] >> 16 * (e % 2), y = ls[e / 2] >> 16 * (e % 2);
            float p = __uint_as_float(as[e]), q = __uint_as_float(bs[e]);
            step.take(x, y, __uint_as_float(gs[e]), p, q);
            u32 keep = e % 2 ? 0xffffu : 0xffff0000u;
            hs[e / 2] = hs[e / 2] & keep | (u32)x << 16 * (e % 2);
            ls[e / 2] = ls[e / 2] & keep | (u32)y << 16 * (e % 2);
            as[e] = __float_as_uint(p);
            bs[e] = __float_as_uint(q);
        }
        ((uint2*)high)[i] = h;
        ((uint2*)low)[i] = l;
        ((uint4*)m)[i] = a;
        ((uint4*)v)[i] = b;
    }
    for (size_t i = fours * 4 + start; i < n; i += stride) step.take(high[i], low[i], grad[i], m[i], v[i]);
}
